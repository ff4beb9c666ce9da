//! Facts from the API server.

use std::{
    collections::BTreeMap,
    future::{self, Future},
    pin::Pin,
    time::{Duration, Instant},
};

use enrolment::{Fact, UnconfirmedObjects, WatchedCollection};
use futures_util::{Stream, StreamExt as _, future::Either, stream};
use kube_api::{ApiErrorKind, Collection, Error, KubeClient, ListEvent};
use model::{Namespace, ObjectMeta, Pod, PodName, PodUid};
use retry::{Backoff, LastError};
use serde::de::DeserializeOwned;
use tracing::{info, warn};

use crate::{
    belief::{CollectionCache, DoubtOutcome, ObjectAnswer},
    slim::TrimmedObject,
};

/// Timeout of the API server for one object.
const LIMIT: Duration = Duration::from_secs(5);
/// Delay between two requests, so that a node whose list lacks all of its pods sends at most ten in a second.
const PACE: Duration = Duration::from_millis(100);
/// Time for which an observation of our own pod is valid.
const WITNESSED: Duration = Duration::from_secs(1);
/// Delay before the next list after one that is not credible, doubled after each further one up to the last.
const RELIST: Duration = Duration::from_secs(1);
const LAST_RELIST: Duration = Duration::from_secs(30);

/// Sends the facts about the pods of this node and about all namespaces, while it is polled. While the API server is unavailable
/// nothing is sent; afterwards everything is sent again if necessary.
///
/// A list is served from a cache, which may be older than the facts sent before. Known objects that it lacks or shows in an older
/// state stay as they are, as [`Fact::Unconfirmed`], until a request for that object alone resolves it. `own` is our pod, if the
/// API server knows it: a first list without it is not sent, and while it is missing, no other object counts as deleted because it
/// is missing.
///
/// `send` must not block.
pub async fn follow_api(client: KubeClient, node: &str, own: Option<PodName>, send: impl Fn(Fact) + Send) {
    let mut following = ApiFollower::new(client, node, own, FollowScope::PodsAndNamespaces, send);
    let namespaces = Box::pin(following.watch_namespaces());
    following.follow_until_refused(namespaces).await; // returns only in a scope with pods alone
}

/// Follows facts like [`follow_api`], but for the pods of this node alone. Ends when an API server that is ready refuses to list or
/// watch them, and returns the refusal: one that has just started refuses everything until it has read its roles.
pub async fn follow_pods(
    client: KubeClient,
    node: &str,
    own: Option<PodName>,
    send: impl Fn(Fact) + Send,
) -> Error {
    let mut following = ApiFollower::new(client, node, own, FollowScope::Pods, send);
    following.follow_until_refused(Box::pin(stream::pending())).await
}

/// Followed collections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FollowScope {
    PodsAndNamespaces,
    /// Only while the API server permits it: a role need not.
    Pods,
}

type ApiQuery = Pin<Box<dyn Future<Output = QueryAnswer> + Send>>;

type WatchResult<T> = Result<ListEvent<TrimmedObject<T>>, Error>;

enum CollectionEvent {
    Pods(Box<ListEvent<TrimmedObject<Pod>>>),
    Namespaces(Box<ListEvent<TrimmedObject<Namespace>>>),
    Failed(WatchedCollection, Error),
}

impl CollectionEvent {
    fn pod_event(event: WatchResult<Pod>) -> CollectionEvent {
        let failed = |error| CollectionEvent::Failed(WatchedCollection::Pods, error);
        event.map_or_else(failed, |event| CollectionEvent::Pods(Box::new(event)))
    }

    fn namespace_event(event: WatchResult<Namespace>) -> CollectionEvent {
        let failed = |error| CollectionEvent::Failed(WatchedCollection::Namespaces, error);
        event.map_or_else(failed, |event| CollectionEvent::Namespaces(Box::new(event)))
    }
}

/// Response of the API server about one object.
enum QueryAnswer {
    Pod(PodName, PodUid, ObjectReply<Pod>),
    Namespace(String, PodUid, ObjectReply<Namespace>),
}

/// An object, or the meaning of its absence; and whether our own pod exists.
struct ObjectReply<T> {
    answer: ObjectAnswer,
    object: Option<Box<T>>,
    witnessed: Option<Instant>,
}

struct ApiFollower<F> {
    client: KubeClient,
    node: String,
    own: Option<PodName>,
    scope: FollowScope,
    send: F,
    pods: CollectionCache<PodName>,
    namespaces: CollectionCache<String>,
    reported_unconfirmed: UnconfirmedObjects,
    synced: bool,
    /// Whether the API server has shown our own pod, and when last.
    has_own: bool,
    witnessed: Option<Instant>,
    asked: Instant,
    last: LastError,
    /// Last error of each watch.
    watch_errors: BTreeMap<WatchedCollection, LastError>,
}

