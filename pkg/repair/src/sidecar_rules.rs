//! Maintains the rules of running pods: compares them with those that the plugin applied, and restores missing ones.
//!
//! A pod's ADD has recorded its desired rules, which remain the same if its annotations change later. For a pod without a
//! record, which another version of the plugin redirected, or none, the first observed rules count, if they receive
//! traffic: they may be those of another version, and replacing them under a running pod would have no benefit.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use enrolment::{InvalidAnnotation, SidecarRedirect};
use firewall::{CapturedTraffic, RulesFingerprint};
use model::{NOTICE_INTERVAL, PodName, PodUid};
use netns::Netns;
use netns_changes::{ChangeWatcher, NetnsDisturbance, NetnsWatch};
use pod_capture::{NetnsAnswer, NetnsQuery, recorded_netns};
use pod_identity::{AmbiguityStreak, KnownPods, newest_by_pod};
use pod_status::lifecycle::{AgentTime, Stability};
use redirect::DesiredRules;
use rules::{ChainSet, RecordedRules};
use tracing::{debug, info, warn};

use crate::{
    InPlaceError, InPlaceRepair,
    in_place::{family_choice, recorded_redirect},
    sidecar_pods::{SidecarPod, SidecarPods},
};

/// Result of a pass for a pod, if its rules differed.
#[derive(Debug)]
pub(crate) struct RulesReport {
    pub(crate) name: PodName,
    pub(crate) uid: PodUid,
    /// Differences, which are restored unless this is a dry run; or the reason why restoring them failed.
    pub(crate) result: Result<Vec<String>, String>,
    /// Whether another component removed restored rules again before they could be observed.
    pub(crate) is_contested: bool,
    /// Whether the pod's rules are removed repeatedly.
    pub(crate) is_unstable: bool,
    /// How many times in a row the rules were restored, if it is time to report that they are removed repeatedly.
    pub(crate) conflict: Option<u32>,
    /// Changes that triggered the comparison; `None`: the clock did.
    pub(crate) disturbance: Option<NetnsDisturbance>,
}

/// A pod's namespace, and the state of its rules.
#[derive(Clone, Debug)]
struct KnownPod {
    netns: Arc<Netns>,
    /// The watch on it; `None`: comparisons are triggered by the clock only.
    watch: Option<Arc<NetnsWatch<PodUid>>>,
    /// Desired rules of the pod; `None`: its ADD did not record them, and the observed ones are not understood, or
    /// redirect nothing yet.
    baseline: Option<Arc<RecordedRules>>,
    /// Decision of its ADD, or of the last repair, from which the baseline results: a repair restores that. `None`: the
    /// baseline, if any, is of another version, and a repair applies the rules that the pod's annotations request.
    redirect: Option<Arc<SidecarRedirect>>,
    /// Fingerprint of the pod's tables when all rules were in place.
    verified: Option<RulesFingerprint>,
    /// Last reported result. A failure, or a difference in a dry run, is reported again only after all rules were in
    /// place, or if it changes.
    reported: Option<Result<Vec<String>, String>>,
    /// Whether its rules stay in place.
    stability: Stability,
    /// When the rules are compared without a change, after a repair; `None`: together with those of all pods.
    recheck: Option<AgentTime>,
    /// When a conflict may be reported again: at most once in [`NOTICE_INTERVAL`].
    next_conflict: AgentTime,
    /// Whether its last comparison took longer than [`SLOW`].
    is_slow: bool,
}

/// Maximum number of pods that are compared at the same time, and of those whose last comparison was slow: a process in
/// a pod can make the kernel need seconds for a list, and no other pod waits for that.
const COMPARISONS: usize = 4;
const SLOW_COMPARISONS: usize = 2;
const SLOW: Duration = Duration::from_millis(500);

/// Maximum wait for the notification of a transaction whose generation the kernel already shows (`nf_tables_commit`).
const NOTIFIED: Duration = Duration::from_millis(20);

/// Comparison of a pod's rules, which restores missing ones.
pub(crate) struct Comparison {
    pub(crate) uid: PodUid,
    pod: Arc<SidecarPod>,
    known: KnownPod,
    /// `None` in a dry run.
    repair: Option<InPlaceRepair>,
    /// Start of the reconciler's clock.
    started: Instant,
    disturbance: Option<NetnsDisturbance>,
}

