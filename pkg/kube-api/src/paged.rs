//! Paged lists, of which only the reader's type is kept.

use std::time::Duration;

use serde::{Deserialize, de::DeserializeOwned};

use crate::{ApiErrorKind, Error, KubeClient};

/// Number of objects per page.
const PAGE: usize = 500;
/// Bound for a list that never ends: a cluster has at most 150,000 pods.
const MOST_PAGES: usize = 1000;
/// Number of attempts to read a list whose pages expire.
const STARTS: usize = 3;

#[derive(Deserialize)]
struct Page<T> {
    #[serde(default)]
    metadata: PageMeta,
    items: Vec<T>,
}

#[derive(Default, Deserialize)]
struct PageMeta {
    #[serde(default, rename = "continue")]
    next: String,
}

impl KubeClient {
    /// Returns every object of a collection such as `/api/v1/pods`, deserialised as `T`. `query` filters it, such as
    /// `labelSelector=app%3Dweb`; empty: no filter.
    ///
    /// # Errors
    /// A page is not returned within `limit`, or is no list.
    pub async fn list_all<T: DeserializeOwned>(
        &self,
        what: &str,
        path: &str,
        query: &str,
        limit: Duration,
    ) -> Result<Vec<T>, Error> {
        let mut starts = 1;
        loop {
            match self.list_pages(what, path, query, limit).await {
                Err(Error::Request { kind: ApiErrorKind::Expired, .. }) if starts < STARTS => starts += 1,
                read => return read,
            }
        }
    }

    async fn list_pages<T: DeserializeOwned>(
        &self,
        what: &str,
        path: &str,
        query: &str,
        limit: Duration,
    ) -> Result<Vec<T>, Error> {
        let mut all = Vec::new();
        let mut next = String::new();
        for _ in 0..MOST_PAGES {
            let mut uri = format!("{path}?limit={PAGE}");
            for (name, value) in [("", query), ("continue=", next.as_str())] {
                if !value.is_empty() {
                    uri.push_str(&format!("&{name}{value}"));
                }
            }
            let page: Page<T> = self.get(what, &uri, limit).await?;
            all.extend(page.items);
            // Unpadded URL-safe base64: needs no escaping.
            next = page.metadata.next;
            if next.is_empty() {
                return Ok(all);
            }
        }
        Err(Error::unavailable(format!("list {what}"), "the list does not end"))
    }
}
