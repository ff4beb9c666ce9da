//! Maintains the rules of running pods: compares them with what the plugin left, and restores what is missing.
//!
//! A pod's ADD has recorded what its rules have to be. For a pod without a record, which another version of the plugin
//! redirected, or none, the rules that are found first count, if they receive traffic: they may be those of another
//! version, and replacing them under a running pod would help no one.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use enrolment::SidecarRedirect;
use firewall::{CapturedTraffic, RulesFingerprint};
use inpod::{NetnsAnswer, NetnsQuery, recorded_netns};
use model::{NOTICE_INTERVAL, PodName, PodUid};
use netns::Netns;
use netns_changes::{ChangeWatcher, NetnsDisturbance, NetnsWatch};
use pod_identity::{AmbiguityStreak, KnownPods, newest_by_pod};
use pod_status::lifecycle::{AgentTime, Stability};
use redirect::DesiredRules;
use rules::{ChainSet, RecordedRules};
use tracing::{debug, info};
use wire::PodRecord;

use crate::{InPlaceError, InPlaceRepair, in_place::family_choice, sidecar_pods::SidecarPod};

/// The result of a pass for a pod, if its rules differed.
#[derive(Debug)]
pub(crate) struct RulesReport {
    pub(crate) name: PodName,
    pub(crate) uid: PodUid,
    /// Differences, which are restored unless this is a dry run; or the reason why that failed.
    pub(crate) result: Result<Vec<String>, String>,
    /// Another component has removed again what was restored, before that could be observed.
    pub(crate) is_contested: bool,
    /// Whether the pod's rules are removed repeatedly.
    pub(crate) is_unstable: bool,
    /// How often in a row its rules were restored, if it is time to report that they are removed repeatedly.
    pub(crate) conflict: Option<u32>,
    /// Changes that led to the comparison; `None`: the clock did.
    pub(crate) disturbance: Option<NetnsDisturbance>,
}

/// A pod's namespace, and what is known of its rules.
#[derive(Debug)]
struct KnownPod {
    netns: Arc<Netns>,
    /// The watch over it; `None`: the clock alone leads to comparisons.
    _watch: Option<NetnsWatch<PodUid>>,
    /// Rules that the pod has to have; `None`: its ADD did not record them, and those that it has are not understood, or redirect
    /// nothing yet.
    baseline: Option<RecordedRules>,
    /// Fingerprint of the pod's tables when all rules were in place.
    verified: Option<RulesFingerprint>,
    /// Result that was last reported. A failure, or a difference in a dry run, is reported again only after all rules were in
    /// place, or when it changes.
    reported: Option<Result<Vec<String>, String>>,
    /// Whether its rules stay in place.
    stability: Stability,
    /// When they are compared without a change, after a repair; `None`: as those of all pods.
    recheck: Option<AgentTime>,
    /// When a conflict may be reported again: at most once in [`NOTICE_INTERVAL`].
    next_conflict: AgentTime,
}

/// Remembers the pods' namespaces, so that a pass costs a few requests to the kernel for a pod whose tables have not
/// changed.
#[derive(Debug)]
pub(crate) struct SidecarRuleReconciler {
    in_place: InPlaceRepair,
    dry_run: bool,
    started: Instant,
    watcher: Option<ChangeWatcher<PodUid>>,
    known: BTreeMap<PodUid, KnownPod>,
    /// The last passes that could not determine a pod's namespace.
    ambiguous: BTreeMap<PodUid, AmbiguityStreak>,
}

impl SidecarRuleReconciler {
    /// `watcher`: watches the pods' namespaces; `None`: nobody does.
    pub(crate) fn new(
        in_place: InPlaceRepair,
        dry_run: bool,
        watcher: Option<ChangeWatcher<PodUid>>,
    ) -> SidecarRuleReconciler {
        let (known, ambiguous, started) = (BTreeMap::new(), BTreeMap::new(), Instant::now());
        SidecarRuleReconciler { in_place, dry_run, started, watcher, known, ambiguous }
    }

    /// Observes the rules of these pods, if their namespaces are known, and of those that are due after a repair, and restores what
    /// is missing. Blocks as [`SidecarRuleReconciler::pass_all`].
    pub(crate) fn pass_changed(
        &mut self,
        changed: BTreeMap<PodUid, NetnsDisturbance>,
        pods: &BTreeMap<PodUid, Arc<SidecarPod>>,
    ) -> Vec<RulesReport> {
        let now = self.started.elapsed();
        let is_due = |known: &mut KnownPod| known.recheck.take_if(|recheck| *recheck <= now).is_some();
        let due = self.known.iter_mut().filter_map(|(uid, known)| is_due(known).then(|| (uid.clone(), None)));
        let mut due: BTreeMap<_, _> = due.collect();
        due.extend(changed.into_iter().map(|(uid, disturbance)| (uid, Some(disturbance))));
        due.into_iter().filter_map(|(uid, disturbance)| self.compare_pod(uid, pods, disturbance)).collect()
    }

