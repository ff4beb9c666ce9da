//! Reconciler thread, which owns the node's network namespace: its inbox and its loop.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    path::Path,
    sync::{
        Arc,
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    time::{Duration, Instant},
};

use enrolment::{EnrolmentPolicy, EnrolmentReason, SkipReason, ambient::evaluate_membership, facts::Fact};
use model::{ContainerId, Namespace, Pod, PodName, PodUid, Reason};
use netns::{Netns, NetnsId};
use node_plan::ZtunnelFallback;
use retry::{Attempts, Backoff, LastError};
use tracing::{info, warn};

use crate::{
    agent_state::AgentState,
    annotation::AnnotationSink,
    capture_mode::{CaptureMode, CaptureReply, CaptureResult, PodEnrolment},
    history::{HistoryEntry, join_reasons},
    ledger::{self, PodAttachment},
    metrics::AgentMetrics,
    notice::NoticeSink,
    snapshot::AgentSnapshot,
    status::AgentStatus,
};

/// Interval of full observations without any event.
const REGULAR: Duration = Duration::from_secs(30);
/// Minimum interval between full observations, to which an event shortens it: frequent events must not cause constant work.
const FULL_PASS_AFTER_EVENT: Duration = Duration::from_secs(5);
/// Delay before the next attempt after a failure; doubled after each further one, up to the last.
const FIRST_RETRY: Duration = Duration::from_millis(50);
const LAST_RETRY: Duration = Duration::from_secs(5);
const BACKOFF: Backoff = Backoff::new(FIRST_RETRY, LAST_RETRY);

/// Time that facts may take to arrive after a start.
const STARTING: Duration = Duration::from_secs(10);

/// A pod with its namespace.
pub(crate) type PodWithNamespace = (Box<Pod>, Option<Namespace>);

/// A request for an unknown pod, and its time.
#[derive(Debug)]
pub(crate) struct PodWaiter {
    pub(crate) name: PodName,
    pub(crate) uid: PodUid,
    pub(crate) since: Instant,
    pub(crate) reply: Sender<PodWithNamespace>,
}

/// A starting pod.
#[derive(Debug)]
pub(crate) struct PodArrival {
    pub(crate) name: PodName,
    /// UID as passed by the runtime.
    pub(crate) uid: PodUid,
    pub(crate) container: ContainerId,
    pub(crate) ips: Vec<IpAddr>,
    /// Network to which the runtime attaches it.
    pub(crate) network: String,
    pub(crate) netns: Option<Netns>,
    /// Deadline, after which the ADD fails.
    pub(crate) deadline: Instant,
    /// Pod, if it was fetched from the API server.
    pub(crate) known: Option<PodWithNamespace>,
    /// Whether labels of the namespace may have changed since they were read, so that the API server must be queried.
    pub(crate) outdated: bool,
}

/// Deletion of a sandbox, as reported by the plugin's DEL.
#[derive(Debug)]
pub(crate) struct SandboxEnd {
    /// Pod that the runtime names; empty: unknown.
    pub(crate) name: PodName,
    pub(crate) container: ContainerId,
    /// UID and addresses, for an agent that did not receive the ADD.
    pub(crate) attachment: PodAttachment,
    /// Network namespace, if it still existed: a runtime repeats the DEL of a sandbox long after its removal.
    pub(crate) netns: Option<NetnsId>,
}

/// Decision on a starting pod.
#[derive(Debug)]
pub(crate) struct AddDecision {
    pub(crate) known: PodWithNamespace,
    pub(crate) membership: Result<EnrolmentReason, SkipReason>,
}

#[derive(Debug)]
pub(crate) enum ReconcilerMessage {
    Fact(Box<Fact>, Instant),
    Pod(PodWaiter),
    /// ADD; an unknown pod is returned.
    Add(Box<PodArrival>, Sender<Result<AddDecision, Box<PodArrival>>>, CaptureReply),
    Release(SandboxEnd, CaptureReply),
    Check(PodUid, Vec<IpAddr>, CaptureReply),
    /// A network, and its containers.
    Collect(String, BTreeSet<ContainerId>, CaptureReply),
    Fallback(ZtunnelFallback),
    Inspect(Sender<Box<AgentSnapshot>>),
    Note(Box<HistoryEntry>),
    WorkCompleted,
    Stop,
}

