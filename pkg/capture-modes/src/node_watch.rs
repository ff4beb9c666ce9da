//! Detection of foreign changes to our objects in the node's own network namespace, within fractions of a second.
//!
//! The kernel is queried at a short interval for the generation of nf_tables and for the number of members of our sets:
//! a few small requests, whose cost does not depend on foreign sets. The members themselves are compared once a second.
//! Our rules are read again only when the generation changed by another component's transaction. Notifications of rules
//! name the process, but slow down foreign transactions, such as kube-proxy's, by up to a third, so they are used only
//! if the operator enables them; sets have none. Notifications of policy rules, routes and links are read at the same
//! interval.

use std::{
    collections::BTreeSet,
    convert::Infallible,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use agent::ReconcileScope;
use firewall::RulesGeneration;
use ipset::{IpsetHandle, SetName};
use netlink::{ChangedReplies, NetlinkProtocol, RepeatedRequests};
use netns::Netns;
use netns_changes::{ChangeKinds, ChangeWatcher, NetnsDisturbance, NetnsWatch};
use node_capture::ZtunnelWatcher;
use retry::{Attempts, Backoff, ChangePace, LAST_DELAY};
use rules::ChainSet;
use rustix::time::{ClockId, clock_gettime};

/// Interval between checks.
const PERIOD: Duration = Duration::from_millis(100);
/// Back-off after a check that failed.
const RETRY: Backoff = Backoff::new(PERIOD, LAST_DELAY);
/// Ratio of the pause after a check to the CPU time of the check, at least: on a node whose rules change all the time,
/// checks take 2 % of a core at most.
const RELIEF: u32 = 50;
/// Interval of lists, and ratio of the pause to their CPU time, at least. Rules of legacy tables have no generation,
/// and neither have members of sets: all of them have to be read, so they are checked less often, at 0.05 % of a core
/// for each.
const LIST_PERIOD: Duration = Duration::from_secs(1);
const LIST_RELIEF: u32 = 2000;
const STACK: usize = 256 * 1024;

/// A kind of our objects that another component changed, most probably.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NodeChange {
    /// Firewall rules.
    Rules,
    /// Members of sets.
    Sets,
    /// Policy rules, routes, addresses or links, including foreign ones.
    Network,
    /// Anything except kernel settings in the network namespace of a ztunnel.
    Ztunnel,
}

impl NodeChange {
    /// Returns the kind of objects, as a label of metrics.
    pub(crate) fn metric_label(self) -> &'static str {
        match self {
            NodeChange::Rules => "firewall",
            NodeChange::Sets => "sets",
            NodeChange::Network | NodeChange::Ztunnel => "network",
        }
    }
}

/// A change that was noticed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeNotice {
    pub(crate) change: NodeChange,
    /// The last process that wrote firewall rules, by name and ID, for reports; `None`: unknown.
    pub(crate) writer: Option<String>,
}

impl From<NodeChange> for NodeNotice {
    fn from(change: NodeChange) -> NodeNotice {
        NodeNotice { change, writer: None }
    }
}

/// Our objects on the node.
#[derive(Clone)]
pub(crate) struct NodeObjects {
    /// Owner of our rules.
    pub(crate) rules: ChainSet,
    /// The names of our sets.
    pub(crate) sets: Vec<SetName>,
    /// Whether policy rules, routes or links are ours, too.
    pub(crate) network: bool,
    /// Watches the network namespaces of ztunnels; `None`: no objects of ours are in there.
    pub(crate) ztunnels: Option<ZtunnelWatcher>,
    /// Whether to name the process that changes rules, which slows down foreign transactions.
    pub(crate) attributed: bool,
}

/// Changes on the node that were noticed and not yet observed, and the time of their observation.
#[derive(Debug)]
pub(crate) struct NodeDrift {
    started: Instant,
    /// Pace of repairs: repeated foreign changes of our objects are followed at growing intervals.
    pace: ChangePace,
    pending: Option<NodeDisturbance>,
    idle_until: Instant,
}