/// Result of a comparison.
pub(crate) struct Compared {
    known: KnownPod,
    /// `None`: all rules are in place, or the difference was reported before.
    report: Option<RulesReport>,
}

/// Reconciler of the rules of running pods. Remembers their namespaces, so that a pass costs a few requests to the
/// kernel for a pod whose tables have not changed.
pub(crate) struct SidecarRuleReconciler {
    in_place: InPlaceRepair,
    dry_run: bool,
    started: Instant,
    /// Watches the pods' namespaces; `None`: they are not watched.
    pub(crate) watcher: Option<ChangeWatcher<PodUid>>,
    known: BTreeMap<PodUid, KnownPod>,
    /// Pods that wait for a comparison, in order of arrival, with their changes.
    waiting: VecDeque<(PodUid, Option<NetnsDisturbance>)>,
    /// Pods that are being compared, and whether they are slow.
    running: BTreeMap<PodUid, bool>,
    /// Number of pods that could not be watched at the last regular pass.
    unwatched: usize,
    /// Consecutive passes that could not determine a pod's namespace.
    ambiguous: BTreeMap<PodUid, AmbiguityStreak>,
}

impl SidecarRuleReconciler {
    /// Creates a reconciler without a watch.
    pub(crate) fn new(in_place: InPlaceRepair, dry_run: bool) -> SidecarRuleReconciler {
        SidecarRuleReconciler {
            in_place,
            dry_run,
            started: Instant::now(),
            watcher: None,
            known: BTreeMap::new(),
            waiting: VecDeque::new(),
            running: BTreeMap::new(),
            unwatched: 0,
            ambiguous: BTreeMap::new(),
        }
    }

    /// Queues comparisons of the rules of these pods, if their namespaces are known, and of those that are due after a
    /// repair.
    pub(crate) fn compare_changed(&mut self, changed: BTreeMap<PodUid, NetnsDisturbance>) {
        let now = self.started.elapsed();
        let is_due = |known: &mut KnownPod| known.recheck.take_if(|recheck| *recheck <= now).is_some();
        let due = self.known.iter_mut().filter_map(|(uid, known)| is_due(known).then(|| (uid.clone(), None)));
        let due: Vec<_> = due.collect();
        let changed = changed.into_iter().map(|(uid, disturbance)| (uid, Some(disturbance)));
        due.into_iter().chain(changed).for_each(|(uid, disturbance)| self.compare_pod(uid, disturbance));
    }

    /// Returns when the next pod is due after a repair.
    pub(crate) fn next_recheck(&self) -> Option<Instant> {
        self.known.values().filter_map(|known| known.recheck).min().map(|recheck| self.started + recheck)
    }

    /// Returns how many times in a row the rules of pods were restored that are removed repeatedly, excluding pods
    /// whose rules cannot be restored.
    pub(crate) fn unstable_pods(&self) -> BTreeMap<PodUid, u32> {
        let is_unstable =
            |known: &KnownPod| known.stability.is_unstable() && !matches!(known.reported, Some(Err(_)));
        let unstable = self.known.iter().filter(|(_, known)| is_unstable(known));
        unstable.map(|(uid, known)| (uid.clone(), known.stability.repair_count())).collect()
    }

    /// Queues a comparison of a pod's rules.
    fn compare_pod(&mut self, uid: PodUid, disturbance: Option<NetnsDisturbance>) {
        match self.waiting.iter_mut().find(|(waiting, _)| *waiting == uid) {
            Some((_, earlier)) => *earlier = merge_disturbances(earlier.take(), disturbance),
            None => self.waiting.push_back((uid, disturbance)),
        }
    }

    /// Returns the next comparison that may start now. Run it on a separate thread, and pass its result to
    /// [`SidecarRuleReconciler::finish_comparison`].
    pub(crate) fn next_comparison(&mut self, pods: &SidecarPods) -> Option<Comparison> {
        while self.running.len() < COMPARISONS {
            let at = self.waiting.iter().position(|(uid, _)| self.may_begin(uid))?;
            let (uid, disturbance) = self.waiting.remove(at)?;
            // Otherwise the pod has ended, or its namespace is not known.
            if let (Some(pod), Some(known)) = (pods.pod(&uid), self.known.get(&uid).cloned()) {
                let changed = disturbance.is_some();
                let disturbance =
                    disturbance.and_then(|changes| changes.without_observed(known.verified_generation()));
                if changed && disturbance.is_none() {
                    continue; // a repair of ours, or a change before an observation
                }
                self.running.insert(uid.clone(), known.is_slow);
                let repair = (!self.dry_run).then(|| self.in_place.clone());
                return Some(Comparison { uid, pod, known, repair, started: self.started, disturbance });
            }
        }
        None
    }