    /// When the next pod is due after a repair.
    pub(crate) fn next_recheck(&self) -> Option<Instant> {
        self.known.values().filter_map(|known| known.recheck).min().map(|recheck| self.started + recheck)
    }

    /// Looks for the pods' namespaces, observes the rules in those that are new, and restores what is missing. Blocks as
    /// [`SidecarRuleReconciler::pass_all`].
    ///
    /// # Errors
    /// The node's processes cannot be listed.
    pub(crate) fn pass_new(
        &mut self,
        all: &KnownPods,
        pods: &BTreeMap<PodUid, Arc<SidecarPod>>,
    ) -> Result<Vec<RulesReport>, InPlaceError> {
        // A streak counts regular passes.
        let streaks = self.ambiguous.clone();
        let new = self.find_netns(all, pods)?;
        self.ambiguous = streaks;
        Ok(new.into_iter().filter_map(|uid| self.compare_pod(uid, pods, None)).collect())
    }

    /// How many times in a row the rules of pods were restored that are removed repeatedly. Pods whose rules cannot be restored
    /// are none of these.
    pub(crate) fn unstable_pods(&self) -> BTreeMap<PodUid, u32> {
        let is_unstable =
            |known: &KnownPod| known.stability.is_unstable() && !matches!(known.reported, Some(Err(_)));
        let unstable = self.known.iter().filter(|(_, known)| is_unstable(known));
        unstable.map(|(uid, known)| (uid.clone(), known.stability.repair_count())).collect()
    }

    /// Observes the rules of a pod; `None`: they are all in place, or it is not known.
    fn compare_pod(
        &mut self,
        uid: PodUid,
        pods: &BTreeMap<PodUid, Arc<SidecarPod>>,
        disturbance: Option<NetnsDisturbance>,
    ) -> Option<RulesReport> {
        let (pod, known) = (pods.get(&uid)?, self.known.get_mut(&uid)?);
        let was_unstable = known.stability.is_unstable();
        let repair = (!self.dry_run).then_some(&self.in_place);
        let now = self.started.elapsed();
        let compared = known.compare_rules(pod, repair, now);
        known.recheck = known.stability.recheck_delay().map(|delay| now + delay);
        if was_unstable && !known.stability.is_unstable() {
            let PodName { namespace, name } = &pod.ids.name;
            info!(target: "repair", %namespace, pod = %name, "rules of a running pod stay in place again");
        }
        let (result, is_contested) = compared?;
        let is_unstable = known.stability.is_unstable();
        let is_due = is_unstable && result.is_ok() && now >= known.next_conflict;
        let conflict = is_due.then(|| known.stability.repair_count());
        if conflict.is_some() {
            known.next_conflict = now + NOTICE_INTERVAL;
        }
        let name = pod.ids.name.clone();
        Some(RulesReport { name, uid, result, is_contested, is_unstable, conflict, disturbance })
    }

    /// Observes all pods once, and restores what is missing. Blocks for some milliseconds, and for some tens more for each
    /// pod that is repaired. A pod without a process is skipped; the next pass looks for it again. `all`: all pods of the node
    /// that are known.
    ///
    /// # Errors
    /// The node's processes cannot be listed.
    pub(crate) fn pass_all(
        &mut self,
        all: &KnownPods,
        pods: &BTreeMap<PodUid, Arc<SidecarPod>>,
    ) -> Result<Vec<RulesReport>, InPlaceError> {
        self.find_netns(all, pods)?;
        let mut reports = Vec::new();
        for (uid, pod) in pods {
            let name = &pod.ids.name;
            match self.ambiguous.get(uid) {
                // Also of a pod whose namespace was known: its sandbox may have been replaced.
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
                Some(_) | None => reports.extend(self.compare_pod(uid.clone(), pods, None)),
            }
        }
        Ok(reports)
    }

