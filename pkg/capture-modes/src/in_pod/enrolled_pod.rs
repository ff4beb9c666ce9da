//! A pod that has in-pod redirection, joins it or leaves it: its life cycle, and what its actions need.

use std::{
    net::IpAddr,
    sync::Arc,
    time::{Instant, SystemTime},
};

use enrolment::inpod::EffectiveOptions;
use inpod::PodRulesSnapshot;
use model::{ContainerId, ExistingConnections, NetworkPrivilege, Pod, PodName, PodUid, Reason};
use netns::{Netns, NetnsId};
use netns_changes::{Change, NetnsDisturbance, NetnsWatch};
use pod_identity::{AmbiguityStreak, Witness};
use pod_status::{
    Evidence, PodLife,
    lifecycle::{AgentTime, Lifecycle, RulesState},
};
use tracing::{debug, info};
use zds::Workload;

use super::worker::GenerationCheck;
use agent::{CaptureReply, CaptureResult, EnrolledPodView};

/// So many generation checks of a pod's rules follow each other: with the full one, four minutes.
const GENERATION_CHECKS: u32 = 5;

/// The pod.
#[derive(Debug)]
pub(super) struct EnrolledPod {
    pub(super) name: PodName,
    pub(super) service_account: String,
    pub(super) ips: Vec<IpAddr>,
    pub(super) options: rules::inpod::PodOptions,
    /// Exceptions that were asked for and are not applied, each in a sentence without a full stop.
    pub(super) refused_exceptions: Vec<String>,
    /// Options that its annotations ask for, until they are taken in.
    pub(super) asked: Option<EffectiveOptions>,
    /// Treatment of the connections that the pod has when it joins.
    pub(super) existing: ExistingConnections,
    /// The pod's privilege over its own network namespace.
    pub(super) privilege: NetworkPrivilege,
    /// The container of its last ADD; empty if its namespace was found.
    pub(super) container: ContainerId,
    /// The pod's network namespace. [`Self::lifecycle`] has only the identity of it.
    pub(super) netns: Option<Arc<Netns>>,
    /// The evidence on which this namespace is attributed to it.
    pub(super) witness: Option<Witness>,
    /// The last searches, if they could not decide which namespace is its own. The known one stays.
    pub(super) ambiguity: Option<AmbiguityStreak>,
    /// Whether the pod joins and leaves the mesh so often that this is logged at debug level.
    pub(super) quiet: bool,
    /// State of the pod in its life cycle.
    pub(super) lifecycle: Lifecycle<NetnsId>,
    /// When the last work on it began.
    pub(super) begun: Instant,
    /// The watch over its namespace; `None`: the next observation begins one.
    pub(super) watch: Option<NetnsWatch<PodUid>>,
    /// A change of its namespace that the observation under way was begun for.
    pub(super) examined: Option<NetnsDisturbance>,
    /// A later one, for the next observation.
    pub(super) disturbance: Option<NetnsDisturbance>,
    /// The last observation of its rules.
    pub(super) observed_rules: Option<Arc<PodRulesSnapshot>>,
    /// Generation checks of its rules since they were last read.
    generation_checks: u32,
    /// When its rules were last observed.
    pub(super) observed_at: Option<SystemTime>,
    /// The requests that wait for its ADD.
    pub(super) waiting: Vec<CaptureReply>,
}

impl EnrolledPod {
    /// `annotation`: what the API shows as its redirection.
    pub(super) fn new(
        pod: &Pod,
        EffectiveOptions { options, refused }: EffectiveOptions,
        existing: ExistingConnections,
        annotation: Option<&str>,
        now: AgentTime,
    ) -> EnrolledPod {
        EnrolledPod {
            name: pod.name(),
            service_account: pod.spec.service_account_name.clone(),
            ips: pod.status.ips(),
            options,
            refused_exceptions: refused,
            asked: None,
            existing,
            privilege: pod.network_privilege(),
            container: ContainerId::default(),
            netns: None,
            witness: None,
            ambiguity: None,
            quiet: false,
            lifecycle: Lifecycle::new(annotation, now),
            begun: Instant::now(),
            watch: None,
            examined: None,
            disturbance: None,
            observed_rules: None,
            generation_checks: 0,
            observed_at: None,
            waiting: Vec::new(),
        }
    }

    /// Has the pod the options that its annotations ask for, unless it had others a moment ago. Returns whether its rules are others
    /// now.
    pub(super) fn choose_options(&mut self, now: AgentTime) -> bool {
        if !self.lifecycle.may_change(now) {
            return false;
        }
        let Some(EffectiveOptions { mut options, refused }) = self.asked.take() else { return false };
        self.refused_exceptions = refused;
        options.open = self.options.open;
        let changed = self.options != options;
        self.options = options;
        changed
    }

    /// Has the pod's traffic go on without ztunnel, or not, as its options say. `is_away`: no ztunnel has been there for long.
    /// Returns whether that changed.
    pub(super) fn open_or_close(&mut self, is_unavailable: bool) -> bool {
        let open = is_unavailable && self.options.exceptions.without_ztunnel;
        let changed = std::mem::replace(&mut self.options.open, open) != open;
        if changed {
            (self.observed_rules, self.observed_at) = (None, None); // the other rules
        }
        changed
    }

    /// Logs that it joins or leaves.
    pub(super) fn log_transition(&self, message: &'static str, reason: Option<&str>) {
        let PodName { namespace, name } = &self.name;
        if self.quiet {
            debug!(target: "ambient", %namespace, pod = %name, reason, "{message}");
        } else {
            info!(target: "ambient", %namespace, pod = %name, reason, "{message}");
        }
    }

