//! What the reconciler knows and reports, whatever the capture mode.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use model::{Pod, PodName, PodUid};
use planner::{
    AmbientStanding, DoubtedObjects, EnrolmentPolicy, SkipReason,
    ambient::{AMBIENT_REDIRECTION, standing},
    facts::FactIndex,
    node::MemberAddresses,
    ztunnel,
};
use pod_status::{CaptureState, CaptureStatus, Redirection};
use tracing::{info, warn};

use crate::{
    annotation::{AnnotationSink, AnnotationUpdate},
    history::ChangeHistory,
    ledger::AttachmentLedger,
    membership_pace::{MembershipPace, SeriesNotice},
    metrics::AgentMetrics,
    notice::{NoticeSink, NoticeTracker},
    reconciler::{self, PodWaiter, ReconcileScope},
    snapshot::{AgentSnapshot, CaptureSnapshot, KnownPod},
    status::AgentStatus,
};

/// A pod is not waited for longer than this.
const FORGOTTEN: Duration = Duration::from_secs(2);
/// After this time an annotation that the API does not show is submitted again.
const AGAIN: Duration = Duration::from_secs(20);

/// How long addresses in the set that belong to no known pod are kept after a start: the first list of pods may be older
/// than they are.
const GRACE: Duration = Duration::from_secs(60);

/// What the reconciler knows of the node's pods, and where it reports: the same for every capture mode.
pub struct AgentState {
    /// Which pods are enrolled.
    pub policy: EnrolmentPolicy,
    /// Pods and namespaces, as the API server or the manifests show them.
    pub index: FactIndex,
    /// Which address belongs to which pod, by the plugin's calls.
    pub ledger: AttachmentLedger,
    /// The agent's metrics.
    pub metrics: AgentMetrics,
    /// What probes and the debug state read from other threads.
    pub status: Arc<AgentStatus>,
    /// What has been published as Events.
    pub notices: NoticeTracker,
    pace: MembershipPace,
    tell: AnnotationSink,
    told: BTreeMap<PodUid, (Redirection, Instant)>,
    waiting: Vec<PodWaiter>,
    started: Instant,
    /// UIDs of pods whose sandbox was deleted, and that have no other.
    ended: BTreeSet<PodUid>,
    /// UIDs of all pods that were known at a pass soon after the start.
    seen: BTreeSet<PodUid>,
    pub(crate) dirty: Option<ReconcileScope>,
    /// The last changes of the node, and what caused the pass that is running.
    pub history: ChangeHistory,
    /// What is wrong with the node.
    pub(crate) trouble: Option<String>,
    /// The state of each pod, by UID, and since when.
    since: BTreeMap<PodUid, (CaptureState, SystemTime)>,
    began: SystemTime,
    /// Objects for which the API server's lists were not believed at the last pass.
    doubted: DoubtedObjects,
}

impl AgentState {
    pub(crate) fn new(
        policy: EnrolmentPolicy,
        metrics: AgentMetrics,
        status: Arc<AgentStatus>,
        tell: AnnotationSink,
        notify: NoticeSink,
    ) -> AgentState {
        AgentState {
            policy,
            index: FactIndex::default(),
            ledger: AttachmentLedger::default(),
            metrics,
            status,
            notices: NoticeTracker::new(notify),
            pace: MembershipPace::default(),
            tell,
            told: BTreeMap::new(),
            waiting: Vec::new(),
            started: Instant::now(),
            ended: BTreeSet::new(),
            seen: BTreeSet::new(),
            dirty: Some(ReconcileScope::Full),
            history: ChangeHistory::default(),
            trouble: None,
            since: BTreeMap::new(),
            began: SystemTime::now(),
            doubted: DoubtedObjects::default(),
        }
    }

    /// Requests a pass, of at least this scope.
    pub fn mark_dirty(&mut self, scope: ReconcileScope) {
        self.dirty = self.dirty.max(Some(scope));
    }

    /// Drops `who`, which ends the wait, if no pod will come: without ambient mode pods are followed only where the agent's
    /// role grants it.
    pub(crate) fn wait_for_pod(&mut self, who: PodWaiter) {
        if !self.policy.ambient && !self.index.has_pods() {
            return;
        }
        self.waiting.push(who);
        self.answer_waiting();
    }