impl<F: Fn(Fact) + Send> ApiFollower<F> {
    fn new(client: KubeClient, node: &str, own: Option<PodName>, scope: FollowScope, send: F) -> Self {
        ApiFollower {
            client,
            node: node.to_owned(),
            own,
            scope,
            send,
            pods: CollectionCache::default(),
            namespaces: CollectionCache::default(),
            reported_unconfirmed: UnconfirmedObjects::default(),
            synced: false,
            has_own: false,
            witnessed: None,
            asked: Instant::now(),
            last: LastError::default(),
            watch_errors: BTreeMap::new(),
        }
    }

    /// Follows until the API server refuses, which ends only [`FollowScope::Pods`].
    async fn follow_until_refused(
        &mut self,
        mut namespaces: Pin<Box<impl Stream<Item = WatchResult<Namespace>>>>,
    ) -> Error {
        let mut attempts = Backoff::new(RELIST, LAST_RELIST).start_attempts();
        loop {
            // Restarted after a first list that is not credible.
            let pods = Box::pin(self.watch_pods()).map(CollectionEvent::pod_event);
            let mut events = stream::select(pods, namespaces.as_mut().map(CollectionEvent::namespace_event));
            let mut asking: Option<ApiQuery> = None;
            loop {
                let question = asking.get_or_insert_with(|| self.next_question());
                match futures_util::future::select(events.next(), question).await {
                    Either::Left((None, _)) => future::pending().await, // a watch never ends by itself
                    Either::Left((Some(CollectionEvent::Failed(collection, error)), _)) => {
                        let ends = self.scope == FollowScope::Pods && error.kind() == ApiErrorKind::Refused;
                        if ends && self.client.server_is_ready(LIMIT, None).await {
                            return error;
                        }
                        self.record_watch(collection, Err(&error));
                    }
                    Either::Left((Some(CollectionEvent::Pods(event)), _)) => {
                        self.record_watch(WatchedCollection::Pods, Ok(()));
                        if !self.is_credible(&event).await {
                            break;
                        }
                        asking = asking.filter(|_| !self.apply_pods(*event));
                    }
                    Either::Left((Some(CollectionEvent::Namespaces(event)), _)) => {
                        self.record_watch(WatchedCollection::Namespaces, Ok(()));
                        asking = asking.filter(|_| !self.apply_namespaces(*event));
                    }
                    Either::Right((answered, _)) => {
                        self.apply_answer(answered);
                        asking = None;
                    }
                }
            }
            kube_api::sleep_for(attempts.record_failure()).await;
        }
    }

    fn watch_pods(&self) -> impl Stream<Item = WatchResult<Pod>> + Send + use<F> {
        let of_node = Some(format!("spec.nodeName={}", self.node));
        self.client.watch_all::<Pod, TrimmedObject<Pod>>(&core_collection("Pod", of_node))
    }

    fn watch_namespaces(&self) -> impl Stream<Item = WatchResult<Namespace>> + Send + use<F> {
        self.client.watch_all::<Namespace, TrimmedObject<Namespace>>(&core_collection("Namespace", None))
    }

    /// Sends each failure of a watch, and its recovery. Logs each error once.
    fn record_watch(&mut self, collection: WatchedCollection, result: Result<(), &Error>) {
        let resource = collection.as_str();
        let last = self.watch_errors.entry(collection).or_default();
        match result {
            Ok(()) if !last.clear() => return,
            Ok(()) => info!(target: "ambient", resource, "watch restored"),
            Err(error) if last.replace(error) => warn!(target: "ambient", resource, %error, "watch failed"),
            Err(_) => {}
        }
        (self.send)(Fact::Watched(collection, result.map_err(ToString::to_string)));
    }

