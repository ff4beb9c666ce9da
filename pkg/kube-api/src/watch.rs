//! Watches of single objects.

use futures_util::{
    Stream, StreamExt as _,
    stream::{self, BoxStream},
};
use kube::{
    Api,
    core::{ApiResource, DynamicObject, GroupVersionKind},
    runtime::{WatchStreamExt as _, watcher},
};
use model::describe_error;
use serde::de::DeserializeOwned;

use crate::{Error, KubeClient};

/// Identity of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectRef {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Kind of version `v1`, such as `DaemonSet`.
    pub kind: &'static str,
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
}

impl KubeClient {
    /// Reports the object, and then each change; `None`: it does not exist. Errors are reported too and the watch resumes by
    /// itself, with a back-off from 0.8 to 60 s. The stream never ends.
    pub fn watch_object<T: DeserializeOwned>(
        &self,
        object: &ObjectRef,
    ) -> impl Stream<Item = Result<Option<T>, Error>> + Send + use<T> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(object.group, "v1", object.kind));
        let api: Api<DynamicObject> = Api::namespaced_with(self.kube.clone(), &object.namespace, &resource);
        let doing = format!("watch {} {}/{}", object.kind, object.namespace, object.name);
        follow_object(api, object.name.clone()).default_backoff().map(move |event| match event {
            Ok(event) => event
                .map(parse_object)
                .transpose()
                .map_err(|cause| Error::unavailable(&doing, format!("the object cannot be read: {cause}"))),
            Err(cause) => Err(watch_error(&doing, cause)),
        })
    }
}

/// Follows an object as kube does, but with a new list after a refusal of the watch as too old: kube's watcher would repeat
/// that request forever. Within a watch, it begins with a new list itself.
fn follow_object(
    api: Api<DynamicObject>,
    name: String,
) -> impl Stream<Item = watcher::Result<Option<DynamicObject>>> + Send {
    type Events = BoxStream<'static, watcher::Result<Option<DynamicObject>>>;
    stream::unfold(None, move |open: Option<Events>| {
        let mut events = open.unwrap_or_else(|| watcher::watch_object(api.clone(), &name).boxed());
        async move {
            let event = events.next().await?;
            let is_refused = matches!(
                &event,
                Err(watcher::Error::WatchStartFailed(kube::Error::Api(status))) if status.code == 410
            );
            Some((event, (!is_refused).then_some(events)))
        }
    })
}

fn parse_object<T: DeserializeOwned>(mut object: DynamicObject) -> Result<T, serde_json::Error> {
    object.metadata.managed_fields = None;
    serde_json::to_value(object).and_then(serde_json::from_value)
}

pub(crate) fn watch_error(doing: &str, cause: watcher::Error) -> Error {
    use watcher::Error::{InitialListFailed, WatchError, WatchFailed, WatchStartFailed};
    match cause {
        InitialListFailed(cause) | WatchStartFailed(cause) | WatchFailed(cause) => {
            Error::request(doing.to_owned(), &cause)
        }
        WatchError(status) => Error::request(doing.to_owned(), &kube::Error::Api(status)),
        other => Error::unavailable(doing, describe_error(&other)),
    }
}
