//! State and reports of the reconciler that do not depend on the capture mode.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use enrolment::{
    AmbientStanding, EnrolmentPolicy, SkipReason, UnconfirmedObjects,
    ambient::pod_standing,
    facts::{ChangedPod, Fact, FactChange, FactIndex, WatchedCollection},
    ztunnel,
};
use model::{MemberAddresses, Pod, PodName, PodUid};
use pod_status::{CaptureState, CaptureStatus, Evidence, PodLife, Redirection};
use tracing::{info, warn};

use crate::{
    annotation::{AnnotationPublisher, AnnotationUpdate},
    history::ChangeHistory,
    ledger::AttachmentLedger,
    membership_pace::{MembershipPace, SeriesNotice},
    metrics::AgentMetrics,
    notice::NoticeTracker,
    reconciler::{self, AgentOutputs, PodWaiter, ReconcileScope},
    snapshot::{AgentSnapshot, CaptureSnapshot, KnownPod},
    status::AgentStatus,
    watch_health::WatchHealth,
};

/// Maximum time that a request waits for a pod.
const FORGOTTEN: Duration = Duration::from_secs(2);
/// Time after a start for which addresses in the set that belong to no known pod are kept: the first list of pods may be older than
/// they are.
const GRACE: Duration = Duration::from_secs(60);

/// Number of changed pods above which a pass considers all pods.
const MANY: usize = 64;

/// Pods that have changed since the last pass, and addresses that they had: a pass need not consider others.
#[derive(Clone, Debug, Default)]
pub struct ChangedPods {
    /// Names by UID; empty for a pod that the API does not show.
    pub pods: BTreeMap<PodUid, PodName>,
    /// Addresses that they released.
    pub ips: BTreeSet<IpAddr>,
}

/// Reported state of a pod.
#[derive(Debug)]
struct PodReport {
    namespace: String,
    state: CaptureState,
    /// Since when the pod is in that state.
    /// `None`: since before this agent first observed the pods.
    since: Option<SystemTime>,
    /// Reason why the mesh refuses a pod that requests it.
    refused: Option<&'static str>,
}

/// Knowledge of the node's pods, and the destinations of reports, common to all capture modes.
pub struct AgentState {
    /// Decides which pods are enrolled.
    pub policy: EnrolmentPolicy,
    /// Pods and namespaces, from the API server or the manifests.
    pub index: FactIndex,
    /// Owners of addresses, from the plugin's calls.
    pub ledger: AttachmentLedger,
    /// The agent's metrics.
    pub metrics: AgentMetrics,
    /// State of the agent, which probes and the debug state read from other threads.
    pub status: Arc<AgentStatus>,
    /// Notices published as Events, and pending ones.
    pub notices: NoticeTracker,
    pub(crate) pace: MembershipPace,
    annotations: AnnotationPublisher,
    waiting: Vec<PodWaiter>,
    pub(crate) started: Instant,
    /// UIDs of pods whose sandbox was deleted, and that have no other.
    ended: BTreeSet<PodUid>,
    /// UIDs of all pods known at a pass soon after the start.
    observed: BTreeSet<PodUid>,
    pub(crate) dirty: Option<ReconcileScope>,
    changed: ChangedPods,
    /// Recent changes of the node, and causes of the current pass.
    pub history: ChangeHistory,
    /// Problem of the node, if there is one.
    pub(crate) problem: Option<String>,
    /// Last report of each pod, by UID.
    reports: BTreeMap<PodUid, PodReport>,
    /// Whether pods have been reported: the first report of a pod after that is a transition.
    has_reported: bool,
    /// Objects for which the API server's lists were ignored at the last pass.
    unconfirmed: UnconfirmedObjects,
    watches: WatchHealth,
}

