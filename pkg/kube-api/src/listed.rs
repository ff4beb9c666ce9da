//! Watches that begin with an ordinary list, for API servers without streaming lists. Unlike kube's own watcher, the list is read
//! object by object as it arrives.

use std::{future, pin::Pin, time::Duration};

use futures_util::{
    Stream, StreamExt as _,
    stream::{self, BoxStream},
};
use hyper::body::Body as _;
use kube::{
    Api, Resource as _,
    api::{ListParams, VersionMatch, WatchParams},
    client::Body,
    core::{ApiResource, Request, Status, WatchEvent},
    runtime::watcher::{self, Error},
};
use model::ObjectMeta;
use serde::{Deserialize, de::DeserializeOwned};

use crate::{
    Collection, ListEvent,
    bounded::{BodyBound, MAX_ERROR},
    pieces::ListSplitter,
    slim::SlimObject,
};

/// Maximum time without data within a list.
const PAUSE: Duration = Duration::from_secs(30);

/// A followed collection, and its client.
pub(crate) struct FollowedCollection<O, T> {
    pub(crate) client: kube::Client,
    pub(crate) api: Api<SlimObject<O, T>>,
    pub(crate) resource: ApiResource,
    pub(crate) collection: Collection,
}

type ChangeStream<O, T> = BoxStream<'static, kube::Result<WatchEvent<SlimObject<O, T>>>>;

enum ListWatchState<O, T> {
    Begin,
    Listed(String),
    Watching(String, ChangeStream<O, T>),
}

#[derive(Deserialize)]
struct ListHead {
    metadata: ObjectMeta,
}

impl<O, T> FollowedCollection<O, T>
where
    O: DeserializeOwned + AsRef<ObjectMeta> + 'static,
    T: From<O> + Send + 'static,
{
    /// Returns a list, then each change, and a new list when changes are lost. Errors are reported; the next step retries.
    pub(crate) fn events(self) -> impl Stream<Item = watcher::Result<ListEvent<T>>> + Send {
        stream::unfold((self, ListWatchState::Begin), |(followed, mut state)| async move {
            loop {
                let (event, next) = followed.advance_state(state).await;
                state = next;
                if let Some(event) = event {
                    return Some((event, (followed, state)));
                }
            }
        })
    }

    async fn advance_state(
        &self,
        state: ListWatchState<O, T>,
    ) -> (Option<watcher::Result<ListEvent<T>>>, ListWatchState<O, T>) {
        match state {
            ListWatchState::Begin => match self.list_objects().await {
                Ok((objects, version)) => {
                    (Some(Ok(ListEvent::Reset(objects))), ListWatchState::Listed(version))
                }
                Err(error) => (Some(Err(Error::InitialListFailed(error))), ListWatchState::Begin),
            },
            ListWatchState::Listed(version) => {
                let params = WatchParams {
                    field_selector: self.collection.field_selector.clone(),
                    label_selector: self.collection.label_selector.clone(),
                    ..WatchParams::default()
                };
                match self.api.watch(&params, &version).await {
                    Ok(changes) => (None, ListWatchState::Watching(version, changes.boxed())),
                    Err(error) => {
                        let is_lost = matches!(&error, kube::Error::Api(status) if status.code == 410);
                        let next =
                            if is_lost { ListWatchState::Begin } else { ListWatchState::Listed(version) };
                        (Some(Err(Error::WatchStartFailed(error))), next)
                    }
                }
            }
            ListWatchState::Watching(version, mut changes) => {
                let Some(change) = changes.next().await else {
                    return (None, ListWatchState::Listed(version));
                };
                let (event, version) = watch_result(change, version);
                let watching = |version| ListWatchState::Watching(version, changes);
                (event, version.map_or(ListWatchState::Begin, watching))
            }
        }
    }

    async fn list_objects(&self) -> kube::Result<(Vec<T>, String)> {
        let params = ListParams {
            field_selector: self.collection.field_selector.clone(),
            label_selector: self.collection.label_selector.clone(),
            resource_version: Some("0".to_owned()),
            version_match: Some(VersionMatch::NotOlderThan),
            ..ListParams::default()
        };
        let path = SlimObject::<O, T>::url_path(&self.resource, self.collection.namespace.as_deref());
        let mut request = Request::new(path).list(&params).map_err(kube::Error::BuildRequest)?;
        request.extensions_mut().insert(BodyBound::Pieces);
        let answer = self.client.send(request.map(Body::from)).await?;
        let (head, mut body) = answer.into_parts();
        if !head.status.is_success() {
            return Err(read_refusal(head.status.as_u16(), &mut body).await);
        }
        let (mut pieces, mut objects) = (ListSplitter::default(), Vec::new());
        while let Some(bytes) = next_bytes(&mut body).await? {
            let read = |object: &[u8]| {
                objects.push(serde_json::from_slice(object).map_err(|cause| cause.to_string())?);
                Ok(())
            };
            pieces.push_bytes(&bytes, read).map_err(unreadable_error)?;
        }
        let rest = pieces.finish().map_err(unreadable_error)?;
        let head: ListHead = serde_json::from_slice(&rest).map_err(kube::Error::SerdeError)?;
        if head.metadata.resource_version.is_empty() {
            return Err(unreadable_error("the list has no resource version".to_owned()));
        }
        let objects = objects.into_iter().filter_map(|one: SlimObject<O, T>| one.object);
        Ok((objects.collect(), head.metadata.resource_version))
    }
}