    /// Whether a first list of pods is credible: without earlier facts it can be compared only with the existence of our own pod.
    async fn is_credible(&mut self, event: &ListEvent<TrimmedObject<Pod>>) -> bool {
        let (ListEvent::Reset(list), false) = (event, self.synced) else { return true };
        let Some(own) = self.own.clone() else { return true };
        if list.iter().any(|slim| slim.object.name() == own) {
            return true;
        }
        let here = match self.client.get::<Pod>(&format!("our own pod {own}"), &own.api_path(), LIMIT).await {
            Ok(pod) => pod.spec.node_name,
            // The agent was started by hand, or lacks the permission.
            Err(error) if matches!(error.kind(), ApiErrorKind::NotFound | ApiErrorKind::Refused) => {
                return true;
            }
            Err(error) => {
                if self.last.replace(&error) {
                    warn!(target: "ambient", pod = %own, %error, "cannot read the agent's own pod");
                }
                return false;
            }
        };
        match here.as_str() {
            "" => return true,
            here if here == self.node => {
                if self.last.replace(&"stale") {
                    warn!(target: "ambient", pod = %own, "the API server's list of pods lacks the agent's own pod; ignoring the stale list");
                }
            }
            here => {
                if self.last.replace(&here) {
                    warn!(target: "ambient", pod = %own, runs_on = here, node_name = self.node, "the agent's own pod runs on another node than NODE_NAME; ignoring the list of pods");
                }
            }
        }
        false
    }

    /// Applies an event; returns true if the next request changes.
    fn apply_pods(&mut self, event: ListEvent<TrimmedObject<Pod>>) -> bool {
        let now = Instant::now();
        let fact = match event {
            ListEvent::Reset(list) => {
                let versions = list.iter().map(|slim| (slim.object.name(), slim.version()));
                self.pods.apply_list(versions, |_| true, now);
                self.synced = true;
                Some(Fact::Pods(list.into_iter().map(|slim| slim.object).collect()))
            }
            ListEvent::Applied(slim) => {
                let is_accepted = self.pods.apply_event(slim.object.name(), slim.version(), now);
                is_accepted.then(|| Fact::Pod(Box::new(slim.object)))
            }
            ListEvent::Deleted(slim) => {
                let (name, uid) = (slim.object.name(), slim.object.metadata.uid);
                self.pods.apply_delete(&name, &uid);
                Some(Fact::PodGone { name, uid })
            }
        };
        self.has_own |= self.own.as_ref().is_some_and(|own| self.pods.is_known(own));
        self.send_fact(fact)
    }

    fn apply_namespaces(&mut self, event: ListEvent<TrimmedObject<Namespace>>) -> bool {
        let now = Instant::now();
        let fact = match event {
            ListEvent::Reset(list) => {
                let versions = list.iter().map(|slim| (slim.object.metadata.name.clone(), slim.version()));
                let has_pods = |name: &String| self.pods.known_names().any(|pod| pod.namespace == *name);
                self.namespaces.apply_list(versions, has_pods, now);
                Some(Fact::Namespaces(list.into_iter().map(|slim| slim.object).collect()))
            }
            ListEvent::Applied(slim) => {
                let name = slim.object.metadata.name.clone();
                let is_accepted = self.namespaces.apply_event(name, slim.version(), now);
                is_accepted.then(|| Fact::Namespace(Box::new(slim.object)))
            }
            ListEvent::Deleted(slim) => {
                let meta = slim.object.metadata;
                let is_gone = self.namespaces.apply_delete(&meta.name, &meta.uid);
                is_gone.then_some(Fact::NamespaceGone(meta.name))
            }
        };
        self.send_fact(fact)
    }

    /// Sends the fact of an event after the unconfirmed objects, so that a list is not taken for complete. Returns true if these
    /// have changed.
    fn send_fact(&mut self, fact: Option<Fact>) -> bool {
        let others = self.report_unconfirmed();
        if let Some(fact) = fact {
            (self.send)(fact);
        }
        others
    }

    /// Reports unconfirmed objects. Returns true if they have changed.
    fn report_unconfirmed(&mut self) -> bool {
        let unconfirmed = UnconfirmedObjects {
            pods: self.pods.unconfirmed_names(),
            namespaces: self.namespaces.unconfirmed_names(),
        };
        if unconfirmed == self.reported_unconfirmed {
            return false;
        }
        let number = unconfirmed.pods.len() + unconfirmed.namespaces.len();
        let first = unconfirmed.pods.first().map(|pod| format!("pod {pod}"));
        let first = first.or_else(|| unconfirmed.namespaces.first().map(|name| format!("namespace {name}")));
        match first {
            Some(first) if self.reported_unconfirmed == UnconfirmedObjects::default() => {
                warn!(target: "ambient", objects = number, first, "the API server's list is stale or lacks known objects; keeping them until each is confirmed");
            }
            Some(_) => {}
            None => info!(target: "ambient", "all known objects are confirmed"),
        }
        self.reported_unconfirmed = unconfirmed.clone();
        (self.send)(Fact::Unconfirmed(unconfirmed));
        true
    }

