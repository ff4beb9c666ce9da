//! A pod that has, joins or leaves in-pod capture: its life cycle, and the data that its actions need.

use std::{
    net::IpAddr,
    sync::{Arc, atomic::AtomicBool, atomic::Ordering},
    time::{Duration, Instant, SystemTime},
};

use enrolment::inpod::EffectiveOptions;
use model::{ContainerId, ExistingConnections, NetworkPrivilege, Pod, PodName, PodUid};
use netns::{Netns, NetnsId};
use netns_changes::{Change, NetnsDisturbance, NetnsWatch};
use pod_capture::PodRulesSnapshot;
use pod_identity::{AmbiguityStreak, PodIds, Witness};
use pod_status::{
    Evidence, PodLife,
    lifecycle::{AgentTime, Lifecycle, OBSERVE, RulesState},
};
use tracing::{debug, info};
use zds::Workload;

use super::worker::JobPod;
use agent::{CaptureReply, CaptureResult, EnrolledPodView};

/// Interval between observations of a pod's rules while the kernel reports changes of its namespace.
const WATCHED: Duration = Duration::from_secs(240);

/// Cause, in the history, of capturing a pod that was not captured before.
pub(super) const JOINED: &str = "joined the mesh";

/// A pod with in-pod capture.
#[derive(Debug)]
pub(super) struct EnrolledPod {
    pub(super) name: PodName,
    /// Hash of its manifest, if it is static.
    manifest_hash: Option<PodUid>,
    pub(super) service_account: String,
    pub(super) ips: Vec<IpAddr>,
    pub(super) options: rules::inpod::PodOptions,
    /// Requested exceptions that are not applied, each as a message without a full stop.
    pub(super) refused_exceptions: Vec<String>,
    /// Options that the pod's annotations request, until they are applied.
    pub(super) asked: Option<EffectiveOptions>,
    /// Treatment of connections that exist when the pod joins.
    pub(super) existing: ExistingConnections,
    /// The pod's privilege over its own network namespace.
    pub(super) privilege: NetworkPrivilege,
    /// The container of its last ADD; empty if its namespace was found by netns discovery.
    pub(super) container: ContainerId,
    /// The pod's network namespace. [`Self::lifecycle`] has only its identity.
    pub(super) netns: Option<Arc<Netns>>,
    /// The evidence on which the namespace is attributed to the pod.
    pub(super) witness: Option<Witness>,
    /// The last searches, if they could not determine which namespace is the pod's. The known one is kept.
    pub(super) ambiguity: Option<AmbiguityStreak>,
    /// Whether the pod joins and leaves the mesh so often that this is logged at debug level.
    pub(super) quiet: bool,
    /// State of the pod in its life cycle.
    pub(super) lifecycle: Lifecycle<NetnsId>,
    /// Cause of applying the pod's rules, for the history, unless another component removed them.
    pub(super) cause: &'static str,
    /// When the last job for the pod began.
    pub(super) begun: Instant,
    /// Whether its last job was slow, as one in a namespace with very long lists.
    slow: Arc<AtomicBool>,
    /// The watch on its namespace; `None`: the next observation starts one.
    pub(super) watch: Option<NetnsWatch<PodUid>>,
    /// The change of its namespace for which the current observation was started.
    pub(super) examined: Option<NetnsDisturbance>,
    /// A later change, for the next observation.
    pub(super) disturbance: Option<NetnsDisturbance>,
    /// The last observation of its rules.
    pub(super) observed_rules: Option<Arc<PodRulesSnapshot>>,
    /// When foreign rules that precede the pod's were last logged: a process in the pod can add such rules as often as
    /// it likes.
    pub(super) overruling_logged: Option<Instant>,
    /// When its rules were last observed.
    pub(super) observed_at: Option<SystemTime>,
    /// The requests that wait for its ADD.
    pub(super) waiting: Vec<CaptureReply>,
}

