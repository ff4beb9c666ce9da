//! Watches of collections.

use std::future;

use futures_util::{Stream, StreamExt as _};
use kube::{
    Api,
    core::{ApiResource, GroupVersionKind},
    runtime::{
        WatchStreamExt as _,
        utils::StreamBackoff,
        watcher::{self, Config, DefaultBackoff, Event, InitialListStrategy, watcher},
    },
};
use model::ObjectMeta;
use serde::de::DeserializeOwned;

use crate::{Error, KubeClient, listed::FollowedCollection, slim::SlimObject, watch::watch_error};

/// Selection of the objects to watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collection {
    /// Kind of the core group, such as `Pod`.
    pub kind: &'static str,
    /// Namespace; `None`: all, or cluster-scoped objects.
    pub namespace: Option<String>,
    /// Field selector, such as `spec.nodeName=n1`.
    pub field_selector: Option<String>,
    /// Label selector, such as `app=web,tier!=db`.
    pub label_selector: Option<String>,
}

/// Event of a collection: all of its objects, or a change of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListEvent<T> {
    /// Complete list: objects reported before and missing here no longer exist.
    Reset(Vec<T>),
    /// New or changed object.
    Applied(T),
    /// Last state of an object that was deleted, or no longer matches the selection.
    Deleted(T),
}

impl KubeClient {
    /// Reports all objects, and then each change. Errors are reported too and the watch resumes by itself, with a back-off from 0.8
    /// to 60 s; after too long an interruption a new [`ListEvent::Reset`] follows. The stream never ends.
    ///
    /// Objects are received one by one (a streaming list), each as an `O`, so that memory never holds a whole list, only a `T` of
    /// each object. API servers without streaming lists, which are optional before Kubernetes 1.34 and need etcd 3.5, get ordinary
    /// list requests, and the response is split into its objects as it arrives. Both are served from the server's cache, and
    /// therefore not in pages.
    ///
    /// A list with an object that is no `O` is reported as an error, never as a list: a receiver that took it for complete would
    /// take that object for deleted.
    pub fn watch_all<O, T>(
        &self,
        collection: &Collection,
    ) -> impl Stream<Item = Result<ListEvent<T>, Error>> + Send + use<O, T>
    where
        O: DeserializeOwned + AsRef<ObjectMeta> + 'static,
        T: From<O> + Send + 'static,
    {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", collection.kind));
        let api: Api<SlimObject<O, T>> = match &collection.namespace {
            Some(namespace) => Api::namespaced_with(self.kube.clone(), namespace, &resource),
            None => Api::all_with(self.kube.clone(), &resource),
        };
        let mut config = Config::default().any_semantic();
        config.field_selector.clone_from(&collection.field_selector);
        config.label_selector.clone_from(&collection.label_selector);
        config.initial_list_strategy = InitialListStrategy::StreamingList;
        let streamed = watcher(api.clone(), config).default_backoff();
        let streamed = streamed.take_while(|event| future::ready(!cannot_stream(event)));
        let mut gathered = GatheredList(None);
        let streamed = streamed.filter_map(move |event| future::ready(gathered.handle_event(event)));
        let followed =
            FollowedCollection { client: self.kube.clone(), api, resource, collection: collection.clone() };
        let listed = StreamBackoff::new(followed.events(), DefaultBackoff::default());
        let doing = format!("watch objects of kind {}", collection.kind);
        streamed.chain(listed).map(move |event| event.map_err(|cause| watch_error(&doing, cause)))
    }
}

/// Whether an error is that of an API server without streaming lists: the request is invalid, or (500, within the stream) its
/// storage lacks the feature. If the cause was another one, an ordinary list does no harm. Also whether the request for a watch is
/// refused as too old, which kube's watcher would repeat forever.
fn cannot_stream<K>(event: &watcher::Result<Event<K>>) -> bool {
    use watcher::Error::{WatchError, WatchStartFailed};
    match event {
        Err(WatchStartFailed(kube::Error::Api(status))) => matches!(status.code, 400 | 410 | 422 | 500),
        Err(WatchError(status)) => matches!(status.code, 400 | 422 | 500),
        _ => false,
    }
}

/// The list being received; `None` if it is incomplete, or none is being received.
struct GatheredList<T>(Option<Vec<T>>);

impl<T> GatheredList<T> {
    fn handle_event<O>(
        &mut self,
        event: watcher::Result<Event<SlimObject<O, T>>>,
    ) -> Option<watcher::Result<ListEvent<T>>> {
        match event {
            Ok(Event::Init) => {
                self.0 = Some(Vec::new());
                None
            }
            Ok(Event::InitApply(one)) => {
                if let Some(list) = &mut self.0 {
                    list.extend(one.object);
                }
                None
            }
            Ok(Event::InitDone) => self.0.take().map(|list| Ok(ListEvent::Reset(list))),
            Ok(Event::Apply(one)) => one.object.map(|one| Ok(ListEvent::Applied(one))),
            Ok(Event::Delete(one)) => one.object.map(|one| Ok(ListEvent::Deleted(one))),
            Err(cause) => {
                self.0 = None;
                Some(Err(cause))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::Resource as _;
    use model::Pod;
    use serde_json::json;

    fn slim(version: &str) -> SlimObject<Pod, Pod> {
        serde_json::from_value(json!({"metadata": {"name": version, "resourceVersion": version}})).unwrap()
    }

    fn told(events: Vec<watcher::Result<Event<SlimObject<Pod, Pod>>>>) -> Vec<String> {
        let mut gathered = GatheredList(None);
        let told = events.into_iter().filter_map(|event| gathered.handle_event(event));
        let words = told.map(|told| match told {
            Ok(ListEvent::Reset(list)) => {
                format!("={}", list.into_iter().map(|pod| pod.metadata.name).collect::<Vec<_>>().join(","))
            }
            Ok(ListEvent::Applied(pod)) => format!("+{}", pod.metadata.name),
            Ok(ListEvent::Deleted(pod)) => format!("-{}", pod.metadata.name),
            Err(_) => "!".to_owned(),
        });
        words.collect()
    }

    #[test]
    fn the_watch_has_the_version_and_the_reader_the_object() {
        let pod = slim("7");
        assert_eq!(pod.meta().resource_version.as_deref(), Some("7"));
        assert_eq!(pod.object.unwrap().metadata.name, "7");
        assert_eq!(slim("").meta().resource_version, None);
    }

    #[test]
    fn a_list_is_told_when_it_is_complete_and_not_with_a_hole() {
        let apply = |version: &str| Ok(Event::Apply(slim(version)));
        let listed = |version: &str| Ok(Event::InitApply(slim(version)));
        let broken = || Err(watcher::Error::NoResourceVersion);
        let (init, done) = (|| Ok(Event::Init), || Ok(Event::InitDone));
        for (events, expected) in [
            (vec![init(), listed("1"), listed("2"), done(), apply("3")], &["=1,2", "+3"][..]),
            (vec![init(), done(), Ok(Event::Delete(slim("4")))], &["=", "-4"]),
            (vec![init(), listed("1"), init(), listed("2"), done()], &["=2"]),
            (vec![init(), listed("1"), broken(), listed("2"), done(), apply("3")], &["!", "+3"]),
            (vec![init(), broken(), init(), listed("2"), done()], &["!", "=2"]),
        ] {
            assert_eq!(told(events), expected);
        }
    }
}