    /// Waits until a request is due, and sends it; never completes if there is none.
    fn next_question(&mut self) -> ApiQuery {
        let (pod, namespace) = (self.pods.next_query(), self.namespaces.next_query());
        let client = self.client.clone();
        let witness = self.own.clone().filter(|_| self.has_own);
        let witness = OwnPodWitness { own: witness, before: self.witnessed };
        let earliest = self.asked + PACE;
        let is_first = |due: &Instant| namespace.as_ref().is_none_or(|(_, _, other)| due <= other);
        match (pod.filter(|(_, _, due)| is_first(due)), namespace) {
            (Some((name, uid, due)), _) => Box::pin(async move {
                wait_until(due.max(earliest)).await;
                let reply =
                    query_object::<Pod>(&client, &format!("pod {name}"), &name.api_path(), witness).await;
                QueryAnswer::Pod(name, uid, reply)
            }),
            (None, Some((name, uid, due))) => Box::pin(async move {
                wait_until(due.max(earliest)).await;
                let path = format!("/api/v1/namespaces/{name}");
                let reply =
                    query_object::<Namespace>(&client, &format!("namespace {name}"), &path, witness).await;
                QueryAnswer::Namespace(name, uid, reply)
            }),
            (None, None) => Box::pin(future::pending()),
        }
    }

    fn apply_answer(&mut self, answered: QueryAnswer) {
        let now = Instant::now();
        self.asked = now;
        match answered {
            QueryAnswer::Pod(name, uid, ObjectReply { answer, object, witnessed }) => {
                self.witnessed = witnessed;
                let object = object.filter(|pod| pod.spec.node_name == self.node);
                let answer = answer.restrict_to_node(&uid, object.is_some());
                let outcome = self.pods.apply_answer(&name, &uid, answer, now);
                if matches!(outcome, DoubtOutcome::Gone | DoubtOutcome::Replaced) {
                    (self.send)(Fact::PodGone { name, uid });
                }
                if let (DoubtOutcome::There | DoubtOutcome::Replaced, Some(pod)) = (outcome, object) {
                    (self.send)(Fact::Pod(pod));
                }
            }
            QueryAnswer::Namespace(name, uid, ObjectReply { answer, object, witnessed }) => {
                self.witnessed = witnessed;
                let outcome = self.namespaces.apply_answer(&name, &uid, answer, now);
                if outcome == DoubtOutcome::Gone {
                    (self.send)(Fact::NamespaceGone(name));
                }
                if let (DoubtOutcome::There | DoubtOutcome::Replaced, Some(namespace)) = (outcome, object) {
                    (self.send)(Fact::Namespace(namespace));
                }
            }
        }
        self.report_unconfirmed();
    }
}

/// Our own pod, if the API server has shown it: a server that denies it is not credible about other pods.
struct OwnPodWitness {
    own: Option<PodName>,
    before: Option<Instant>,
}

impl OwnPodWitness {
    /// Returns when our pod was last observed, by a request unless that is recent; `None`: not confirmed.
    async fn last_witnessed(self, client: &KubeClient) -> Option<Instant> {
        let Some(own) = self.own else { return Some(Instant::now()) };
        if let Some(before) = self.before.filter(|before| before.elapsed() < WITNESSED) {
            return Some(before);
        }
        let there = client.get::<Pod>(&format!("our own pod {own}"), &own.api_path(), LIMIT).await;
        there.ok().map(|_| Instant::now())
    }
}

async fn query_object<T>(
    client: &KubeClient,
    what: &str,
    path: &str,
    witness: OwnPodWitness,
) -> ObjectReply<T>
where
    T: AsRef<ObjectMeta> + DeserializeOwned,
    TrimmedObject<T>: From<T>,
{
    let before = witness.before;
    match client.get::<T>(what, path, LIMIT).await.map(TrimmedObject::from) {
        Ok(slim) if !slim.version().uid.is_empty() => {
            let answer = ObjectAnswer::There(slim.version());
            ObjectReply { answer, object: Some(Box::new(slim.object)), witnessed: before }
        }
        Err(error) if error.kind() == ApiErrorKind::NotFound => {
            let witnessed = witness.last_witnessed(client).await;
            let answer = if witnessed.is_some() { ObjectAnswer::Gone } else { ObjectAnswer::Unknown };
            ObjectReply { answer, object: None, witnessed }
        }
        Ok(_) | Err(_) => ObjectReply { answer: ObjectAnswer::Unknown, object: None, witnessed: before },
    }
}

async fn wait_until(when: Instant) {
    kube_api::sleep_for(when.saturating_duration_since(Instant::now())).await;
}

fn core_collection(kind: &'static str, field_selector: Option<String>) -> Collection {
    Collection { kind, field_selector, ..Collection::default() }
}