/// Changes that one observation covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeDisturbance {
    /// When the first of them was noticed.
    pub(crate) noticed: Instant,
    kinds: BTreeSet<NodeChange>,
    /// The last process that wrote firewall rules, if known.
    pub(crate) writer: Option<String>,
}

impl NodeDisturbance {
    /// Returns the cause of the change that follows, for the history; `None`: the process is unknown.
    pub(crate) fn drift_cause(&self) -> Option<String> {
        self.writer.as_ref().map(|writer| format!("drift, changed by {writer}"))
    }

    /// Whether only a full pass covers it: no other one reads rules and ztunnels' namespaces.
    pub(crate) fn needs_full_pass(&self) -> bool {
        self.has_kind(NodeChange::Rules) || self.has_kind(NodeChange::Ztunnel)
    }

    /// Whether objects of this kind changed.
    pub(crate) fn has_kind(&self, kind: NodeChange) -> bool {
        self.kinds.contains(&kind)
    }
}

impl NodeDrift {
    pub(crate) fn new(now: Instant) -> NodeDrift {
        NodeDrift { started: now, pace: ChangePace::default(), pending: None, idle_until: now }
    }

    /// Records a change.
    pub(crate) fn record_notice(&mut self, notice: NodeNotice, now: Instant) {
        let new = || NodeDisturbance { noticed: now, kinds: BTreeSet::new(), writer: None };
        let pending = self.pending.get_or_insert_with(new);
        let _ = pending.kinds.insert(notice.change);
        pending.writer = notice.writer.or(pending.writer.take());
    }

    /// Returns when an observation is to begin; `None` if nothing changed.
    pub(crate) fn next_observation(&self) -> Option<Instant> {
        self.pending.as_ref().map(|pending| pending.noticed.max(self.idle_until))
    }

    /// Returns the changes that an observation starting now covers; `None` if none is due.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<NodeDisturbance> {
        if self.next_observation().is_none_or(|due| due > now) {
            return None;
        }
        self.pending.take()
    }

    /// Returns the changes that a pass covers: a full one all of them, any other one those that are due.
    pub(crate) fn take_covered(&mut self, scope: ReconcileScope, now: Instant) -> Option<NodeDisturbance> {
        if scope == ReconcileScope::Full { self.pending.take() } else { self.take_due(now) }
    }

    /// Returns the changes that every pass covers, due or not: those for which rules and ztunnels' namespaces need not be read. `None`
    /// if there are none, or others, too.
    pub(crate) fn take_without_rules(&mut self) -> Option<NodeDisturbance> {
        self.pending.take_if(|pending| !pending.needs_full_pass())
    }

    /// Whether rules or sets have changed that no observation covers yet: without them, pods are not captured.
    pub(crate) fn may_leak(&self) -> bool {
        let has_kind = |kind| self.pending.as_ref().is_some_and(|pending| pending.has_kind(kind));
        has_kind(NodeChange::Rules) || has_kind(NodeChange::Sets)
    }

    /// Records changes again whose observation failed, so that the next one covers them: no others can have been
    /// recorded meanwhile.
    pub(crate) fn restore_disturbance(&mut self, disturbance: NodeDisturbance) {
        self.pending = Some(disturbance);
    }

    /// Records the CPU time of an observation, and whether it led to a repair. The time of the next one follows from
    /// both.
    pub(crate) fn end_observation(&mut self, worked: Duration, repaired: bool, now: Instant) {
        let relief = now + (worked * RELIEF).min(LAST_DELAY);
        let paced = repaired.then(|| self.started + self.pace.next_observation(now - self.started));
        self.idle_until = paced.into_iter().fold(self.idle_until.max(relief), Instant::max);
    }
}

/// Watch of our objects on the node. Its thread ends when this is dropped.
pub(crate) struct NodeWatch {
    start: Box<dyn Fn() -> io::Result<WatchThread> + Send>,
    thread: Option<WatchThread>,
    /// Whether it was logged that the thread does not run.
    is_lost: bool,
    /// Whether our objects were restored since the last check of the rules.
    restored: Arc<AtomicBool>,
}