    /// Sets its namespace, with the evidence for it. Returns its identity for the life cycle.
    pub(super) fn set_netns(&mut self, netns: Netns, witness: Witness) -> NetnsId {
        let id = netns.id();
        (self.witness, self.ambiguity) = (Some(witness), None);
        if self.netns_id() != Some(id) {
            self.netns = Some(Arc::new(netns));
            (self.observed_rules, self.watch) = (None, None);
            (self.examined, self.disturbance) = (None, None);
        }
        id
    }

    pub(super) fn netns_id(&self) -> Option<NetnsId> {
        self.netns.as_ref().map(|netns| netns.id())
    }

    /// Returns the evidence for everything that is reported of the pod. `served`: by a ztunnel that is connected.
    pub(super) fn evidence(&self, life: PodLife, served: bool) -> Evidence {
        self.lifecycle.capture_evidence(life, served, self.overruling_rules().next().is_some())
    }

    /// Rules of other components that precede ours, as they were last observed.
    pub(super) fn overruling_rules(&self) -> impl Iterator<Item = &str> {
        self.observed_rules.iter().flat_map(|rules| rules.bypass_reasons())
    }

    /// Whether it ends with a container. `is_last`: no other container of it is known.
    pub(super) fn ends_with(&self, container: &ContainerId, is_last: bool) -> bool {
        self.container == *container || (self.container.is_empty() && is_last)
    }

    pub(super) fn to_workload(&self, uid: &PodUid) -> Workload {
        Workload {
            uid: uid.clone(),
            name: self.name.name.clone(),
            namespace: self.name.namespace.clone(),
            service_account: self.service_account.clone(),
            netns: self.netns.clone(),
        }
    }

    /// Whether the generation of nf_tables' rules is enough for the next look at them: the last full look found everything in place,
    /// and whatever changed since would be notified, except new legacy tables. The pod itself cannot make any, and for those of a
    /// component on the node a full observation follows a few of these.
    pub(super) fn can_check_generation(&self) -> bool {
        let is_decisive = |rules: &Arc<PodRulesSnapshot>| rules.decisive_generation().is_some();
        self.lifecycle.rules_state() == RulesState::Verified
            && self.lifecycle.last_failure().is_none()
            && self.privilege < NetworkPrivilege::NetAdmin
            && self.generation_checks < GENERATION_CHECKS
            && self.disturbance.is_none()
            && self.observed_rules.as_ref().is_some_and(is_decisive)
            && self.watch.is_some()
    }

    /// A check of its rules, which begins now, if there is something to compare them with.
    pub(super) fn generation_check(&mut self, uid: &PodUid) -> Option<GenerationCheck> {
        let (netns, before) = (self.netns.clone()?, self.observed_rules.clone()?);
        self.begun = Instant::now();
        let watch = self.watch.as_ref().filter(|_| self.can_check_generation()).map(NetnsWatch::id);
        self.generation_checks = if watch.is_some() { self.generation_checks + 1 } else { 0 };
        Some(GenerationCheck { uid: uid.clone(), netns, pod: self.options.clone(), before, watch })
    }

    /// Takes in that its namespace changed, unless the change was observed. Returns whether an observation is due.
    pub(super) fn record_disturbance(&mut self, change: Change<PodUid>) -> bool {
        // Of a watch that is just being begun, the result of the observation will tell.
        let is_own = self.watch.as_ref().is_none_or(|watch| watch.id() == change.watch);
        let disturbance = NetnsDisturbance::new(change);
        if !is_own
            || disturbance.was_observed(self.observed_rules.as_ref().and_then(|rules| rules.generation()))
        {
            return false;
        }
        self.disturbance = Some(match self.disturbance.take() {
            Some(earlier) => earlier.merge_with(disturbance),
            None => disturbance,
        });
        true
    }

    /// An observation has ended. Returns what it was begun for, or what happened meanwhile and it saw.
    pub(super) fn end_observation(&mut self) -> Option<NetnsDisturbance> {
        let generation = self.observed_rules.as_ref().and_then(|rules| rules.generation());
        let observed = self.disturbance.take_if(|disturbance| disturbance.was_observed(generation));
        self.examined.take().or(observed)
    }

    /// The namespace in which the pod's rules were applied. They hold its traffic while no ztunnel serves it.
    pub(super) fn ruled_in(&self) -> Result<Arc<Netns>, Reason> {
        let ruled = self.netns.as_ref().filter(|_| self.lifecycle.is_ruled());
        ruled.cloned().ok_or_else(|| "its rules are not in place".into())
    }

    /// Returns the state of the pod, for the debug state.
    pub(super) fn to_view(&self, served: bool) -> EnrolledPodView {
        let ambiguity = self.ambiguity.map(|streak| streak.to_string());
        EnrolledPodView {
            evidence: self.evidence(PodLife::Running, served),
            ips: self.ips.clone(),
            options: self.options.clone(),
            refused_exceptions: self.refused_exceptions.clone(),
            netns: self.netns.clone(),
            ruled: self.lifecycle.is_ruled(),
            verified: self.lifecycle.rules_state() == RulesState::Verified,
            repairs: if self.lifecycle.is_unstable() { self.lifecycle.repair_count() } else { 0 },
            leaving: self.lifecycle.is_leaving(),
            refused: self.lifecycle.refusal_reason().map(str::to_owned),
            observed_at: self.observed_at,
            observed_rules: self.observed_rules.clone(),
            witness: self.witness,
            ambiguity: self.ambiguity.map(|streak| streak.why),
            problem: ambiguity.or_else(|| self.lifecycle.last_failure().map(str::to_owned)),
        }
    }

    /// Answers all waiting ADDs.
    pub(super) fn send_replies(&mut self, result: &CaptureResult) {
        for reply in std::mem::take(&mut self.waiting) {
            drop(reply.send(result.clone()));
        }
    }
}
