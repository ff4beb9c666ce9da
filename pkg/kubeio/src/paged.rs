//! Whole lists, page by page, of which nothing is kept but what the reader wants.

use std::time::Duration;

use serde::{Deserialize, de::DeserializeOwned};

use crate::{ApiErrorKind, Error, KubeClient};

/// Objects of one page.
const PAGE: usize = 500;
/// Of a list that goes on for ever: a cluster has at most 150,000 pods.
const MOST_PAGES: usize = 1000;
/// A list whose pages became too old is read again from the start, this often.
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
    /// Every object of a collection such as `/api/v1/pods`, as far as `T` wants to know it. `query` narrows it, such as
    /// `labelSelector=app%3Dweb`; empty: it does not.
    ///
    /// # Errors
    /// A page is not answered within `limit`, or with anything but a list.
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
            // Unpadded base64 for URLs: it needs no escapes.
            next = page.metadata.next;
            if next.is_empty() {
                return Ok(all);
            }
        }
        Err(Error::unavailable(format!("list {what}"), "the list does not end"))
    }
}