    /// Answers those who wait for a pod that is known now, and forgets those who have given up.
    pub(crate) fn answer_waiting(&mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        for who in waiting.into_iter().filter(|who| who.since.elapsed() < FORGOTTEN) {
            match self.known(&who.name, &who.uid) {
                Some(known) => drop(who.reply.send(known)),
                None => self.waiting.push(who),
            }
        }
    }

    /// The pod that an ADD is about, which gave it these addresses. A caller that passes no UID, as Istio's own plugin, may
    /// mean a successor of the known pod of this name: a pod that has ended, or has other addresses, is not used for it.
    pub(crate) fn arriving(
        &self,
        name: &PodName,
        uid: &PodUid,
        ips: &[IpAddr],
    ) -> Option<reconciler::PodWithNamespace> {
        if uid.is_empty() && !self.policy.ambient {
            return None; // without ambient mode no DEL comes, by which a predecessor could be told
        }
        let known = self.known(name, uid)?;
        let (pod, _) = &known;
        let shown = pod.status.ips();
        let is_other = !shown.is_empty() && !ips.iter().any(|ip| shown.contains(ip));
        let has_ended = matches!(pod.status.phase.as_str(), "Succeeded" | "Failed");
        let is_before = pod.metadata.deleted.is_some() || has_ended || self.has_ended(pod) || is_other;
        (!uid.is_empty() || !is_before).then_some(known)
    }

    pub(crate) fn known(&self, name: &PodName, uid: &PodUid) -> Option<reconciler::PodWithNamespace> {
        let pod = self.index.pod(name).filter(|pod| uid.is_empty() || pod.has_runtime_uid(uid))?;
        let namespace = self.index.namespace(&name.namespace).cloned();
        // Without ambient mode no decision depends on namespaces, and nothing follows them.
        (namespace.is_some() || !self.policy.ambient).then(|| (Box::new(pod.clone()), namespace))
    }

    /// What the index answers and plans from is there.
    pub(crate) fn is_synced(&self) -> bool {
        self.index.is_synced() || !self.policy.ambient
    }

    /// The enrolled pods' UIDs by address; `inherited` are those that the kernel has.
    pub fn members(&mut self, inherited: &MemberAddresses) -> MemberAddresses {
        let Self { index, policy, pace, ledger, .. } = self;
        let standing = |pod: &Pod| paced(index, policy, pace, pod);
        let mut members = ledger.members(index, standing, inherited);
        if self.started.elapsed() >= GRACE {
            self.seen.clear();
            return members;
        }
        // A pod that was there and is not any more has ended.
        self.seen.extend(self.index.pods().map(|pod| pod.metadata.uid.clone()));
        for (ip, uid) in inherited {
            if !self.seen.contains(uid) && !self.ledger.has_released(uid, *ip) {
                members.entry(*ip).or_insert_with(|| uid.clone());
            }
        }
        members
    }

    /// Brings into effect which pods belong to ambient mode by their labels, each at a bounded rate.
    pub(crate) fn pace_memberships(&mut self, now: Instant) {
        self.pace.begin();
        for pod in self.index.pods() {
            let shown = standing(pod, self.index.namespace(&pod.metadata.namespace), &self.policy);
            let PodName { namespace, name } = pod.name();
            match self.pace.observe(&pod.metadata.uid, &shown, now) {
                Some(SeriesNotice::Begins) => {
                    warn!(target: "ambient", %namespace, pod = %name, "pod joins and leaves the mesh repeatedly; further changes are not logged");
                }
                Some(SeriesNotice::Ends(changes)) => {
                    info!(target: "ambient", %namespace, pod = %name, changes, "pod no longer joins and leaves the mesh repeatedly");
                }
                None => {}
            }
        }
        self.pace.end();
    }

    /// When a pod joins or leaves by a change of labels that came too early.
    pub(crate) fn paced_until(&self) -> Option<Instant> {
        self.pace.due()
    }

    /// A pod joins and leaves the mesh so often that this is not logged any more.
    #[must_use]
    pub fn is_flapping(&self, uid: &PodUid) -> bool {
        self.pace.is_flapping(uid)
    }