/// Sends messages to the reconciler; clones send to the same one. After the reconciler has ended, messages are dropped, and
/// requests get no reply.
#[derive(Clone, Debug)]
pub struct AgentHandle(Sender<ReconcilerMessage>);

impl AgentHandle {
    pub(crate) fn send(&self, message: ReconcilerMessage) {
        drop(self.0.send(message)); // the process ends with the reconciler
    }

    /// Makes the capture mode handle one result of its work on other threads. Called once for each result, after it is available to
    /// the mode.
    pub fn work_completed(&self) {
        self.send(ReconcilerMessage::WorkCompleted);
    }

    /// Adds a change that has just ended to the history.
    pub fn note_change(&self, entry: HistoryEntry) {
        self.send(ReconcilerMessage::Note(Box::new(entry)));
    }

    /// Sends a fact.
    pub fn send_fact(&self, fact: Fact) {
        self.send(ReconcilerMessage::Fact(Box::new(fact), Instant::now()));
    }

    /// Sets the policy that applies while no ztunnel is ready.
    pub fn set_fallback(&self, fallback: ZtunnelFallback) {
        self.send(ReconcilerMessage::Fallback(fallback));
    }

    /// Returns a copy of the reconciler's state, taken between two messages; `None`: not within that time. Blocks.
    pub fn request_snapshot(&self, within: Duration) -> Option<Box<AgentSnapshot>> {
        let (reply, answer) = mpsc::channel();
        self.send(ReconcilerMessage::Inspect(reply));
        answer.recv_timeout(within).ok()
    }

    /// Stops the loop after the current message. Removes nothing.
    pub fn stop(&self) {
        self.send(ReconcilerMessage::Stop);
    }
}

/// Inbox of a reconciler that is created later, on its own thread.
#[derive(Debug)]
pub struct ReconcilerInbox {
    receiver: Receiver<ReconcilerMessage>,
}

impl ReconcilerInbox {
    /// Returns an empty inbox, and a handle that sends to it.
    pub fn new() -> (AgentHandle, ReconcilerInbox) {
        let (sender, receiver) = mpsc::channel();
        (AgentHandle(sender), ReconcilerInbox { receiver })
    }
}

/// Scope of a pass: the part of the state that it compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReconcileScope {
    /// Only timers that are due; no fact has changed.
    Timers,
    /// Changed pods, and their addresses.
    Pods,
    /// Addresses, their sets and routes.
    Membership,
    /// The whole state.
    Full,
}

/// Destinations of a reconciler's reports. Neither sink may block.
pub struct AgentOutputs {
    /// Metrics of the agent.
    pub metrics: AgentMetrics,
    /// Health of the agent, for its readiness probe and the debug state.
    pub status: Arc<AgentStatus>,
    /// Receives updates of annotations.
    pub annotate: AnnotationSink,
    /// Receives Events.
    pub notify: NoticeSink,
}

/// Reconciler with its state.
pub struct Reconciler {
    core: AgentState,
    mode: Box<dyn CaptureMode>,
    attempts: Attempts,
    /// Whether the last pass ended with an error, not only with a problem despite which pods can be enrolled.
    has_failed: bool,
    due: Instant,
    /// End of the last pass that failed, or that left a problem.
    failed_at: Option<Instant>,
    /// Time of the last full observation.
    observed_all: Option<Instant>,
    oldest: Option<Instant>,
    inbox: Receiver<ReconcilerMessage>,
    /// Error that was logged last.
    logged: LastError,
    /// Containers that a GC could not release.
    unreleased: BTreeMap<ContainerId, PodAttachment>,
}

impl Reconciler {
    /// Returns a reconciler for the network namespace that `mode` was opened in, on whose thread it must run.
    ///
    /// `policy` decides which pods are enrolled.
    pub fn new(
        mode: Box<dyn CaptureMode>,
        policy: EnrolmentPolicy,
        inbox: ReconcilerInbox,
        outputs: AgentOutputs,
    ) -> Reconciler {
        Reconciler {
            core: AgentState::new(policy, outputs),
            mode,
            attempts: BACKOFF.start_attempts(),
            has_failed: false,
            due: Instant::now(),
            failed_at: None,
            observed_all: None,
            oldest: None,
            inbox: inbox.receiver,
            logged: LastError::default(),
            unreleased: BTreeMap::new(),
        }
    }

    /// Stores the history of changes in a file, beginning with that of an earlier agent.
    pub fn keep_history(&mut self, path: &Path) {
        self.core.history.keep_in(path);
    }