/// Returns the event of a watch, and the version to resume from; `None` as the version: a new list is required.
fn watch_result<O, T>(
    change: kube::Result<WatchEvent<SlimObject<O, T>>>,
    version: String,
) -> (Option<watcher::Result<ListEvent<T>>>, Option<String>) {
    let (changed, event): (_, fn(T) -> ListEvent<T>) = match change {
        Ok(WatchEvent::Added(changed) | WatchEvent::Modified(changed)) => (changed, ListEvent::Applied),
        Ok(WatchEvent::Deleted(changed)) => (changed, ListEvent::Deleted),
        Ok(WatchEvent::Bookmark(mark)) => return (None, Some(mark.metadata.resource_version)),
        Ok(WatchEvent::Error(status)) => {
            let is_lost = status.code == 410;
            return (Some(Err(Error::WatchError(status.boxed()))), (!is_lost).then_some(version));
        }
        Err(error) => return (Some(Err(Error::WatchFailed(error))), Some(version)),
    };
    match changed.meta().resource_version.clone() {
        Some(version) => (changed.object.map(event).map(Ok), Some(version)),
        None => (Some(Err(Error::NoResourceVersion)), None),
    }
}

async fn next_bytes(body: &mut Body) -> kube::Result<Option<hyper::body::Bytes>> {
    loop {
        let frame = future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context));
        let frame = tokio::time::timeout(PAUSE, frame).await;
        match frame.map_err(|_| unreadable_error(format!("no data for {} s", PAUSE.as_secs())))? {
            None => return Ok(None),
            Some(frame) => {
                if let Ok(bytes) = frame?.into_data() {
                    return Ok(Some(bytes));
                }
            }
        }
    }
}

async fn read_refusal(code: u16, body: &mut Body) -> kube::Error {
    let mut text = Vec::new();
    while text.len() < MAX_ERROR
        && let Ok(Some(bytes)) = next_bytes(body).await
    {
        text.extend_from_slice(&bytes);
    }
    let status = serde_json::from_slice::<Status>(&text);
    let status = status.unwrap_or_else(|_| {
        Status::failure(&format!("the API server answers {code}"), "Unknown").with_code(code)
    });
    kube::Error::Api(status.boxed())
}

fn unreadable_error(why: String) -> kube::Error {
    kube::Error::Service(why.into())
}