impl NodeWatch {
    /// Starts a watch for the calling thread's network namespace. `report` is called on the watch's thread for each change,
    /// including some of our own.
    pub(crate) fn start(
        objects: NodeObjects,
        report: impl FnMut(NodeNotice) + Clone + Send + 'static,
    ) -> NodeWatch {
        let restored = Arc::<AtomicBool>::default();
        NodeWatch::start_with(Arc::clone(&restored), move || {
            let mut observer = NodeObserver::new(objects.clone(), Arc::clone(&restored))?;
            let mut report = report.clone();
            WatchThread::spawn(move |ended| observer.run(ended, &mut report))
        })
    }

    /// Makes the next check report the rules as changed, because they were restored: if they have been changed again in the same way,
    /// they are as at the check before.
    pub(crate) fn note_repair(&self) {
        self.restored.store(true, Ordering::Relaxed);
    }

    fn start_with(
        restored: Arc<AtomicBool>,
        start: impl Fn() -> io::Result<WatchThread> + Send + 'static,
    ) -> NodeWatch {
        let mut watch = NodeWatch { start: Box::new(start), thread: None, is_lost: false, restored };
        watch.ensure_running();
        watch
    }

    /// Starts the thread if it has ended, or could not be started before; until that succeeds, observations are triggered by the
    /// clock only. Returns whether the thread runs. Must be called in the network namespace of the start.
    pub(crate) fn ensure_running(&mut self) -> bool {
        if self.thread.as_ref().is_some_and(|thread| !thread.handle.is_finished()) {
            if std::mem::take(&mut self.is_lost) {
                tracing::info!(target: "ambient", "changes of the node's sets and rules are reported again");
            }
            return true;
        }
        let ended = self.thread.take().map(|_| io::Error::other("the thread has ended"));
        let error = match (self.start)() {
            Ok(thread) => {
                self.thread = Some(thread);
                ended
            }
            Err(error) => Some(error),
        };
        if let Some(error) = error.filter(|_| !self.is_lost) {
            tracing::warn!(target: "ambient", %error, "changes of the node's sets and rules are not reported; observing them at intervals");
            self.is_lost = true;
        }
        self.thread.is_some()
    }
}

/// Thread that ends when this is dropped.
struct WatchThread {
    handle: JoinHandle<()>,
    _owner: Sender<Infallible>,
}

impl WatchThread {
    /// Starts the thread. `body` has to end when its receiver is disconnected.
    fn spawn(body: impl FnOnce(&Receiver<Infallible>) + Send + 'static) -> io::Result<WatchThread> {
        let (owner, ended) = mpsc::channel();
        let builder = thread::Builder::new().name("node-watch".to_owned()).stack_size(STACK);
        Ok(WatchThread { handle: builder.spawn(move || body(&ended))?, _owner: owner })
    }
}

struct NodeObserver {
    objects: NodeObjects,
    /// See [`NodeWatch::note_repair`].
    restored: Arc<AtomicBool>,
    handle: IpsetHandle,
    /// Requests for generation and sets, whose replies rarely change. `None`: the next check opens them again.
    requests: Option<RepeatedRequests>,
    /// `None`: notifications are not read.
    notifications: Option<(ChangeWatcher<()>, NetnsWatch<()>)>,
    rules: Option<RulesGeneration>,
    /// When our rules are read although no new generation was reported: those of legacy tables have none, and others are
    /// read again after a failure.
    rules_due: Instant,
    /// For each set, the number of foreign members; `None`: unknown.
    sets: Option<Vec<i64>>,
    /// For each set, a hash of these members; `None`: unknown.
    members: Option<Vec<u64>>,
    members_due: Instant,
    /// Consecutive checks that failed.
    failures: Attempts,
    /// Consecutive checks at which our rules could not be read, which a foreign table may cause until it changes.
    rules_failures: Attempts,
    /// Last process that wrote rules since the last report.
    writer: Option<String>,
}