    /// Returns whether a pod can be compared now: it is not being compared, and slow pods do not exceed their share.
    fn may_begin(&self, uid: &PodUid) -> bool {
        let slow = self.running.values().filter(|is_slow| **is_slow).count();
        let is_slow = self.known.get(uid).is_some_and(|known| known.is_slow);
        !self.running.contains_key(uid) && (slow < SLOW_COMPARISONS || !is_slow)
    }

    /// Handles the result of a comparison; `None`: it panicked, and the pod is searched for anew.
    pub(crate) fn finish_comparison(
        &mut self,
        uid: &PodUid,
        compared: Option<Compared>,
    ) -> Option<RulesReport> {
        self.running.remove(uid);
        let Some(Compared { known, report }) = compared else {
            self.known.remove(uid);
            return None;
        };
        // Otherwise the pod has ended, or its sandbox was replaced.
        let current = self.known.get_mut(uid).filter(|current| Arc::ptr_eq(&current.netns, &known.netns))?;
        *current = KnownPod { watch: current.watch.take(), ..known };
        report
    }

    /// Searches for the pods' namespaces, and queues one comparison of all pods, or of `only_new` ones. Blocks for some
    /// milliseconds. A pod without a process is skipped until the next pass. `all`: all known pods of the node. Returns
    /// pods whose namespaces could not be determined; a pass for new ones leaves that to the regular ones.
    ///
    /// # Errors
    /// The node's processes cannot be listed.
    pub(crate) fn pass(
        &mut self,
        all: &KnownPods,
        pods: &BTreeMap<PodUid, Arc<SidecarPod>>,
        only_new: bool,
    ) -> Result<Vec<RulesReport>, InPlaceError> {
        let streaks = only_new.then(|| self.ambiguous.clone());
        let new = self.find_netns(all, pods)?;
        if let Some(streaks) = streaks {
            self.ambiguous = streaks; // a streak counts regular passes
            new.into_iter().for_each(|uid| self.compare_pod(uid, None));
            return Ok(Vec::new());
        }
        let mut reports = Vec::new();
        for (uid, pod) in pods {
            let name = &pod.ids.name;
            match self.ambiguous.get(uid) {
                // Applies to a pod with a known namespace, too: its sandbox may have been replaced.
                Some(streak) if streak.is_due() => {
                    let (name, uid, result) = (name.clone(), uid.clone(), Err(streak.to_string()));
                    reports.push(RulesReport {
                        name,
                        uid,
                        result,
                        is_contested: false,
                        is_unstable: false,
                        conflict: None,
                        disturbance: None,
                    });
                }
                None if !self.known.contains_key(uid) => {
                    debug!(target: "repair", namespace = %name.namespace, pod = %name.name, "no process of the pod was found");
                }
                Some(_) | None => self.compare_pod(uid.clone(), None),
            }
        }
        self.watch_missing();
        Ok(reports)
    }

    /// Watches pods that could not be watched before, and logs their number if it has changed.
    fn watch_missing(&mut self) {
        let Some(watcher) = &self.watcher else { return };
        let missing = self.known.iter_mut().filter(|(_, known)| known.watch.is_none());
        let (mut pods, mut last) = (0, None);
        for (uid, known) in missing {
            match watcher.watch(uid.clone(), &known.netns) {
                Ok(watch) => known.watch = Some(Arc::new(watch)),
                Err(error) => (pods, last) = (pods + 1, Some(error)),
            }
        }
        match last {
            _ if pods == self.unwatched => {}
            Some(error) => {
                warn!(target: "repair", pods, %error, "network namespaces of running pods cannot be watched; comparing their rules at intervals");
            }
            None => info!(target: "repair", "network namespaces of all running pods are watched again"),
        }
        self.unwatched = pods;
    }