impl AgentState {
    pub(crate) fn new(
        policy: EnrolmentPolicy,
        AgentOutputs { metrics, status, annotate, notify }: AgentOutputs,
    ) -> AgentState {
        AgentState {
            policy,
            index: FactIndex::default(),
            ledger: AttachmentLedger::default(),
            metrics,
            status,
            notices: NoticeTracker::new(notify),
            pace: MembershipPace::default(),
            annotations: AnnotationPublisher::new(annotate),
            waiting: Vec::new(),
            started: Instant::now(),
            ended: BTreeSet::new(),
            observed: BTreeSet::new(),
            dirty: Some(ReconcileScope::Full),
            changed: ChangedPods::default(),
            history: ChangeHistory::default(),
            problem: None,
            reports: BTreeMap::new(),
            has_reported: false,
            unconfirmed: UnconfirmedObjects::default(),
            watches: WatchHealth::default(),
        }
    }

    /// Requests a pass, of at least this scope.
    pub fn mark_dirty(&mut self, scope: ReconcileScope) {
        self.dirty = self.dirty.max(Some(scope));
    }

    /// Requests a pass that considers at least the pod with this UID; `released`: addresses that it released.
    pub fn mark_pod(&mut self, uid: &PodUid, released: &[IpAddr]) {
        self.changed.ips.extend(released);
        let known = self.index.pods().find(|pod| pod.metadata.uid == *uid).map(Pod::name);
        self.mark_named(uid.clone(), known.unwrap_or_default());
    }

    fn mark_named(&mut self, uid: PodUid, name: PodName) {
        self.changed.pods.insert(uid, name);
        let is_many = self.changed.pods.len() > MANY;
        self.mark_dirty(if is_many { ReconcileScope::Membership } else { ReconcileScope::Pods });
    }

    /// Records a fact, and requests a pass for the change. Returns false if nothing changed.
    pub(crate) fn apply_fact(&mut self, fact: Fact) -> bool {
        if let Fact::Watched(collection, result) = fact {
            self.watches.record_watch(collection, result, Instant::now());
            return false;
        }
        let changed = match self.index.apply_fact(fact) {
            FactChange::Nothing => return false,
            FactChange::Pods(changed) if changed.len() <= MANY => changed,
            FactChange::Pods(_) | FactChange::All => {
                self.mark_dirty(ReconcileScope::Membership);
                return true;
            }
        };
        for ChangedPod { name, before } in changed {
            let now = self.index.pod(&name);
            // A change of a ztunnel pod affects all pods.
            let is_of_all = before.iter().chain(now).any(|pod| self.policy.ztunnel.matches(pod));
            let uids: BTreeSet<PodUid> =
                before.iter().chain(now).map(|pod| pod.metadata.uid.clone()).collect();
            uids.into_iter().for_each(|uid| self.mark_named(uid, name.clone()));
            if is_of_all {
                self.mark_dirty(ReconcileScope::Membership);
            }
        }
        true
    }

    /// Returns the pods that a pass of this scope considers; `None`: all of them.
    pub fn changed_pods(&self, scope: ReconcileScope) -> Option<ChangedPods> {
        (scope == ReconcileScope::Pods).then(|| self.changed.clone())
    }

    /// Returns the pods that a pass considers; `None`: all that are known.
    pub fn considered_pods(&self, only: Option<&ChangedPods>) -> Vec<&Pod> {
        select_pods(&self.index, only)
    }

    /// Clears the changed pods after a pass has considered them.
    pub(crate) fn forget_changed(&mut self) {
        self.changed = ChangedPods::default();
    }

    /// Registers a waiter, or drops it, which ends the wait, if no pod will arrive: without ambient mode pods are followed only if
    /// the agent's role permits it.
    pub(crate) fn wait_for_pod(&mut self, who: PodWaiter) {
        if !self.policy.ambient && !self.index.has_pods() {
            return;
        }
        self.waiting.push(who);
        self.answer_waiting();
    }

    /// Answers waiters whose pod is known now, and drops expired ones.
    pub(crate) fn answer_waiting(&mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        for who in waiting.into_iter().filter(|who| who.since.elapsed() < FORGOTTEN) {
            match self.find_known_pod(&who.name, &who.uid) {
                Some(known) => drop(who.reply.send(known)),
                None => self.waiting.push(who),
            }
        }
    }

