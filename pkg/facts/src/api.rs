//! Facts from the API server.

use std::{future, mem, pin::pin};

use futures_util::{Stream, StreamExt as _, stream};
use kubeio::{Client, Collection, Error, ListEvent, Versioned};
use model::{Namespace, Pod};
use planner::{Fact, facts};
use serde::{Deserialize, Deserializer};

use crate::said::Said;

/// Tells the facts about the pods of this node and about all namespaces, for as long as it is polled. While the API
/// server is away nothing is told; afterwards all is told again if need be.
///
/// `tell` must not block.
pub async fn follow_api(client: Client, node: &str, tell: impl Fn(Fact) + Send) {
    let of_node = Some(format!("spec.nodeName={node}"));
    let pods = client.watch_all::<Slim<Pod>>(&core("Pod", of_node));
    let namespaces = client.watch_all::<Slim<Namespace>>(&core("Namespace", None));
    let pods = without_errors(pods, "pods").map(pod_fact);
    let namespaces = without_errors(namespaces, "namespaces").map(namespace_fact);
    let mut facts = pin!(stream::select(pods, namespaces));
    while let Some(fact) = facts.next().await {
        tell(fact);
    }
}

fn core(kind: &'static str, field_selector: Option<String>) -> Collection {
    Collection { group: "", kind, namespace: None, field_selector }
}

fn without_errors<T>(
    events: impl Stream<Item = Result<ListEvent<T>, Error>>,
    what: &'static str,
) -> impl Stream<Item = ListEvent<T>> {
    let mut said = Said::default();
    events.filter_map(move |event| {
        let event = event.map_err(|error| said.warn(&error)).ok();
        if event.is_some() {
            said.forget(format_args!("the API server tells about {what} again"));
        }
        future::ready(event)
    })
}

fn pod_fact(event: ListEvent<Slim<Pod>>) -> Fact {
    match event {
        ListEvent::Reset(pods) => Fact::Pods(pods.into_iter().map(|slim| slim.object).collect()),
        ListEvent::Applied(slim) => Fact::Pod(Box::new(slim.object)),
        ListEvent::Deleted(slim) => Fact::PodGone { name: slim.object.name(), uid: slim.object.metadata.uid },
    }
}

fn namespace_fact(event: ListEvent<Slim<Namespace>>) -> Fact {
    match event {
        ListEvent::Reset(all) => Fact::Namespaces(all.into_iter().map(|slim| slim.object).collect()),
        ListEvent::Applied(slim) => Fact::Namespace(Box::new(slim.object)),
        ListEvent::Deleted(slim) => Fact::NamespaceGone(slim.object.metadata.name),
    }
}

/// Trimmed as soon as it is read, so that a list of them is small.
struct Slim<T> {
    object: T,
    version: String,
}

impl<T> Versioned for Slim<T> {
    fn take_version(&mut self) -> String {
        mem::take(&mut self.version)
    }
}

impl<'de> Deserialize<'de> for Slim<Pod> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut object = Pod::deserialize(deserializer)?;
        let version = object.take_version();
        facts::trim(&mut object);
        Ok(Slim { object, version })
    }
}

impl<'de> Deserialize<'de> for Slim<Namespace> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut object = Namespace::deserialize(deserializer)?;
        let version = object.take_version();
        facts::trim_namespace(&mut object);
        Ok(Slim { object, version })
    }
}