    /// Returns pods that are new, or whose network namespace has changed, because their sandboxes were replaced.
    fn find_netns(
        &mut self,
        all: &KnownPods,
        pods: &BTreeMap<PodUid, Arc<SidecarPod>>,
    ) -> Result<Vec<PodUid>, InPlaceError> {
        self.known.retain(|uid, _| pods.contains_key(uid));
        let (records, mut new) = (self.in_place.pod_records(), Vec::new());
        let recorded = newest_by_pod(&records, pods.values().map(|pod| pod.ids.clone()));
        let queries = pods.iter().map(|(uid, pod)| {
            let known = self.known.get(uid).map(|known| Arc::clone(&known.netns));
            let recorded = recorded.get(uid).copied().and_then(recorded_netns);
            (uid.clone(), NetnsQuery { ips: pod.ips.clone(), known, recorded })
        });
        let queries: BTreeMap<PodUid, NetnsQuery> = queries.collect();
        let before = std::mem::take(&mut self.ambiguous);
        for (uid, answer) in self.in_place.find_netns(all, &queries)? {
            match answer {
                NetnsAnswer::Found(found) => {
                    let present = pods.get(&uid).and_then(|pod| pod.redirect.as_ref().ok());
                    let record = recorded.get(&uid).copied();
                    let (redirect, baseline) =
                        record.and_then(|record| recorded_redirect(record, present)).unzip();
                    let netns = Arc::new(found.netns);
                    let watch =
                        self.watcher.as_ref().and_then(|watcher| watcher.watch(uid.clone(), &netns).ok());
                    let (watch, baseline) = (watch.map(Arc::new), baseline.map(Arc::new));
                    let known = KnownPod { watch, baseline, redirect, ..KnownPod::new(netns) };
                    self.known.insert(uid.clone(), known);
                    new.push(uid);
                }
                NetnsAnswer::Ambiguous(why) => {
                    let streak = AmbiguityStreak::continue_from(before.get(&uid).copied(), why);
                    self.ambiguous.insert(uid, streak);
                }
                NetnsAnswer::Unchanged { .. } => {}
            }
        }
        Ok(new)
    }
}

impl Comparison {
    /// Compares, and restores missing rules. Blocks for some milliseconds, for some tens if it repairs, and for seconds
    /// if the pod keeps the kernel busy.
    pub(crate) fn run(self) -> Compared {
        let Comparison { uid, pod, mut known, repair, started, mut disturbance } = self;
        let was_unstable = known.stability.is_unstable();
        let now = started.elapsed();
        let compared = known.compare_rules(&pod, repair.as_ref(), now, &mut disturbance);
        known.is_slow = started.elapsed() - now > SLOW;
        known.recheck = known.stability.recheck_delay().map(|delay| now + delay);
        let is_unstable = known.stability.is_unstable();
        if was_unstable && !is_unstable {
            let PodName { namespace, name } = &pod.ids.name;
            info!(target: "repair", %namespace, pod = %name, "rules of a running pod stay in place again");
        }
        let report = compared.map(|(result, is_contested)| {
            let is_due = is_unstable && result.is_ok() && now >= known.next_conflict;
            let conflict = is_due.then(|| known.stability.repair_count());
            if conflict.is_some() {
                known.next_conflict = now + NOTICE_INTERVAL;
            }
            let name = pod.ids.name.clone();
            RulesReport { name, uid, result, is_contested, is_unstable, conflict, disturbance }
        });
        Compared { known, report }
    }
}

impl KnownPod {
    /// Creates a pod of which nothing but its namespace is known.
    fn new(netns: Arc<Netns>) -> KnownPod {
        KnownPod {
            netns,
            watch: None,
            baseline: None,
            redirect: None,
            verified: None,
            reported: None,
            stability: Stability::default(),
            recheck: None,
            next_conflict: AgentTime::ZERO,
            is_slow: false,
        }
    }