    /// Whether a pod belongs to ambient mode, by what the API shows and whether its sandbox exists. The API shows a deleted
    /// pod until the kubelet has seen it end; its DEL comes before that.
    pub fn standing(&self, pod: &Pod) -> AmbientStanding {
        match paced(&self.index, &self.policy, &self.pace, pod) {
            AmbientStanding::Member { .. } | AmbientStanding::Pending(_) if self.is_gone(pod) => {
                AmbientStanding::Out(SkipReason::Terminated)
            }
            standing => standing,
        }
    }

    /// A pod has a sandbox.
    pub(crate) fn begins(&mut self, pod: &Pod) {
        self.pace.starts(&pod.metadata.uid);
        self.ended.remove(&pod.metadata.uid);
        if let Some(hash) = pod.manifest_hash() {
            self.ended.remove(&hash);
        }
    }

    /// A sandbox of a pod was deleted.
    pub(crate) fn ends(&mut self, uid: &PodUid) {
        let has_other = !self.ledger.told(uid).is_empty();
        if !uid.is_empty() && !has_other {
            self.ended.insert(uid.clone());
        }
        if self.index.is_synced() {
            let known: BTreeSet<&PodUid> = self.index.pods().map(|pod| &pod.metadata.uid).collect();
            self.ended.retain(|ended| ended == uid || known.contains(ended));
        }
    }

    /// Its sandbox was deleted, and there is no other one.
    fn has_ended(&self, pod: &Pod) -> bool {
        let is_ended = |uid: &PodUid| self.ended.contains(uid);
        is_ended(&pod.metadata.uid) || pod.manifest_hash().as_ref().is_some_and(is_ended)
    }

    /// The same, and there will be no other: it is being deleted, or the API server's list lacks it.
    fn is_gone(&self, pod: &Pod) -> bool {
        (pod.metadata.deleted.is_some() || self.is_doubted(pod)) && self.has_ended(pod)
    }

    fn count_doubts(&mut self) {
        let doubted = self.index.doubted();
        if *doubted == self.doubted {
            return;
        }
        let new = doubted.pods.difference(&self.doubted.pods).count()
            + doubted.namespaces.difference(&self.doubted.namespaces).count();
        self.metrics.doubted(doubted.pods.len() + doubted.namespaces.len(), new);
        self.doubted = doubted.clone();
    }

    /// It is kept as it is known, although the API server's list differs.
    fn is_doubted(&self, pod: &Pod) -> bool {
        self.index.doubted().pods.contains(&pod.name())
    }

    /// Publishes the status of all pods: annotations, Events and metrics. `status` is given the addresses of a pod that
    /// belongs to ambient mode; `why`, given a pod's UID, returns why it is not captured.
    pub fn report_pods(
        &mut self,
        status: impl Fn(&Pod, Option<&[IpAddr]>) -> CaptureStatus,
        why: impl Fn(&PodUid) -> String,
    ) {
        let (mut enrolled, mut pending, mut joining) = (0, 0, 0);
        let mut refused: BTreeMap<&'static str, usize> = BTreeMap::new();
        let (mut marks, mut states) = (Vec::new(), Vec::new());
        self.notices.begin();
        for pod in self.index.pods() {
            if self.is_gone(pod) {
                continue; // it is not reported any more
            }
            let standing = self.standing(pod);
            let (is_member, status) = match &standing {
                AmbientStanding::Member { ips, .. } => (true, status(pod, Some(ips))),
                // Its address is not known yet.
                AmbientStanding::Pending(_) => {
                    (true, CaptureStatus { state: CaptureState::Pending, annotation: None })
                }
                AmbientStanding::Out(reason) => {
                    if reason.is_refusal() {
                        *refused.entry(reason.code()).or_default() += 1;
                    }
                    let status = status(pod, None);
                    let is_joining = self.pace.is_waiting(&pod.metadata.uid);
                    joining += usize::from(is_joining);
                    let state = if is_joining { CaptureState::Pending } else { status.state };
                    (false, CaptureStatus { state, ..status })
                }
            };
            // An annotation of the user's, by which it leaves in a moment, must not be replaced until then.
            let annotation = status.annotation.filter(|_| !self.pace.is_waiting(&pod.metadata.uid));
            self.notices.saw(pod, &standing, status, || why(&pod.metadata.uid), Instant::now());
            match status.annotation {
                Some(Redirection::Enabled) => enrolled += 1,
                // One that is deleted will not come.
                None | Some(Redirection::Pending) if is_member && pod.metadata.deleted.is_none() => {
                    pending += 1;
                }
                _ => {}
            }
            marks.extend(annotation.and_then(|redirection| mark(pod, redirection)));
            states.push((pod.metadata.uid.clone(), status.state));
        }
        self.remember(states);
        self.notices.end();
        self.metrics.pods(enrolled, pending + joining);
        self.count_doubts();
        self.metrics.refused(&refused);
        self.tell_marks(marks);
    }

