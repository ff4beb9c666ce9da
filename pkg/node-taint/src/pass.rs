//! The work under one configuration: watches and taint changes.

use std::time::Instant;

use futures_util::{
    StreamExt as _,
    future::{self, BoxFuture},
    stream::{self, BoxStream, FuturesUnordered, SelectAll},
};
use kube_api::{ApiErrorKind, Collection, Error, KubeClient, ListEvent, TaintChange};
use model::{Node, ObjectMeta, Pod};
use retry::LastError;
use serde::de::DeserializeOwned;
use tokio::time::sleep_until;
use tracing::{debug, info, warn};

use crate::{
    NodeIndex, NodeObservation, NodeVerdict, ObservedNode, PodRequirement, ReadinessConfig, ReadinessPod,
    TAINT, TaintQueue,
};

/// Maximum number of concurrent changes.
const MAX_CHANGES: usize = 8;

struct ChangeOutcome {
    node: String,
    change: TaintChange,
    /// Whether anything was changed.
    result: Result<bool, Error>,
}

/// Taints of nodes under one configuration.
pub(crate) struct TaintPass<'a> {
    client: &'a KubeClient,
    pub(crate) index: NodeIndex,
    queue: TaintQueue,
    observed: SelectAll<BoxStream<'a, NodeObservation>>,
    changes: FuturesUnordered<BoxFuture<'a, ChangeOutcome>>,
    change_error: LastError,
}

impl<'a> TaintPass<'a> {
    pub(crate) fn new(
        client: &'a KubeClient,
        config: &ReadinessConfig,
        node_selector: &str,
    ) -> TaintPass<'a> {
        let pods =
            config.requirements.iter().enumerate().map(|(number, pods)| watch_pods(client, number, pods));
        let observed = stream::select_all(pods.chain([watch_nodes(client, node_selector)]));
        TaintPass {
            client,
            index: NodeIndex::new(config),
            queue: TaintQueue::default(),
            observed,
            changes: FuturesUnordered::new(),
            change_error: LastError::default(),
        }
    }

    /// Follows nodes and pods while it is polled.
    pub(crate) async fn run(&mut self) {
        loop {
            self.process_event().await;
        }
    }

    /// Returns when every node was listed and all taints are as desired.
    pub(crate) async fn reconcile_nodes(&mut self) {
        while !(self.index.is_complete() && self.queue.is_empty()) {
            self.process_event().await;
        }
    }

    /// Returns the nodes that need a change; `None` if unknown.
    pub(crate) fn unsettled_nodes(&self) -> Option<Vec<&str>> {
        self.index.is_complete().then(|| self.queue.pending_nodes().collect())
    }

    /// Waits for an event, and handles it.
    async fn process_event(&mut self) {
        let has_room = self.changes.len() < MAX_CHANGES;
        tokio::select! {
            biased;
            Some(outcome) = self.changes.next() => self.finish_change(outcome),
            Some(observation) = self.observed.next() => self.apply_observation(observation),
            () = wait_until(self.queue.next_due()), if has_room => {}
        }
        self.start_changes();
    }

    fn apply_observation(&mut self, observation: NodeObservation) {
        let was_complete = self.index.is_complete();
        for node in self.index.observe(observation) {
            match self.index.needed_change(&node) {
                Some(_) => self.queue.mark_pending(&node, Instant::now()),
                None => debug!(target: "taint", node, "node needs no change"),
            }
        }
        if self.index.is_complete() && !was_complete {
            let (nodes, tainted) = self.index.node_counts();
            info!(target: "taint", nodes, tainted, "all nodes are known");
        }
    }

    fn start_changes(&mut self) {
        while self.changes.len() < MAX_CHANGES
            && let Some(node) = self.queue.take_due(Instant::now())
        {
            match self.index.needed_change(&node) {
                None => self.queue.record_success(&node),
                Some(change) => {
                    let client = self.client;
                    self.changes.push(Box::pin(async move {
                        let result = client.change_node_taint(&node, TAINT, change).await;
                        ChangeOutcome { node, change, result }
                    }));
                }
            }
        }
    }

    fn finish_change(&mut self, outcome: ChangeOutcome) {
        let ChangeOutcome { node, change, result } = outcome;
        match result {
            Ok(is_changed) => {
                self.change_error.clear();
                if is_changed {
                    log_change(&node, change, &self.index.verdict(&node));
                }
                self.observe_again(&node, change);
            }
            Err(error) if error.kind() == ApiErrorKind::NotFound => self.queue.record_success(&node),
            Err(error) => {
                if error.kind() == ApiErrorKind::Conflict {
                    debug!(target: "taint", node, %error, "node changed meanwhile; trying again");
                } else if self.change_error.replace(&error) {
                    warn!(target: "taint", node, taint = TAINT.key, %error, "cannot change the taint; trying again");
                }
                self.queue.schedule_retry(&node, Instant::now());
            }
        }
    }

    /// Handles a completed change. Only the watch shows a node's current taints, because it may show a later change by another
    /// component before the response to ours arrives.
    fn observe_again(&mut self, node: &str, made: TaintChange) {
        match self.index.needed_change(node) {
            None => self.queue.record_success(node),
            Some(needed) if needed == made => self.queue.schedule_retry(node, Instant::now()),
            Some(_) => {
                self.queue.record_success(node);
                self.queue.mark_pending(node, Instant::now());
            }
        }
    }
}