    /// Returns the result, and whether another component has removed restored rules again. `None`: all rules are in
    /// place, or the difference was reported before. `repair`: `None` in a dry run. Adds the last change of rules to
    /// `disturbance`.
    fn compare_rules(
        &mut self,
        pod: &SidecarPod,
        repair: Option<&InPlaceRepair>,
        now: AgentTime,
        disturbance: &mut Option<NetnsDisturbance>,
    ) -> Option<(Result<Vec<String>, String>, bool)> {
        let fingerprint = self.rules_fingerprint();
        if fingerprint.is_some() && fingerprint == self.verified && self.has_routes(pod) {
            self.stability.record_observation(false, now);
            return None;
        }
        // The clock or an earlier change may have triggered this before the notification was read or due.
        let generation = fingerprint.as_ref().and_then(RulesFingerprint::generation);
        *disturbance = merge_disturbances(disturbance.take(), self.find_transaction(generation));
        let (result, is_contested) = match self.restore_rules(pod, repair) {
            // The pod has no traffic: its sandbox is being replaced, or the pod is about to end.
            Err(InPlaceError::Redirect(redirect::Error::NoAddress(_))) => return None,
            Err(InPlaceError::NotInPlace { restored, .. }) if restored.is_empty() => {
                self.stability.record_failure();
                return None; // the next comparison follows the change that removed them
            }
            Err(InPlaceError::NotInPlace { restored, .. }) => (Ok(restored), true),
            other => (other.map_err(|error| error.to_string()), false),
        };
        match &result {
            Ok(missing) if missing.is_empty() => {
                self.stability.record_observation(false, now);
                (self.verified, self.reported) = (fingerprint, None);
                return None;
            }
            Ok(_) if is_contested => self.stability.record_conflict(now),
            // At the first comparison no other component can have removed anything.
            Ok(_) if repair.is_some() && (self.verified.is_some() || self.reported.is_some()) => {
                self.stability.record_observation(true, now);
            }
            Ok(_) => {}
            Err(_) => self.stability.record_failure(),
        }
        if repair.is_some() && result.is_ok() && !is_contested {
            // Read before the rules: a later change gets another fingerprint, and its own notification.
            let fingerprint = self.rules_fingerprint();
            let is_intact = self.missing_rules(pod).is_ok_and(|missing| missing.is_empty());
            self.verified = fingerprint.filter(|_| is_intact);
        }
        // Restored rules may be removed again.
        let is_news = (repair.is_some() && result.is_ok()) || self.reported.as_ref() != Some(&result);
        self.reported = Some(result.clone());
        is_news.then_some((result, is_contested))
    }

    /// Restores missing rules, and returns them; empty if none is missing. Without `repair`, nothing is restored.
    fn restore_rules(
        &mut self,
        pod: &SidecarPod,
        repair: Option<&InPlaceRepair>,
    ) -> Result<Vec<String>, InPlaceError> {
        let missing = self.missing_rules(pod)?;
        if missing.is_empty() {
            if self.baseline.is_none() {
                self.baseline = self.netns.run_in(redirect::found_rules)??.map(Arc::new);
            }
            return Ok(missing);
        }
        let Some(repair) = repair else { return Ok(missing) };
        let redirect = self.desired_redirect(pod)?;
        let families = family_choice(&redirect, self.baseline.as_deref());
        let own = self.redirect.as_ref().and(self.baseline.as_deref());
        let restored =
            repair.restore_pod(&self.netns, &pod.ids.name, &redirect, families, own, pod.existing)?;
        if own.is_none() {
            let families = self.netns.run_in(|| families.choose_in_netns())??;
            self.baseline = Some(Arc::new(DesiredRules::for_families(&redirect.config, &families).rules));
            self.redirect = Some(redirect);
        }
        Ok(restored)
    }

    /// Returns the last transaction of nf_tables since the rules were in place, if it is known; `generation`: the present
    /// one. Called before the rules are read, which covers the changes that are not reported any more.
    fn find_transaction(&self, generation: Option<u32>) -> Option<NetnsDisturbance> {
        let (watch, verified) = (self.watch.as_ref()?, self.verified_generation());
        let deadline = Instant::now() + NOTIFIED;
        loop {
            let last = watch.last_transaction().and_then(|last| last.without_observed(verified));
            let is_expected = verified.is_some() && generation != verified;
            if last.is_some() || !is_expected || Instant::now() >= deadline {
                return last;
            }
            thread::sleep(Duration::from_millis(1)); // the kernel sends it right after the commit
        }
    }

    fn verified_generation(&self) -> Option<u32> {
        self.verified.as_ref().and_then(RulesFingerprint::generation)
    }

    /// Returns the decision that the pod's rules shall match.
    fn desired_redirect(&self, pod: &SidecarPod) -> Result<Arc<SidecarRedirect>, InvalidAnnotation> {
        self.redirect.clone().map_or_else(|| pod.redirect.clone(), Ok)
    }

    fn missing_rules(&self, pod: &SidecarPod) -> Result<Vec<String>, InPlaceError> {
        let redirect = self.desired_redirect(pod).ok();
        Ok(self.netns.run_in(|| missing_rules(redirect.as_deref(), self.baseline.as_deref()))??)
    }