    /// Runs until it is stopped.
    pub fn run(&mut self) {
        loop {
            self.core.status.record_progress();
            self.core.notices.report_due(Instant::now());
            match self.inbox.recv_timeout(self.next_wakeup().saturating_duration_since(Instant::now())) {
                Ok(ReconcilerMessage::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(message) => self.handle_message(message),
                Err(RecvTimeoutError::Timeout) => {}
            }
            // Messages that arrived meanwhile are handled as one change.
            while let Ok(message) = self.inbox.try_recv() {
                if matches!(message, ReconcilerMessage::Stop) {
                    return;
                }
                self.handle_message(message);
            }
            self.reconcile_if_due();
        }
    }

    /// Returns when to wake up without a message.
    fn next_wakeup(&self) -> Instant {
        // After an error these are delayed, because the same pass would fail again; a problem delays none.
        let waiting = [self.mode.next_wakeup(), self.core.pace.due].into_iter().flatten();
        let waiting = waiting.min().filter(|_| !self.has_failed);
        let others = [self.next_awaited_pass(), self.core.notices.next_wakeup()];
        others.into_iter().chain([waiting]).flatten().fold(self.due, Instant::min)
    }

    /// Returns when a full pass may run before it is due because a request waits for it: soon after a failure, but not
    /// without a pause, in which the request would keep a processor busy until its end.
    fn next_awaited_pass(&self) -> Option<Instant> {
        let failed_at =
            self.failed_at.filter(|_| self.attempts.failure_count() > 0 && self.mode.is_awaited());
        Some(failed_at? + FIRST_RETRY)
    }

    fn reconcile_if_due(&mut self) {
        let now = Instant::now();
        // Evaluated even if messages arrive so often that the loop never waits.
        if self.mode.next_wakeup().is_some_and(|due| due <= now) {
            self.core.mark_dirty(ReconcileScope::Timers);
        }
        if self.core.pace.due.is_some_and(|due| due <= now) {
            self.core.mark_dirty(ReconcileScope::Membership);
        }
        let is_awaited = self.next_awaited_pass().is_some_and(|due| due <= now);
        if self.due <= now || is_awaited {
            self.core.mark_dirty(ReconcileScope::Full);
        }
        let Some(scope) = self.core.dirty else { return };
        // After a failure an event shortens the delay, but not to zero.
        if self.has_failed && now < self.due && !is_awaited {
            return;
        }
        self.core.dirty = None;
        let age = self.oldest.take().map(|oldest| now.duration_since(oldest)).unwrap_or_default();
        self.core.metrics.age.set(age.as_secs_f64());
        match self.run_pass(scope) {
            Ok(()) => {
                self.attempts.record_success();
                // A pass of smaller scope does not postpone the full one.
                if scope == ReconcileScope::Full {
                    self.observed_all = Some(Instant::now());
                    self.due = Instant::now() + REGULAR;
                }
            }
            // A smaller pass does not postpone the full one that is to end the same problem.
            Err(())
                if scope < ReconcileScope::Full && !self.has_failed && self.attempts.failure_count() > 0 => {}
            Err(()) => {
                let now = Instant::now();
                (self.due, self.failed_at) = (now + self.attempts.record_failure(), Some(now));
            }
        }
    }

    /// Runs one pass, and reports its result.
    fn run_pass(&mut self, scope: ReconcileScope) -> Result<(), ()> {
        if scope > ReconcileScope::Timers {
            self.core.pace_memberships(scope, Instant::now());
        }
        let done = if self.core.is_synced() {
            self.mode.reconcile(&mut self.core, scope)
        } else {
            Err(Reason::from(report::NOT_SYNCED))
        };
        // Mesh pods are enrolled, and held, even while no ztunnel is usable.
        let refused = done.as_ref().err().cloned();
        self.has_failed = refused.is_some();
        if let Some(refused) = refused.as_ref().filter(|_| self.core.is_synced()) {
            self.core.report_failure(refused.as_str());
        }
        if scope > ReconcileScope::Timers {
            self.core.forget_changed();
        }
        let problem = done.unwrap_or_else(Some).map(String::from);
        self.log_problem(problem.as_deref());
        self.core.history.clear_causes();
        self.core.problem.clone_from(&problem);
        self.core.status.set_problem(problem.clone());
        self.core.metrics.ready.set(i64::from(self.core.status.check_readiness().is_ok()));
        // Before the facts are synced no request can be answered; each has a deadline.
        if self.core.is_synced() {
            self.mode.answer_requests(refused.as_ref());
        }
        problem.map_or(Ok(()), |_| Err(()))
    }

    /// Logs changes only. Facts take a moment to arrive after each start, which is no failure.
    fn log_problem(&mut self, problem: Option<&str>) {
        if problem.is_some() && !self.core.index.is_synced() && self.core.started.elapsed() < STARTING {
            return;
        }
        match problem {
            Some(problem) if self.logged.replace(&problem) => {
                warn!(target: "ambient", error = problem, "reconcile failed");
            }
            None if self.logged.clear() || self.core.problem.is_some() => {
                info!(target: "ambient", "reconcile succeeded");
            }
            _ => {}
        }
    }

    fn handle_message(&mut self, message: ReconcilerMessage) {
        let (core, mode) = (&mut self.core, &mut self.mode);
        match message {
            ReconcilerMessage::Fact(fact, came) => {
                self.oldest = self.oldest.or(Some(came));
                let (cause, was_synced) = (describe_fact(&fact), core.is_synced());
                if core.apply_fact(*fact) {
                    core.history.add_cause(|| cause);
                    // Earlier passes failed only for lack of facts.
                    if core.is_synced() && !was_synced {
                        self.attempts.record_success();
                        self.due = Instant::now();
                    }
                    // An earlier failure may be due to the lack of this fact.
                    let soonest = Instant::now() + FIRST_RETRY;
                    let calm = self
                        .observed_all
                        .filter(|_| self.attempts.failure_count() == 0)
                        .map(|observed| observed + FULL_PASS_AFTER_EVENT);
                    self.due = self.due.min(calm.map_or(soonest, |calm| soonest.max(calm)));
                    core.answer_waiting();
                }
            }
            ReconcilerMessage::Pod(who) => core.wait_for_pod(who),
            ReconcilerMessage::Add(arrival, decision, reply) => {
                drop(decision.send(self.process_add(arrival, reply)));
            }
            ReconcilerMessage::Release(end, reply) => drop(reply.send(self.release_container(end))),
            ReconcilerMessage::Check(uid, ips, reply) => mode.check_pod(core, &uid, &ips, reply),
            ReconcilerMessage::Collect(network, attachments, reply) => {
                drop(reply.send(self.collect_garbage(&network, &attachments)));
            }
            ReconcilerMessage::Fallback(fallback) => {
                if mode.set_fallback(fallback) {
                    core.history.add_cause(|| format!("policy without ztunnel: {fallback}"));
                    core.mark_dirty(ReconcileScope::Full);
                }
            }
            ReconcilerMessage::Inspect(reply) => {
                drop(reply.send(Box::new(core.snapshot(mode.capture_snapshot()))));
            }
            ReconcilerMessage::Note(entry) => core.history.record_change(*entry),
            ReconcilerMessage::WorkCompleted => mode.work_completed(core),
            ReconcilerMessage::Stop => {}
        }
    }

    /// Decides on a starting pod, and begins its enrolment; `reply` receives the result.
    fn process_add(
        &mut self,
        mut arrival: Box<PodArrival>,
        reply: CaptureReply,
    ) -> Result<AddDecision, Box<PodArrival>> {
        let PodArrival { name, uid, ips, .. } = arrival.as_ref();
        let is_outdated = self.core.may_be_outdated();
        if let (true, Some((_, Some(namespace)))) = (is_outdated, &arrival.known) {
            // Passes decide by the index: with its labels they would undo what this ADD does.
            self.core.apply_fact(Fact::Namespace(Box::new(namespace.clone())));
        }
        let arriving = self.core.find_arriving_pod(name, uid, ips);
        arrival.outdated = arrival.known.is_none() && is_outdated;
        let known = arrival.known.take().or(arriving).filter(|_| !arrival.outdated);
        let Some(known) = known else { return Err(arrival) };
        let PodArrival { container, ips, network, netns, deadline, .. } = *arrival;
        let container =
            if container.is_empty() { ledger::unnamed_container(&known.0.metadata.uid) } else { container };
        let membership = evaluate_membership(&known.0, known.1.as_ref(), &self.core.policy);
        let attachment = PodAttachment { uid: known.0.metadata.uid.clone(), ips, network };
        self.core.history.add_cause(|| format!("ADD of {}", known.0.name()));
        self.core.record_sandbox_start(&known.0);
        match membership {
            Ok(_) if attachment.ips.is_empty() => {
                drop(reply.send(Err("the plugins before this one gave the pod no address".into())));
            }
            Ok(_) => {
                let pod = known.0.clone();
                self.mode.enrol_pod(
                    &mut self.core,
                    PodEnrolment { container, attachment, netns, deadline, pod },
                    reply,
                );
            }
            Err(_) if attachment.ips.is_empty() => drop(reply.send(Ok(()))),
            Err(_) => self.mode.skip_pod(&mut self.core, &container, attachment, reply),
        }
        Ok(AddDecision { known, membership })
    }

    /// Handles the end of a sandbox. One whose ADD is unknown counts as that of its pod only if it had the pod's network namespace:
    /// it may be an earlier sandbox that the runtime cleans up.
    fn release_container(&mut self, end: SandboxEnd) -> CaptureResult {
        let SandboxEnd { name, container, mut attachment, netns } = end;
        // The runtime's UID of a static pod differs from that of the API, by which the agent knows the pod.
        if let Some(pod) = self.core.index.pod(&name).filter(|pod| pod.has_runtime_uid(&attachment.uid)) {
            attachment.uid.clone_from(&pod.metadata.uid);
        }
        let is_known = self.core.ledger.has_container(&container);
        let gone = self.core.ledger.record_delete(&container, attachment);
        let is_last = self.core.ledger.added_addresses(&gone.uid).is_empty()
            && (is_known || netns.is_some_and(|netns| self.mode.may_have_netns(&gone.uid, netns)));
        if is_last {
            self.core.record_sandbox_end(&gone.uid);
        }
        let pod = self.core.index.pods().find(|pod| pod.metadata.uid == gone.uid).map(Pod::name);
        self.core.history.add_cause(|| match pod {
            Some(pod) => format!("DEL of {pod}"),
            None => format!("DEL of container {:.12}", container.as_str()),
        });
        self.core.mark_pod(&gone.uid, &gone.ips);
        self.mode.release_pod(&mut self.core, &container, gone, is_last)
    }

    /// Releases the containers of a network that are not among these, despite errors, which are returned together. The next call
    /// tries the failed ones again.
    fn collect_garbage(&mut self, network: &str, attachments: &BTreeSet<ContainerId>) -> CaptureResult {
        let is_gone = |container: &ContainerId, attachment: &mut PodAttachment| {
            attachment.network == network && !attachments.contains(container)
        };
        let mut gone: Vec<_> = self.unreleased.extract_if(.., is_gone).collect();
        gone.extend(self.core.ledger.containers_not_in(network, attachments));
        let mut problems = Vec::new();
        for (container, attachment) in gone {
            let end = SandboxEnd {
                name: PodName::default(),
                container: container.clone(),
                attachment: attachment.clone(),
                netns: None,
            };
            if let Err(problem) = self.release_container(end) {
                self.unreleased.insert(container, attachment);
                problems.push(problem);
            }
        }
        if problems.is_empty() { Ok(()) } else { Err(join_reasons(problems.iter()).into()) }
    }

    /// Completes pending work: nothing is changed any more. Precedes an uninstallation, which it would otherwise undo.
    pub fn finish_work(&mut self) {
        self.mode.finish_work();
    }

    /// Annotates every pod as not captured: none of our rules will be left.
    pub fn remove_annotations(&self) {
        self.core.remove_annotations();
    }
}

/// Returns a short description of a fact.
fn describe_fact(fact: &Fact) -> String {
    match fact {
        Fact::Pods(pods) => format!("list of {} pods", pods.len()),
        Fact::Pod(pod) => format!("pod {}", pod.name()),
        Fact::PodGone { name, .. } => format!("pod {name} is gone"),
        Fact::Namespaces(namespaces) => format!("list of {} namespaces", namespaces.len()),
        Fact::Namespace(namespace) => format!("namespace {}", namespace.metadata.name),
        Fact::NamespaceGone(name) => format!("namespace {name} is gone"),
        Fact::Watched(collection, _) => format!("watch of {}", collection.as_str()),
        Fact::PodsUnknown => "pods are not followed any more".to_owned(),
        Fact::Unconfirmed(unconfirmed) => {
            format!("{} objects are unconfirmed", unconfirmed.pods.len() + unconfirmed.namespaces.len())
        }
    }
}

#[cfg(test)]
mod tests;