impl NodeObserver {
    fn new(objects: NodeObjects, restored: Arc<AtomicBool>) -> io::Result<NodeObserver> {
        let has_use = objects.network || objects.attributed;
        let notifications = if has_use { Some(watch_node(objects.attributed)?) } else { None };
        let handle = IpsetHandle::open().map_err(io::Error::other)?;
        let requests = open_requests(&handle, &objects.sets).map_err(io::Error::other)?;
        Ok(NodeObserver {
            objects,
            restored,
            handle,
            requests: Some(requests),
            notifications,
            rules: None,
            rules_due: Instant::now(),
            sets: None,
            members: None,
            members_due: Instant::now(),
            failures: RETRY.start_attempts(),
            rules_failures: RETRY.start_attempts(),
            writer: None,
        })
    }

    fn run(&mut self, ended: &Receiver<Infallible>, report: &mut impl FnMut(NodeNotice)) {
        let mut delay = PERIOD;
        while ended.recv_timeout(delay) == Err(RecvTimeoutError::Timeout) {
            let replies = self.request_changes();
            // After the generation: whatever changed it is likely to have its notification.
            let (network_changed, writer) = self.read_notifications();
            self.writer = writer.or_else(|| self.writer.take());
            delay = if self.has_due_check(replies) { self.check_objects(replies, report) } else { PERIOD };
            if network_changed {
                report(NodeChange::Network.into());
            }
            if self.objects.ztunnels.as_ref().is_some_and(ZtunnelWatcher::take_changes) {
                report(NodeChange::Ztunnel.into());
            }
        }
    }

    /// Returns whether generation and sets changed since the last check; `None`: the kernel could not be queried.
    fn request_changes(&mut self) -> Option<ChangedReplies> {
        let open = || open_requests(&self.handle, &self.objects.sets).ok();
        let mut requests = self.requests.take().or_else(open)?;
        let changed = requests.request_changes().ok()?;
        self.requests = Some(requests);
        Some(changed)
    }

    fn has_due_check(&self, replies: Option<ChangedReplies>) -> bool {
        let due = self.members_due.min(self.rules_due);
        replies.is_none_or(|changed| changed.first || changed.list) || due <= Instant::now()
    }

    /// Compares what may have changed, reports changes, and returns the pause until the next check.
    fn check_objects(
        &mut self,
        replies: Option<ChangedReplies>,
        report: &mut impl FnMut(NodeNotice),
    ) -> Duration {
        let began = processor_time();
        if self.rules_changed(replies) {
            report(NodeNotice { change: NodeChange::Rules, writer: self.writer.take() });
        } else if self.rules_failures.failure_count() == 0 && replies.is_some_and(|changed| changed.first) {
            self.writer = None; // of a change that does not concern us
        }
        let sets = [self.sets_changed(replies), self.members_changed()];
        if sets.contains(&Some(true)) {
            report(NodeChange::Sets.into());
        }
        let retry = self.end_check(sets.contains(&None));
        let pause = processor_time().saturating_sub(began) * RELIEF;
        PERIOD.max(retry).max(pause).min(LAST_DELAY)
    }

    /// Ends a check, and returns the pause after it. After a failed check, the next one sends all requests anew, on
    /// other sockets.
    fn end_check(&mut self, failed: bool) -> Duration {
        if !failed {
            self.failures.record_success();
            return Duration::ZERO;
        }
        self.requests = None;
        if let Ok(handle) = IpsetHandle::open() {
            self.handle = handle;
        }
        self.failures.record_failure()
    }