    /// Returns whether the pod's policy routes are in place; false if that could not be determined.
    fn has_routes(&self, pod: &SidecarPod) -> bool {
        let Ok(redirect) = self.desired_redirect(pod) else { return true }; // it is not known which it needs
        let families = family_choice(&redirect, self.baseline.as_deref());
        let missing = self.netns.run_in(|| redirect::missing_routes(&redirect.config, families));
        missing.is_ok_and(|missing| missing.is_ok_and(|missing| missing.is_empty()))
    }

    fn rules_fingerprint(&self) -> Option<RulesFingerprint> {
        self.netns.run_in(|| RulesFingerprint::observe_netns().ok()).ok().flatten()
    }
}

fn merge_disturbances(
    earlier: Option<NetnsDisturbance>,
    later: Option<NetnsDisturbance>,
) -> Option<NetnsDisturbance> {
    [earlier, later].into_iter().flatten().reduce(NetnsDisturbance::merge_with)
}

/// Returns what is missing in this namespace; `redirect`: `None` if an annotation is invalid, and its ADD recorded
/// nothing. Needs no tool.
fn missing_rules(
    redirect: Option<&SidecarRedirect>,
    baseline: Option<&RecordedRules>,
) -> Result<Vec<String>, redirect::Error> {
    if let (Some(redirect), Some(rules)) = (redirect, baseline) {
        return redirect::compare_recorded(&redirect.config, family_choice(redirect, baseline), rules);
    }
    let missing =
        CapturedTraffic::any_outbound().missing_from(&CapturedTraffic::observe_netns(ChainSet::SIDECAR)?);
    if missing.is_empty() {
        return Ok(firewall::inactive_rules(ChainSet::SIDECAR)?);
    }
    Ok(missing.iter().map(|traffic| format!("no rule redirects {traffic} traffic")).collect())
}

#[cfg(test)]
mod tests {
    use firewall::FirewallOptions;
    use kube_api::ListEvent;
    use model::{ExistingConnections, Pod};
    use netns_changes::{Change, ChangeKinds, Writer};
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use serde_json::json;

    use super::*;