    /// Returns the pod of an ADD with these addresses. A caller that passes no UID, such as Istio's own plugin, may mean a
    /// successor of the known pod of this name: a pod that has ended, or has other addresses, is therefore not returned.
    pub(crate) fn find_arriving_pod(
        &self,
        name: &PodName,
        uid: &PodUid,
        ips: &[IpAddr],
    ) -> Option<reconciler::PodWithNamespace> {
        if uid.is_empty() && !self.policy.ambient {
            return None; // without ambient mode no DEL is sent that would identify a predecessor
        }
        let known = self.find_known_pod(name, uid)?;
        let (pod, _) = &known;
        let shown = pod.status.ips();
        // A pod without addresses is probably the one of this ADD: the kubelet reports them after it.
        let is_other = !shown.is_empty() && !ips.iter().any(|ip| shown.contains(ip));
        (!uid.is_empty() || !(is_other || self.has_ended(pod))).then_some(known)
    }

    /// Returns the pod of this name, if it is the one with this UID. Without a UID, a pod that has ended or is being deleted is not
    /// meant, because it gets no other sandbox.
    pub(crate) fn find_known_pod(
        &self,
        name: &PodName,
        uid: &PodUid,
    ) -> Option<reconciler::PodWithNamespace> {
        let may_start = |pod: &Pod| pod.metadata.deleted.is_none() && !pod.status.has_ended();
        let is_meant = |pod: &Pod| if uid.is_empty() { may_start(pod) } else { pod.has_runtime_uid(uid) };
        let pod = self.index.pod(name).filter(|pod| is_meant(pod))?;
        let namespace = self.index.namespace(&name.namespace).cloned();
        // Without ambient mode no decision depends on namespaces, and they are not followed.
        (namespace.is_some() || !self.policy.ambient).then(|| (Box::new(pod.clone()), namespace))
    }

    /// Whether a decision on a known pod may be based on labels of its namespace that have changed since.
    pub(crate) fn may_be_outdated(&self) -> bool {
        self.policy.ambient && self.watches.is_failing(WatchedCollection::Namespaces, Instant::now())
    }

    /// Whether the facts needed to answer requests and plan passes were received. Always true without ambient mode.
    pub(crate) fn is_synced(&self) -> bool {
        self.index.is_synced() || !self.policy.ambient
    }

    /// Returns the enrolled pods' UIDs by address; `inherited`: those in the kernel.
    pub fn resolve_members(&mut self, inherited: &MemberAddresses) -> MemberAddresses {
        let Self { index, policy, pace, ledger, .. } = self;
        let standing = |pod: &Pod| paced_standing(index, policy, pace, pod);
        let members = ledger.resolve_members(index, standing, inherited);
        self.keep_unobserved(None, members, inherited)
    }

    /// Resolves members like [`Self::resolve_members`], but only for the addresses `ips`, after a change of only the pods in
    /// `changed`.
    pub fn members_among(
        &mut self,
        ips: &BTreeSet<IpAddr>,
        changed: &ChangedPods,
        inherited: &MemberAddresses,
    ) -> MemberAddresses {
        let Self { index, policy, pace, ledger, .. } = self;
        let standing = |pod: &Pod| paced_standing(index, policy, pace, pod);
        let members = ledger.members_among((ips, &changed.pods), index, standing, inherited);
        let mut members = self.keep_unobserved(Some(changed), members, inherited);
        members.retain(|ip, _| ips.contains(ip));
        members
    }