fn log_change(node: &str, change: TaintChange, verdict: &NodeVerdict) {
    let taint = TAINT.key;
    match (change, verdict) {
        (TaintChange::Remove, _) => info!(target: "taint", node, taint, "taint removed"),
        (TaintChange::Add, NodeVerdict::Lacks(PodRequirement { namespace, selector })) => {
            info!(target: "taint", node, taint, reason = "no ready pod", selector, namespace, "taint added");
        }
        (TaintChange::Add, NodeVerdict::NotReady) => {
            info!(target: "taint", node, taint, reason = "the node is not ready", "taint added");
        }
        // The node became ready while the taint was being added.
        (TaintChange::Add, _) => info!(target: "taint", node, taint, "taint added"),
    }
}

fn watch_nodes<'a>(client: &KubeClient, selector: &str) -> BoxStream<'a, NodeObservation> {
    let collection = Collection {
        kind: "Node",
        label_selector: Some(selector.to_owned()).filter(|selector| !selector.is_empty()),
        ..Collection::default()
    };
    watch_collection::<Node, ObservedNode>(client, &collection, NodeObservation::Nodes)
}

fn watch_pods<'a>(
    client: &KubeClient,
    number: usize,
    pods: &PodRequirement,
) -> BoxStream<'a, NodeObservation> {
    let collection = Collection {
        kind: "Pod",
        namespace: Some(pods.namespace.clone()).filter(|namespace| !namespace.is_empty()),
        label_selector: Some(pods.selector.clone()),
        ..Collection::default()
    };
    let observe = move |event| NodeObservation::Pods(number, event);
    watch_collection::<Pod, ReadinessPod>(client, &collection, observe)
}

/// Watches a collection. Logs each error of this watch once, and its recovery: other watches may work meanwhile.
fn watch_collection<'a, O, T>(
    client: &KubeClient,
    collection: &Collection,
    observe: impl Fn(ListEvent<T>) -> NodeObservation + Send + 'a,
) -> BoxStream<'a, NodeObservation>
where
    O: DeserializeOwned + AsRef<ObjectMeta> + 'static,
    T: From<O> + Send + 'static,
{
    let (resource, mut last) = (collection.kind, LastError::default());
    let Collection { namespace, label_selector, .. } = collection.clone();
    let (namespace, selector) = (namespace.unwrap_or_default(), label_selector.unwrap_or_default());
    let observed = client.watch_all::<O, T>(collection).filter_map(move |event| {
        match &event {
            Ok(_) if last.clear() => info!(target: "taint", resource, namespace, selector, "watch restored"),
            Err(error) if last.replace(error) => {
                warn!(target: "taint", resource, namespace, selector, %error, "watch failed");
            }
            Ok(_) | Err(_) => {}
        }
        future::ready(event.ok().map(&observe))
    });
    observed.boxed()
}

async fn wait_until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}