    /// A reconciler with a running pod for each of these characters; upper case ones are slow.
    fn reconciler_of(uids: &str) -> (SidecarRuleReconciler, SidecarPods) {
        let (proc, firewall) = ("/proc".into(), FirewallOptions::default());
        let existing = ExistingConnections::default();
        let in_place = InPlaceRepair { proc, firewall, existing, records: Arc::new(Vec::new) };
        let mut reconciler = SidecarRuleReconciler::new(in_place, false);
        let pods = uids.chars().map(|uid| {
            let pod = json!({
                "metadata": {"name": uid, "namespace": "shop", "uid": uid, "resourceVersion": "1",
                    "annotations": {"sidecar.istio.io/status": "{}"}},
                "spec": {"containers": [{"name": "istio-proxy"}, {"name": "app"}]},
                "status": {"phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]},
            });
            serde_json::from_value::<Pod>(pod).unwrap().into()
        });
        let mut all = SidecarPods::new(enrolment::EnrolmentPolicy::default());
        all.observe_event(&mut ListEvent::Reset(pods.collect()));
        let netns = Arc::new(Netns::open("/proc/self/ns/net").unwrap());
        for uid in all.all_pods().keys() {
            let is_slow = uid.as_str().chars().all(char::is_uppercase);
            let known = KnownPod { is_slow, ..KnownPod::new(Arc::clone(&netns)) };
            reconciler.known.insert(uid.clone(), known);
        }
        uids.chars().for_each(|uid| reconciler.compare_pod(uid.to_string().into(), None));
        (reconciler, all)
    }

    fn begin_all(reconciler: &mut SidecarRuleReconciler, pods: &SidecarPods) -> BTreeMap<String, Comparison> {
        let begun = std::iter::from_fn(|| reconciler.next_comparison(pods));
        begun.map(|comparison| (comparison.uid.as_str().to_owned(), comparison)).collect()
    }

    fn finish(reconciler: &mut SidecarRuleReconciler, comparison: Comparison, is_slow: bool) {
        let known = KnownPod { is_slow, ..comparison.known };
        let _ = reconciler.finish_comparison(&comparison.uid, Some(Compared { known, report: None }));
    }

    #[test]
    fn slow_pods_keep_no_others_waiting() {
        let (mut reconciler, pods) = reconciler_of("ABCDefg");
        let mut running = begin_all(&mut reconciler, &pods);
        assert_eq!(running.keys().collect::<Vec<_>>(), ["A", "B", "e", "f"]);
        finish(&mut reconciler, running.remove("e").unwrap(), false);
        assert_eq!(begin_all(&mut reconciler, &pods).into_keys().collect::<Vec<_>>(), ["g"]);
        finish(&mut reconciler, running.remove("f").unwrap(), false);
        assert!(begin_all(&mut reconciler, &pods).is_empty(), "two slow ones at a time");
        finish(&mut reconciler, running.remove("A").unwrap(), false);
        assert_eq!(begin_all(&mut reconciler, &pods).into_keys().collect::<Vec<_>>(), ["C"]);
    }

    #[test]
    fn a_pod_that_changes_during_its_comparison_is_compared_once_more_afterwards() {
        let (mut reconciler, pods) = reconciler_of("a");
        let mut running = begin_all(&mut reconciler, &pods);
        (0..2).for_each(|_| reconciler.compare_pod("a".into(), None));
        assert!(begin_all(&mut reconciler, &pods).is_empty());
        finish(&mut reconciler, running.remove("a").unwrap(), true);
        assert!(reconciler.known.values().all(|known| known.is_slow), "the result is kept");
        assert_eq!(begin_all(&mut reconciler, &pods).len(), 1);
        assert!(reconciler.waiting.is_empty());
    }

    /// The first repair of a pod with IPv6 adds rules and an address.
    #[test]
    fn a_repair_of_ours_is_not_the_writer_of_a_later_change() {
        let (mut reconciler, pods) = reconciler_of("a");
        let begun = begin_all(&mut reconciler, &pods).remove("a").unwrap();
        finish(&mut reconciler, begun, false);
        let watcher = ChangeWatcher::<PodUid>::new().unwrap();
        let known = reconciler.known.values_mut().next().unwrap();
        let watch = watcher.watch("a".into(), &known.netns).unwrap();
        known.verified = known.rules_fingerprint();
        let generation = known.verified_generation();
        assert!(generation.is_some());
        let writer = Some(Writer { pid: 1, name: "install-cni".into() });
        let change = |kinds| {
            let (key, watch) = (PodUid::from("a"), watch.id());
            NetnsDisturbance::new(Change { key, watch, kinds, generation, writer: writer.clone() })
        };
        reconciler.compare_pod("a".into(), Some(change(ChangeKinds::FIREWALL)));
        assert!(begin_all(&mut reconciler, &pods).is_empty());
        reconciler.compare_pod("a".into(), Some(change(ChangeKinds::FIREWALL | ChangeKinds::ADDRESSES)));
        let begun = begin_all(&mut reconciler, &pods).remove("a").unwrap();
        let disturbance = begun.disturbance.unwrap();
        assert_eq!((disturbance.metric_label(), disturbance.writer_name()), ("addresses", None));
    }

    #[test]
    fn the_result_of_a_sandbox_that_was_replaced_meanwhile_is_dropped() {
        let (mut reconciler, pods) = reconciler_of("a");
        let mut running = begin_all(&mut reconciler, &pods);
        for known in reconciler.known.values_mut() {
            known.netns = Arc::new(Netns::open("/proc/self/ns/net").unwrap());
        }
        finish(&mut reconciler, running.remove("a").unwrap(), true);
        assert!(reconciler.known.values().all(|known| !known.is_slow));
    }

    /// While half of the descriptors do not suffice.
    #[test]
    fn a_pod_that_could_not_be_watched_is_watched_at_a_later_pass() {
        let (mut reconciler, pods) = reconciler_of("abcdefghijklmnopqrstuvwxyz0123456789");
        reconciler.watcher = Some(ChangeWatcher::new().unwrap());
        let limits = getrlimit(Resource::Nofile);
        for limit in [Some(128), Some(128), limits.current] {
            setrlimit(Resource::Nofile, Rlimit { current: limit, ..limits }).unwrap();
            assert_eq!(reconciler.pass(&pods.known_pods(), &pods.all_pods(), false).unwrap().len(), 0);
            let missing = reconciler.known.values().filter(|known| known.watch.is_none()).count();
            let expected = (limit == Some(128), missing); // other tests have descriptors, too
            assert_eq!((missing > 0, reconciler.unwatched), expected, "{limit:?}");
        }
    }
}