    /// Since when each pod is in its state.
    fn remember(&mut self, states: Vec<(PodUid, CaptureState)>) {
        let now = SystemTime::now();
        let mut before = std::mem::take(&mut self.since);
        let mut differs = false;
        self.since = states
            .into_iter()
            .map(|(uid, state)| {
                let known = before.remove(&uid);
                let same = known.filter(|(was, _)| *was == state);
                differs |= same.is_none();
                (uid, same.unwrap_or((state, now)))
            })
            .collect();
        if differs || !before.is_empty() {
            self.status.changed();
        }
    }

    /// A copy of all that the debug state shows.
    pub(crate) fn snapshot(&self, way: CaptureSnapshot) -> AgentSnapshot {
        let known = |pod: &Pod| KnownPod {
            standing: self.standing(pod),
            namespace: self.index.namespace(&pod.metadata.namespace).cloned(),
            told: self.ledger.told(&pod.metadata.uid),
            ended: self.has_ended(pod),
            doubted: self.is_doubted(pod),
            since: self.since.get(&pod.metadata.uid).map(|(_, since)| *since),
            pod: pod.clone(),
        };
        AgentSnapshot {
            pods: self.index.pods().map(known).collect(),
            ztunnels: ztunnel::candidates(&self.index, &self.policy.ztunnel),
            synced: self.index.is_synced(),
            trouble: self.trouble.clone(),
            started: self.began,
            history: self.history.changes(),
            way,
        }
    }

    /// Submits annotations that the API does not show: each once, and again while the API still does not show it.
    fn tell_marks(&mut self, marks: Vec<AnnotationUpdate>) {
        let wanted: BTreeMap<&PodUid, Redirection> =
            marks.iter().map(|mark| (&mark.uid, mark.redirection)).collect();
        self.told.retain(|uid, (redirection, _)| wanted.get(uid) == Some(redirection));
        for mark in marks {
            let told = self.told.get(&mark.uid).is_some_and(|(_, when)| when.elapsed() < AGAIN);
            if !told {
                self.told.insert(mark.uid.clone(), (mark.redirection, Instant::now()));
                (self.tell)(mark);
            }
        }
    }

    /// Pods could not be observed, or not be captured.
    pub(crate) fn tell_failure(&mut self, trouble: &str) {
        self.notices.begin();
        for pod in self.index.pods() {
            let standing = self.standing(pod);
            self.notices.failed(pod, &standing, trouble, Instant::now());
        }
        self.notices.end();
    }

    /// Marks every pod as not captured: none of our rules will be left.
    pub(crate) fn unmark_all(&self) {
        let unmark = |pod: &Pod| mark(pod, Redirection::None);
        self.index.pods().filter_map(unmark).for_each(|mark| (self.tell)(mark));
    }
}

/// The standing of a pod by its labels, as it is in effect.
fn paced(index: &FactIndex, policy: &EnrolmentPolicy, pace: &MembershipPace, pod: &Pod) -> AmbientStanding {
    pace.standing(pod, standing(pod, index.namespace(&pod.metadata.namespace), policy))
}

/// `None` if the annotation has this value already.
fn mark(pod: &Pod, redirection: Redirection) -> Option<AnnotationUpdate> {
    let shown = pod.metadata.annotations.get(AMBIENT_REDIRECTION).map(String::as_str);
    // Another value was set by the user, and has another meaning.
    let shown = shown.filter(|value| Redirection::VALUES.contains(value));
    (shown != redirection.value()).then(|| AnnotationUpdate {
        pod: pod.name(),
        uid: pod.metadata.uid.clone(),
        redirection,
    })
}