impl EnrolledPod {
    /// Creates an entry. `annotation`: the redirection annotation as the API shows it.
    pub(super) fn new(
        pod: &Pod,
        EffectiveOptions { options, refused }: EffectiveOptions,
        existing: ExistingConnections,
        annotation: Option<&str>,
        now: AgentTime,
    ) -> EnrolledPod {
        EnrolledPod {
            name: pod.name(),
            manifest_hash: pod.manifest_hash(),
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
            cause: JOINED,
            begun: Instant::now(),
            slow: Arc::default(),
            watch: None,
            examined: None,
            disturbance: None,
            observed_rules: None,
            overruling_logged: None,
            observed_at: None,
            waiting: Vec::new(),
        }
    }

    /// Applies the options that the pod's annotations request, unless its options changed a moment ago. Returns whether
    /// its desired rules changed.
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

    /// Applies options that were deferred like [`Self::choose_options`]; those of a leaving pod wait until it returns.
    pub(super) fn choose_deferred_options(&mut self, now: AgentTime) -> bool {
        !self.lifecycle.is_leaving() && self.choose_options(now)
    }

    /// Lets the pod's traffic continue without ztunnel, or captures it again, as its options specify. `is_unavailable`:
    /// ztunnel has been unavailable for longer than pods wait. Returns whether the state changed.
    pub(super) fn open_or_close(&mut self, is_unavailable: bool) -> bool {
        let open = is_unavailable && self.options.exceptions.without_ztunnel;
        let changed = std::mem::replace(&mut self.options.open, open) != open;
        if changed {
            (self.observed_rules, self.observed_at) = (None, None); // the desired rules differ
        }
        changed
    }

    /// Logs that the pod joins or leaves.
    pub(super) fn log_transition(&self, message: &'static str, reason: Option<&str>) {
        let PodName { namespace, name } = &self.name;
        if self.quiet {
            debug!(target: "ambient", %namespace, pod = %name, reason, "{message}");
        } else {
            info!(target: "ambient", %namespace, pod = %name, reason, "{message}");
        }
    }

    /// Sets the pod's namespace, with the evidence for it. Returns the identity of the namespace for the life cycle.
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

    /// Returns the evidence from which all reports on the pod follow. `served`: a connected ztunnel serves the pod.
    pub(super) fn evidence(&self, life: PodLife, served: bool) -> Evidence {
        self.lifecycle.capture_evidence(life, served, self.overruling_rules().next().is_some())
    }

    /// Returns foreign rules that precede ours, as of the last observation.
    pub(super) fn overruling_rules(&self) -> impl Iterator<Item = &str> {
        self.observed_rules.iter().flat_map(|rules| rules.bypass_reasons())
    }

    /// Returns whether the pod ends with a container. `is_last`: no other container of the pod is known.
    pub(super) fn ends_with(&self, container: &ContainerId, is_last: bool) -> bool {
        self.container == *container || (self.container.is_empty() && is_last)
    }