    /// Returns pods that are new, or whose network namespace is another one than before: their sandboxes were replaced.
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
                    let baseline = recorded.get(&uid).copied().and_then(recorded_rules);
                    let netns = Arc::new(found.netns);
                    let _watch = self.watcher.as_ref().and_then(|watcher| watch_netns(watcher, &uid, &netns));
                    let known = KnownPod {
                        netns,
                        _watch,
                        baseline,
                        verified: None,
                        reported: None,
                        stability: Stability::default(),
                        recheck: None,
                        next_conflict: AgentTime::ZERO,
                    };
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

/// `None`, with a line in the log: the clock alone leads to comparisons.
fn watch_netns(watcher: &ChangeWatcher<PodUid>, uid: &PodUid, netns: &Netns) -> Option<NetnsWatch<PodUid>> {
    let watch = watcher.watch(uid.clone(), netns);
    let watch = watch.map_err(|error| {
        debug!(target: "repair", pod_uid = %uid, %error, "the pod's network namespace cannot be watched for changes");
    });
    watch.ok()
}

/// The rules that a pod's ADD left; `None`: it recorded none that this version understands.
fn recorded_rules(record: &PodRecord) -> Option<RecordedRules> {
    Some(RecordedRules::from_lines(record.rules.clone())).filter(RecordedRules::is_usable)
}

impl KnownPod {
    /// Returns the result, and whether another component has removed again what was restored. `None`: all rules are in place, or the
    /// difference was reported before. `repair`: `None` in a dry run.
    fn compare_rules(
        &mut self,
        pod: &SidecarPod,
        repair: Option<&InPlaceRepair>,
        now: AgentTime,
    ) -> Option<(Result<Vec<String>, String>, bool)> {
        let fingerprint = self.rules_fingerprint();
        if fingerprint.is_some() && fingerprint == self.verified && self.has_routes(pod) {
            self.stability.record_observation(false, now);
            return None;
        }
        let (result, is_contested) = match self.restore_rules(pod, repair) {
            // It has no traffic: the pod's sandbox is being replaced, or the pod is about to end.
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
            // The first time there is nothing that somebody could have removed.
            Ok(_) if repair.is_some() && (self.verified.is_some() || self.reported.is_some()) => {
                self.stability.record_observation(true, now);
            }
            Ok(_) => {}
            Err(_) => self.stability.record_failure(),
        }
        // What was restored may be removed again.
        let is_news = (repair.is_some() && result.is_ok()) || self.reported.as_ref() != Some(&result);
        self.reported = Some(result.clone());
        is_news.then_some((result, is_contested))
    }

    /// Restores what is missing, and returns it; empty if nothing is. Without `repair`, nothing is restored.
    fn restore_rules(
        &mut self,
        pod: &SidecarPod,
        repair: Option<&InPlaceRepair>,
    ) -> Result<Vec<String>, InPlaceError> {
        let missing = self.netns.run_in(|| missing_rules(&pod.redirect, self.baseline.as_ref()))??;
        if missing.is_empty() {
            if self.baseline.is_none() {
                self.baseline = self.netns.run_in(redirect::found_rules)??;
            }
            return Ok(missing);
        }
        let Some(repair) = repair else { return Ok(missing) };
        let restored = repair.restore_pod(&self.netns, &pod.ids.name, &pod.redirect, pod.existing)?;
        let families = family_choice(&pod.redirect);
        let families = self.netns.run_in(|| redirect::redirected_families(families))??;
        self.baseline = Some(DesiredRules::for_families(&pod.redirect.config, &families).rules);
        Ok(restored)
    }

    /// Whether its policy routes are in place; false if that could not be determined.
    fn has_routes(&self, pod: &SidecarPod) -> bool {
        let (config, families) = (&pod.redirect.config, family_choice(&pod.redirect));
        let missing = self.netns.run_in(|| redirect::missing_routes(config, families));
        missing.is_ok_and(|missing| missing.is_ok_and(|missing| missing.is_empty()))
    }

    fn rules_fingerprint(&self) -> Option<RulesFingerprint> {
        self.netns.run_in(|| RulesFingerprint::of_this_netns().ok()).ok().flatten()
    }
}

/// Returns what is missing in this namespace. It needs no tool.
fn missing_rules(
    redirect: &SidecarRedirect,
    baseline: Option<&RecordedRules>,
) -> Result<Vec<String>, redirect::Error> {
    if let Some(rules) = baseline {
        return redirect::compare_recorded(&redirect.config, family_choice(redirect), rules);
    }
    let missing =
        CapturedTraffic::any_outbound().missing_from(&CapturedTraffic::of_this_netns(ChainSet::SIDECAR)?);
    if missing.is_empty() {
        return Ok(firewall::inactive_rules(ChainSet::SIDECAR)?);
    }
    Ok(missing.iter().map(|traffic| format!("no rule redirects {traffic} traffic")).collect())
}