    /// Keeps inherited members of pods never observed: one that was observed and is missing now has ended, any other may be missing
    /// in an outdated list. `only`: no other pods changed.
    fn keep_unobserved(
        &mut self,
        only: Option<&ChangedPods>,
        mut members: MemberAddresses,
        inherited: &MemberAddresses,
    ) -> MemberAddresses {
        // By now the watch has shown the pods that an outdated first list lacked.
        if self.started.elapsed() >= GRACE {
            self.observed.clear();
            return members;
        }
        let pods = select_pods(&self.index, only).into_iter();
        self.observed.extend(pods.map(|pod| pod.metadata.uid.clone()));
        for (ip, uid) in inherited {
            if !self.observed.contains(uid) && !self.ledger.has_released(uid, *ip) {
                members.entry(*ip).or_insert_with(|| uid.clone());
            }
        }
        members
    }

    /// Applies changes of membership by labels, at a bounded rate for each pod.
    pub(crate) fn pace_memberships(&mut self, scope: ReconcileScope, now: Instant) {
        let is_partial = scope == ReconcileScope::Pods;
        let pods = select_pods(&self.index, is_partial.then_some(&self.changed));
        if !is_partial {
            let known: BTreeSet<&PodUid> = pods.iter().map(|pod| &pod.metadata.uid).collect();
            self.pace.begin_observation(|uid| known.contains(uid));
        }
        for pod in pods {
            let shown = pod_standing(pod, self.index.namespace(&pod.metadata.namespace), &self.policy);
            let PodName { namespace, name } = pod.name();
            match self.pace.observe_pod(&pod.metadata.uid, &shown, now) {
                Some(SeriesNotice::Begins) => {
                    warn!(target: "ambient", %namespace, pod = %name, "pod joins and leaves the mesh repeatedly; further changes are not logged");
                }
                Some(SeriesNotice::Ends(changes)) => {
                    info!(target: "ambient", %namespace, pod = %name, changes, "pod no longer joins and leaves the mesh repeatedly");
                }
                None => {}
            }
        }
    }

    /// Whether a pod joins and leaves the mesh so often that this is no longer logged.
    pub fn is_flapping(&self, uid: &PodUid) -> bool {
        self.pace.is_flapping(uid)
    }

    /// Returns whether a pod belongs to ambient mode, from the API and the state of its sandbox. The API shows a deleted pod until
    /// the kubelet has observed its end; its DEL precedes that.
    pub fn pod_standing(&self, pod: &Pod) -> AmbientStanding {
        match paced_standing(&self.index, &self.policy, &self.pace, pod) {
            AmbientStanding::Member { .. } | AmbientStanding::Pending(_) if self.is_gone(pod) => {
                AmbientStanding::Out(SkipReason::Terminated)
            }
            standing => standing,
        }
    }

    /// Records that a pod has a sandbox.
    pub(crate) fn record_sandbox_start(&mut self, pod: &Pod) {
        self.pace.reset_pod(&pod.metadata.uid);
        self.ended.remove(&pod.metadata.uid);
    }

    /// Records that the last known sandbox of a pod was deleted.
    pub(crate) fn record_sandbox_end(&mut self, uid: &PodUid) {
        if !uid.is_empty() {
            self.ended.insert(uid.clone());
        }
        if self.index.is_synced() {
            let known: BTreeSet<&PodUid> = self.index.pods().map(|pod| &pod.metadata.uid).collect();
            self.ended.retain(|ended| ended == uid || known.contains(ended));
        }
    }

    /// Whether the pod's sandbox was deleted and it has no other one.
    fn has_ended(&self, pod: &Pod) -> bool {
        self.ended.contains(&pod.metadata.uid)
    }

    /// Whether the API shows an address of the pod that is not among those that it released: it has another sandbox, which the plugin
    /// enrolled alone.
    fn has_new_address(&self, pod: &Pod) -> bool {
        let uid = &pod.metadata.uid;
        let is_new = |ip: &IpAddr| !self.ledger.has_released(uid, *ip);
        self.ledger.has_released_any(uid) && pod.status.ips().iter().any(is_new)
    }

    /// Whether the pod's sandbox was deleted and no other one will follow: the pod is being deleted, or missing in the API server's
    /// list.
    fn is_gone(&self, pod: &Pod) -> bool {
        (pod.metadata.deleted.is_some() || self.is_unconfirmed(pod)) && self.has_ended(pod)
    }