    /// Returns whether our rules changed. If they cannot be read, changes since the last check count in the next one.
    fn rules_changed(&mut self, replies: Option<ChangedReplies>) -> bool {
        let retrying = self.rules_failures.failure_count() > 0;
        let generation_changed = replies.map(|changed| changed.first);
        if (retrying || generation_changed != Some(true)) && Instant::now() < self.rules_due {
            return false;
        }
        let began = processor_time();
        let restored = self.restored.swap(false, Ordering::Relaxed); // before the rules are read
        if restored {
            self.requests = None; // that for the generation is sent again: the repair may have loaded nf_tables
        }
        let same_generation = !retrying && !restored && generation_changed == Some(false);
        let now = RulesGeneration::for_node(self.objects.rules, self.rules.as_ref(), same_generation);
        if !now.is_comparable() {
            let _ = self.restored.fetch_or(restored, Ordering::Relaxed);
            self.rules_due = Instant::now() + self.rules_failures.record_failure();
            return false;
        }
        self.rules_due = list_due(began);
        self.rules_failures.record_success();
        let changed = self.rules.as_ref().is_some_and(|before| !before.is_unchanged(&now));
        self.rules = Some(now);
        restored || changed
    }

    /// Returns whether the network changed, if that concerns us, and the last process that wrote firewall rules.
    fn read_notifications(&self) -> (bool, Option<String>) {
        let Some((watcher, _)) = &self.notifications else { return (false, None) };
        let changes = watcher.wait_for_changes(Some(Duration::ZERO)).ok().flatten().unwrap_or_default();
        let network = changes.iter().any(|change| change.kinds != ChangeKinds::FIREWALL);
        let writer =
            changes.into_iter().filter_map(|change| NetnsDisturbance::new(change).writer_name()).next_back();
        (self.objects.network && network, writer)
    }

    /// Returns whether a set changed; `None`: the kernel could not be queried, and changes since the last check count
    /// in the next one.
    fn sets_changed(&mut self, replies: Option<ChangedReplies>) -> Option<bool> {
        if replies.is_some_and(|changed| !changed.list) {
            return Some(false);
        }
        let counts = self.handle.foreign_member_counts(&self.objects.sets).ok()?;
        let before = self.sets.replace(counts);
        Some(before.is_some() && before != self.sets)
    }

    /// Returns whether the members of a set changed, if it is time to list them; `None`: as for
    /// [`NodeObserver::sets_changed`].
    fn members_changed(&mut self) -> Option<bool> {
        if Instant::now() < self.members_due {
            return Some(false);
        }
        let began = processor_time();
        let hashes = self.objects.sets.iter().map(|set| self.handle.foreign_member_hash(set));
        let now = hashes.collect::<Result<Vec<u64>, _>>().ok();
        self.members_due = list_due(began);
        let before = self.members.replace(now?);
        Some(before.is_some() && before != self.members)
    }
}

fn open_requests(handle: &IpsetHandle, sets: &[SetName]) -> Result<RepeatedRequests, netlink::Error> {
    let headers = sets.iter().map(|set| handle.header_request(set));
    RepeatedRequests::open(NetlinkProtocol::Netfilter, nftables::generation_request(), headers)
}

/// Returns when to list again after a list that began at this CPU time.
fn list_due(began: Duration) -> Instant {
    Instant::now() + LIST_PERIOD.max(processor_time().saturating_sub(began) * LIST_RELIEF)
}

