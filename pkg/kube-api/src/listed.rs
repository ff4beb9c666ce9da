//! Watches that begin with an ordinary list, for API servers without streaming lists. Unlike kube's own watcher, the list is read
//! object by object as it arrives.

use std::{collections::VecDeque, fmt::Debug, future, pin::Pin, time::Duration};

use futures_util::{
    Stream, StreamExt as _,
    stream::{self, BoxStream},
};
use hyper::body::Body as _;
use kube::{
    Api, Resource,
    api::{ListParams, VersionMatch, WatchParams},
    client::Body,
    core::{ApiResource, Request, Status, WatchEvent},
    runtime::watcher::{Error, Event},
};
use model::ObjectMeta;
use serde::{Deserialize, de::DeserializeOwned};

use crate::{
    Collection,
    bounded::{BodyBound, MAX_ERROR},
    pieces::ListSplitter,
};

/// Maximum time without data within a list.
const PAUSE: Duration = Duration::from_secs(30);

/// A followed collection, and its client.
pub(crate) struct FollowedCollection<K> {
    pub(crate) client: kube::Client,
    pub(crate) api: Api<K>,
    pub(crate) resource: ApiResource,
    pub(crate) collection: Collection,
}

type WatchResult<K> = Result<Event<K>, Error>;
type WatchStream<K> = BoxStream<'static, kube::Result<WatchEvent<K>>>;

enum ListWatchState<K> {
    Begin,
    Listed(String),
    Watching(String, WatchStream<K>),
}

#[derive(Deserialize)]
struct ListHead {
    metadata: ObjectMeta,
}

impl<K> FollowedCollection<K>
where
    K: Resource<DynamicType = ApiResource> + DeserializeOwned + Clone + Debug + Send + 'static,
{
    /// Returns a list, then each change, and a new list when changes are lost. Errors are reported; the next step retries.
    pub(crate) fn events(self) -> impl Stream<Item = WatchResult<K>> + Send {
        let begin = (self, ListWatchState::Begin, VecDeque::new());
        stream::unfold(begin, |(followed, mut state, mut due)| async move {
            loop {
                if let Some(event) = due.pop_front() {
                    return Some((event, (followed, state, due)));
                }
                state = followed.advance_state(state, &mut due).await;
            }
        })
    }

    async fn advance_state(
        &self,
        state: ListWatchState<K>,
        due: &mut VecDeque<WatchResult<K>>,
    ) -> ListWatchState<K> {
        match state {
            ListWatchState::Begin => match self.list_objects().await {
                Ok((objects, version)) => {
                    due.push_back(Ok(Event::Init));
                    due.extend(objects.into_iter().map(|object| Ok(Event::InitApply(object))));
                    due.push_back(Ok(Event::InitDone));
                    ListWatchState::Listed(version)
                }
                Err(error) => {
                    due.push_back(Err(Error::InitialListFailed(error)));
                    ListWatchState::Begin
                }
            },
            ListWatchState::Listed(version) => {
                let params = WatchParams {
                    field_selector: self.collection.field_selector.clone(),
                    label_selector: self.collection.label_selector.clone(),
                    ..WatchParams::default()
                };
                match self.api.watch(&params, &version).await {
                    Ok(changes) => ListWatchState::Watching(version, changes.boxed()),
                    Err(error) => {
                        let is_lost = matches!(&error, kube::Error::Api(status) if status.code == 410);
                        due.push_back(Err(Error::WatchStartFailed(error)));
                        if is_lost { ListWatchState::Begin } else { ListWatchState::Listed(version) }
                    }
                }
            }
            ListWatchState::Watching(version, mut changes) => {
                let Some(change) = changes.next().await else { return ListWatchState::Listed(version) };
                let (event, version) = watch_result(change, version);
                due.extend(event);
                version.map_or(ListWatchState::Begin, |version| ListWatchState::Watching(version, changes))
            }
        }
    }

    async fn list_objects(&self) -> kube::Result<(Vec<K>, String)> {
        let params = ListParams {
            field_selector: self.collection.field_selector.clone(),
            label_selector: self.collection.label_selector.clone(),
            resource_version: Some("0".to_owned()),
            version_match: Some(VersionMatch::NotOlderThan),
            ..ListParams::default()
        };
        let path = K::url_path(&self.resource, self.collection.namespace.as_deref());
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
        Ok((objects, head.metadata.resource_version))
    }
}

/// Returns the event of a watch, and the version to resume from; `None` as the version: a new list is required.
fn watch_result<K: Resource>(
    change: kube::Result<WatchEvent<K>>,
    version: String,
) -> (Option<WatchResult<K>>, Option<String>) {
    let of = |object: &K| object.meta().resource_version.clone().filter(|version| !version.is_empty());
    match change {
        Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => match of(&object) {
            Some(version) => (Some(Ok(Event::Apply(object))), Some(version)),
            None => (Some(Err(Error::NoResourceVersion)), None),
        },
        Ok(WatchEvent::Deleted(object)) => match of(&object) {
            Some(version) => (Some(Ok(Event::Delete(object))), Some(version)),
            None => (Some(Err(Error::NoResourceVersion)), None),
        },
        Ok(WatchEvent::Bookmark(mark)) => (None, Some(mark.metadata.resource_version)),
        Ok(WatchEvent::Error(status)) => {
            let is_lost = status.code == 410;
            (Some(Err(Error::WatchError(status.boxed()))), (!is_lost).then_some(version))
        }
        Err(error) => (Some(Err(Error::WatchFailed(error))), Some(version)),
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