    fn count_unconfirmed(&mut self) {
        let unconfirmed = self.index.unconfirmed_objects();
        if *unconfirmed == self.unconfirmed {
            return;
        }
        let new = unconfirmed.pods.difference(&self.unconfirmed.pods).count()
            + unconfirmed.namespaces.difference(&self.unconfirmed.namespaces).count();
        self.metrics.record_unconfirmed(unconfirmed.pods.len() + unconfirmed.namespaces.len(), new);
        self.unconfirmed = unconfirmed.clone();
    }

    /// Whether the pod is kept as known, although the API server's list differs.
    fn is_unconfirmed(&self, pod: &Pod) -> bool {
        self.index.unconfirmed_objects().pods.contains(&pod.name())
    }

    /// Returns the phase of a pod's life, by the API and by its DEL: the API does not show the removal of a sandbox.
    pub(crate) fn pod_life(&self, pod: &Pod) -> PodLife {
        match pod.status.phase.as_str() {
            _ if self.has_ended(pod) && !self.has_new_address(pod) => PodLife::Ending,
            "Running" => PodLife::Running,
            _ => PodLife::Starting,
        }
    }

    /// Publishes the status of pods: annotations, Events and metrics. `only`: the status of other pods is unchanged. `status`
    /// receives the phase of a pod's life and, if it belongs to ambient mode, its addresses; `why` returns, for a pod's UID, the reason
    /// why it is not captured.
    pub fn report_pods(
        &mut self,
        only: Option<&ChangedPods>,
        status: impl Fn(&Pod, PodLife, Option<&[IpAddr]>) -> CaptureStatus,
        why: impl Fn(&PodUid) -> String,
    ) {
        let now = self.has_reported.then(SystemTime::now);
        let (mut marks, mut reports) = (Vec::new(), BTreeMap::new());
        for pod in select_pods(&self.index, only) {
            if self.is_gone(pod) {
                continue; // no longer reported
            }
            let uid = &pod.metadata.uid;
            let (standing, life, is_waiting) =
                (self.pod_standing(pod), self.pod_life(pod), self.pace.is_waiting(uid));
            let (refused, status) = match &standing {
                AmbientStanding::Member { ips, .. } => (None, status(pod, life, Some(ips))),
                // Its address is still unknown.
                AmbientStanding::Pending(_) => {
                    (None, CaptureStatus { state: CaptureState::Pending, annotation: None })
                }
                AmbientStanding::Out(reason) => {
                    let mut status = status(pod, life, None);
                    if *reason == SkipReason::NamespaceUnknown && status.state == CaptureState::Outside {
                        status = Evidence::UNDETERMINED.classify();
                    }
                    let state = if is_waiting { CaptureState::Pending } else { status.state };
                    let refused = reason.is_refusal().then(|| reason.code());
                    (refused, CaptureStatus { state, ..status })
                }
            };
            self.notices.observe_pod(pod, life, &standing, status, || why(uid), Instant::now());
            // A user's annotation that is about to remove the pod from the mesh must not be replaced.
            let annotation = status.annotation.filter(|_| !is_waiting);
            marks.extend(annotation.and_then(|redirection| AnnotationUpdate::for_pod(pod, redirection)));
            let namespace = pod.metadata.namespace.clone();
            let report = PodReport { namespace, state: status.state, since: now, refused };
            reports.insert(uid.clone(), report);
        }
        match only {
            None => self.notices.retain_pods(|uid| reports.contains_key(uid)),
            Some(changed) => {
                let gone = changed.pods.keys().filter(|uid| !reports.contains_key(*uid));
                gone.for_each(|uid| self.notices.forget_pod(uid));
            }
        }
        self.store_reports(only, reports);
        self.has_reported = true;
        self.count_pods();
        self.count_unconfirmed();
        self.metrics.set_stale_collections(&self.watches.stale_collections(Instant::now()));
        self.annotations.publish_updates(only, marks, Instant::now());
    }