    /// Returns what identifies the pod to the container runtime.
    pub(super) fn to_ids(&self, uid: &PodUid) -> PodIds {
        let (name, manifest_hash) = (self.name.clone(), self.manifest_hash.clone());
        PodIds { name, uid: uid.clone(), manifest_hash }
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

    /// Returns whether the due observation can wait: the last one is not [`WATCHED`] ago and found everything in place,
    /// and any change since would have been notified, except new legacy tables, which the pod itself cannot create.
    /// `is_reported`: notifications are read.
    pub(super) fn relies_on_watch(&self, is_reported: bool) -> bool {
        is_reported
            && self.begun.elapsed() + OBSERVE / 2 < WATCHED // the next one is due in OBSERVE
            && self.is_comparable()
            && self.lifecycle.is_settled()
            && self.privilege < NetworkPrivilege::NetAdmin
            && self.observed_rules.as_ref().is_some_and(|rules| rules.is_covered_by_notifications())
    }

    /// Returns whether an observation most likely needs no comparison rule by rule: an earlier one exists for comparison, the
    /// pod's namespace is watched, and no change was reported.
    fn is_comparable(&self) -> bool {
        self.disturbance.is_none() && self.observed_rules.is_some() && self.watch.is_some()
    }

    /// Returns whether the pod's rules may be observed in a batch with those of other pods, which the pod must not delay.
    pub(super) fn is_routine(&self) -> bool {
        self.is_comparable() && !self.is_slow()
    }

    /// Returns whether the pod's jobs leave workers for those of other pods.
    pub(super) fn is_slow(&self) -> bool {
        self.slow.load(Ordering::Relaxed)
    }

    /// Returns whether an observation that finds the rules in place needs no pass.
    pub(super) fn stays_verified(&self) -> bool {
        let is_verified = self.lifecycle.rules_state() == RulesState::Verified;
        is_verified && !self.lifecycle.is_unstable() && !self.lifecycle.is_leaving()
    }

    /// Returns the pod as a job needs it; `None`: the namespace is unknown.
    pub(super) fn to_job_pod(&self, uid: &PodUid) -> Option<JobPod> {
        let (netns, options, before) =
            (self.netns.clone()?, self.options.clone(), self.observed_rules.clone());
        let (existing, slow) = (self.existing, Arc::clone(&self.slow));
        Some(JobPod { uid: uid.clone(), netns, options, existing, before, slow })
    }

    /// Records a change of the namespace, unless it was already observed. Returns whether an observation is due.
    pub(super) fn record_disturbance(&mut self, change: Change<PodUid>) -> bool {
        // While a watch is being started, the result of the observation decides.
        let is_own = self.watch.as_ref().is_none_or(|watch| watch.id() == change.watch);
        let observed = self.observed_rules.as_ref().and_then(|rules| rules.generation());
        let disturbance = NetnsDisturbance::new(change).without_observed(observed);
        let Some(disturbance) = disturbance.filter(|_| is_own) else { return false };
        self.disturbance = Some(match self.disturbance.take() {
            Some(earlier) => earlier.merge_with(disturbance),
            None => disturbance,
        });
        true
    }

    /// Ends an observation. Returns the change for which it was started, or a later change that it has already
    /// observed.
    pub(super) fn end_observation(&mut self) -> Option<NetnsDisturbance> {
        let generation = self.observed_rules.as_ref().and_then(|rules| rules.generation());
        let observed = self.disturbance.take_if(|disturbance| disturbance.was_observed(generation));
        self.examined.take().or(observed)
    }

    /// Returns the state of the pod, for the state document.
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

#[cfg(test)]
mod tests {
    use std::process::Command;

    use firewall::FirewallOptions;
    use model::Family;
    use netns_changes::{ChangeKinds, ChangeWatcher};
    use pod_capture::PodRulesSpec;
    use pod_status::lifecycle::PodEvent;

    use super::*;

    fn observe(netns: &Netns) -> Option<Arc<PodRulesSnapshot>> {
        let (config, pod) = Default::default();
        let existing = ExistingConnections::Keep;
        let desired = PodRulesSpec { config: &config, pod: &pod, families: &Family::BOTH, existing };
        let options = FirewallOptions::default();
        let _ = pod_capture::capture_pod(netns, &desired, &options).unwrap();
        Some(Arc::new(pod_capture::observe_pod(netns, &desired, None, &options).unwrap()))
    }

    fn run_in(netns: &Netns, command: &str) {
        let mut words = command.split(' ');
        let mut command = Command::new(words.next().unwrap());
        assert!(netns.run_in(|| command.args(words).output()).unwrap().unwrap().status.success());
    }

    fn apply(pod: &mut EnrolledPod, event: fn(NetnsId) -> PodEvent<NetnsId>) {
        let netns = pod.netns_id().unwrap();
        let _ = pod.lifecycle.apply_event(event(netns), AgentTime::ZERO);
    }

    /// A watched pod with a namespace of its own and rules in place.
    fn watched_pod() -> EnrolledPod {
        let netns = Netns::create().unwrap();
        run_in(&netns, "ip link set lo up");
        let (pod, options) = Default::default();
        let mut pod = EnrolledPod::new(&pod, options, ExistingConnections::Keep, None, AgentTime::ZERO);
        (pod.observed_rules, pod.watch) =
            (observe(&netns), ChangeWatcher::new().unwrap().watch("u1".into(), &netns).ok());
        pod.netns = Some(Arc::new(netns));
        apply(&mut pod, |netns| PodEvent::Found { netns, captured: false });
        apply(&mut pod, |netns| PodEvent::Captured(netns, Ok(true)));
        apply(&mut pod, |netns| PodEvent::Observed(netns, Ok(false)));
        pod
    }

    #[test]
    fn a_pod_that_could_not_be_watched_is_observed_for_itself_so_that_a_watch_is_tried_again() {
        let mut pod = watched_pod();
        assert!(pod.is_routine());
        pod.watch = None;
        assert!(!pod.is_routine());
    }

    #[test]
    fn a_pod_whose_last_job_was_slow_delays_no_batch() {
        let pod = watched_pod();
        let job = pod.to_job_pod(&"u1".into()).unwrap();
        job.slow.store(true, Ordering::Relaxed);
        assert!(pod.is_slow() && !pod.is_routine());
    }

    #[test]
    fn an_observation_of_a_pod_that_leaves_is_followed_by_a_pass_which_releases_it() {
        let mut pod = watched_pod();
        assert!(pod.stays_verified());
        let _ = pod.lifecycle.apply_event(PodEvent::Left("its label".into()), AgentTime::ZERO);
        assert!(!pod.stays_verified());
    }

    #[test]
    fn deferred_options_bring_no_pod_back_that_leaves() {
        let (object, options) = Default::default();
        let mut pod = EnrolledPod::new(&object, options, ExistingConnections::Keep, None, AgentTime::ZERO);
        let _ = pod.lifecycle.apply_event(PodEvent::Left("its label".into()), AgentTime::ZERO);
        let mut asked = EffectiveOptions::default();
        asked.options.dns = true;
        pod.asked = Some(asked);
        assert!(!pod.choose_deferred_options(AgentTime::ZERO) && !pod.options.dns);
        let _ = pod.lifecycle.apply_event(PodEvent::Joined { changed: false }, AgentTime::ZERO);
        assert!(pod.choose_deferred_options(AgentTime::ZERO) && pod.options.dns);
    }

    /// A difference, and its name.
    type Case = (&'static str, fn(&mut EnrolledPod));

    #[test]
    fn the_clock_of_a_pod_is_slow_only_where_the_kernel_reports_each_change_of_its_rules() {
        assert!(watched_pod().relies_on_watch(true));
        assert!(!watched_pod().relies_on_watch(false), "no thread reads what the kernel reports");
        let cases: [Case; 9] = [
            ("observed four minutes ago", |pod| pod.begun = Instant::now() - WATCHED),
            ("as before, but the clock is early", |pod| pod.begun = Instant::now() - WATCHED + OBSERVE / 4),
            ("NET_ADMIN", |pod| pod.privilege = NetworkPrivilege::NetAdmin),
            ("not watched", |pod| pod.watch = None),
            ("never observed", |pod| pod.observed_rules = None),
            ("just restored", |pod| apply(pod, |netns| PodEvent::Observed(netns, Ok(true)))),
            ("not observed the last time", |pod| {
                apply(pod, |netns| PodEvent::Observed(netns, Err("no".into())));
            }),
            ("changed since", |pod| {
                let (watch, kinds) = (pod.watch.as_ref().unwrap().id(), ChangeKinds::ROUTES);
                let change = Change { key: "u1".into(), watch, kinds, generation: None, writer: None };
                assert!(pod.record_disturbance(change));
            }),
            ("with legacy tables", |pod| {
                let netns = pod.netns.as_ref().unwrap();
                run_in(netns, "iptables-legacy -t raw -S");
                pod.observed_rules = observe(netns);
                assert!(pod.observed_rules.as_ref().unwrap().is_complete());
            }),
        ];
        for (what, change) in cases {
            let mut pod = watched_pod();
            change(&mut pod);
            assert!(!pod.relies_on_watch(true), "{what}");
        }
    }
}