/// Returns the CPU time of the calling thread: under contention a check takes longer, but costs no more.
pub(crate) fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// Watches the node's namespace. `rules`: changes of rules are reported, too.
fn watch_node(rules: bool) -> io::Result<(ChangeWatcher<()>, NetnsWatch<()>)> {
    let watcher = ChangeWatcher::new()?;
    let netns = Netns::current().map_err(io::Error::other)?;
    let watch = if rules { watcher.watch((), &netns) } else { watcher.watch_network((), &netns) };
    Ok((watcher, watch.map_err(io::Error::other)?))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn a_watch_that_could_not_be_started_or_has_ended_is_started_again() {
        let attempts = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&attempts);
        let start = move || match counted.fetch_add(1, Ordering::Relaxed) {
            0 => Err(io::ErrorKind::OutOfMemory.into()),
            1 => WatchThread::spawn(|_| {}),
            _ => WatchThread::spawn(|ended| {
                let _ = ended.recv();
            }),
        };
        let mut watch = NodeWatch::start_with(Arc::default(), start);
        assert!(watch.thread.is_none() && watch.is_lost);
        assert!(watch.ensure_running() && watch.is_lost, "it may end again");
        while watch.thread.as_ref().is_some_and(|thread| !thread.handle.is_finished()) {
            thread::yield_now();
        }
        assert!(watch.ensure_running() && watch.is_lost);
        assert!(watch.ensure_running() && !watch.is_lost);
        assert_eq!(attempts.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn a_change_that_comes_alone_is_looked_into_at_once() {
        let start = Instant::now();
        let mut drift = NodeDrift::new(start);
        assert_eq!((drift.next_observation(), drift.take_due(start)), (None, None));
        let noticed = start + Duration::from_secs(5);
        drift.record_notice(NodeChange::Network.into(), start);
        assert!(!drift.may_leak() && drift.take_due(start).is_some(), "each pod changes the network");
        drift.record_notice(NodeChange::Sets.into(), noticed);
        assert!(drift.may_leak());
        let writer = Some("nft (process 7)".to_owned());
        let rules = NodeNotice { change: NodeChange::Rules, writer: writer.clone() };
        drift.record_notice(rules, noticed + Duration::from_millis(1));
        drift.record_notice(NodeChange::Sets.into(), noticed + Duration::from_millis(2));
        assert_eq!(drift.next_observation(), Some(noticed));
        let begun = drift.take_due(noticed).expect("it is due");
        assert_eq!((begun.noticed, &begun.writer), (noticed, &writer));
        assert!([NodeChange::Rules, NodeChange::Sets].into_iter().all(|kind| begun.has_kind(kind)));
        assert!(!begun.has_kind(NodeChange::Network));
        assert!(drift.next_observation().is_none() && !drift.may_leak());
        drift.restore_disturbance(begun.clone());
        assert_eq!(drift.take_due(noticed + Duration::from_secs(1)), Some(begun), "the observation failed");
    }

    #[test]
    fn the_next_look_waits_as_long_as_the_last_one_and_the_repairs_before_demand() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut drift = NodeDrift::new(start);
        // The cost of another component's events is bounded; an observation without a difference is no repair.
        drift.end_observation(Duration::from_millis(4), false, at(1000));
        drift.record_notice(NodeChange::Network.into(), at(1001));
        assert_eq!(drift.next_observation(), Some(at(1200)));
        assert!(drift.take_due(at(1199)).is_none() && drift.take_due(at(1200)).is_some());
        drift.end_observation(Duration::from_secs(60), false, at(2000));
        drift.record_notice(NodeChange::Rules.into(), at(2000));
        assert_eq!(
            drift.next_observation(),
            Some(at(7000)),
            "a slow look delays the next one by the longest pause at most"
        );
        let mut drift = NodeDrift::new(start);
        let mut now = at(1000);
        let mut pauses = Vec::new();
        for _ in 0..9 {
            drift.end_observation(Duration::ZERO, true, now);
            drift.record_notice(NodeChange::Rules.into(), now);
            let due = drift.next_observation().expect("there is a change");
            pauses.push((due - now).as_millis());
            assert!(due == now || drift.take_covered(ReconcileScope::Membership, now).is_none());
            now = due;
            assert!(drift.take_covered(ReconcileScope::Membership, now).is_some());
        }
        drift.end_observation(Duration::ZERO, true, now);
        drift.record_notice(NodeChange::Sets.into(), now);
        assert!(
            drift.take_due(now).is_none() && drift.take_without_rules().is_some(),
            "every pass reads sets"
        );
        drift.record_notice(NodeChange::Sets.into(), now);
        drift.record_notice(NodeChange::Rules.into(), now);
        assert!(drift.take_without_rules().is_none());
        assert!(drift.take_covered(ReconcileScope::Full, now).is_some(), "a full pass does not wait");
        assert_eq!(pauses, [0, 50, 100, 200, 400, 800, 1600, 3200, 5000]);
    }
}