    /// Stores the reports, and since when each pod is in its state.
    fn store_reports(&mut self, only: Option<&ChangedPods>, reports: BTreeMap<PodUid, PodReport>) {
        let before: BTreeMap<PodUid, PodReport> = match only {
            None => std::mem::take(&mut self.reports),
            Some(changed) => changed.pods.keys().filter_map(|uid| self.reports.remove_entry(uid)).collect(),
        };
        let mut differs = before.len() != reports.len();
        for (uid, mut report) in reports {
            match before.get(&uid).filter(|known| known.state == report.state) {
                Some(known) => report.since = known.since,
                None => differs = true,
            }
            self.reports.insert(uid, report);
        }
        if differs {
            self.status.record_change();
        }
    }

    fn count_pods(&self) {
        let states = self.reports.values().map(|report| (report.namespace.as_str(), report.state));
        self.metrics.mesh_pods.set_pod_counts("ambient", states);
        let mut refused: BTreeMap<&'static str, usize> = BTreeMap::new();
        for reason in self.reports.values().filter_map(|report| report.refused) {
            *refused.entry(reason).or_default() += 1;
        }
        self.metrics.set_refused_pods(&refused);
    }

    /// Returns a copy of everything that the debug state shows.
    pub(crate) fn snapshot(&self, capture: CaptureSnapshot) -> AgentSnapshot {
        AgentSnapshot {
            namespaces: self.index.namespace_names().map(str::to_owned).collect(),
            pods: self.index.pods().map(|pod| self.snapshot_pod(pod)).collect(),
            ztunnels: ztunnel::list_candidates(&self.index, &self.policy.ztunnel),
            synced: self.index.is_synced(),
            has_pods: self.index.has_pods(),
            stale: self.watches.stale_collections(Instant::now()),
            problem: self.problem.clone(),
            history: self.history.newest_changes(),
            capture,
        }
    }

    fn snapshot_pod(&self, pod: &Pod) -> KnownPod {
        KnownPod {
            standing: self.pod_standing(pod),
            namespace: self.index.namespace(&pod.metadata.namespace).cloned(),
            reported_ips: self.ledger.added_addresses(&pod.metadata.uid),
            life: self.pod_life(pod),
            unconfirmed: self.is_unconfirmed(pod),
            since: self.reports.get(&pod.metadata.uid).and_then(|report| Some((report.state, report.since?))),
            pod: pod.clone(),
        }
    }

    /// Reports that pods could not be observed or captured.
    pub(crate) fn report_failure(&mut self, problem: &str) {
        for pod in self.index.pods() {
            let (standing, life) = (self.pod_standing(pod), self.pod_life(pod));
            self.notices.observe_failure(pod, life, &standing, problem, Instant::now());
        }
        let known: BTreeSet<&PodUid> = self.index.pods().map(|pod| &pod.metadata.uid).collect();
        self.notices.retain_pods(|uid| known.contains(uid));
    }

    /// Annotates every pod as not captured: none of our rules will be left.
    pub(crate) fn remove_annotations(&self) {
        let unmark = |pod: &Pod| AnnotationUpdate::for_pod(pod, Redirection::None);
        self.index.pods().filter_map(unmark).for_each(|mark| self.annotations.submit(mark));
    }
}

/// Returns the pods that a pass considers; `None`: all that are known.
fn select_pods<'a>(index: &'a FactIndex, only: Option<&ChangedPods>) -> Vec<&'a Pod> {
    only.map_or_else(|| index.pods().collect(), |changed| index.pods_with(&changed.pods).collect())
}

/// Returns the standing of a pod by its labels, with delayed changes excluded.
fn paced_standing(
    index: &FactIndex,
    policy: &EnrolmentPolicy,
    pace: &MembershipPace,
    pod: &Pod,
) -> AmbientStanding {
    pace.effective_standing(pod, pod_standing(pod, index.namespace(&pod.metadata.namespace), policy))
}
