//! One pass: from facts to actions, pod by pod.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::{Duration, Instant},
};

use enrolment::{
    AmbientStanding, SkipReason,
    ztunnel::{self, ZtunnelCandidate},
};
use model::{Family, MemberAddresses, PodUid, Reason};
use pod_status::{
    Evidence, RulesEvidence,
    lifecycle::{AgentTime, OBSERVE, PodAction, PodEvent},
};
use tracing::info;
use zds::ZtunnelPod;

use super::{EnrolledPod, InPodCapture, worker::CaptureJob};
use agent::{AgentState, ChangedPods, ReconcileScope};

/// Maximum number of verifications at the same time, of slow pods and of others: a pass after a long pause must not start all of them.
const MOST_VERIFICATIONS: usize = 16;
/// Maximum number of pods that a worker observes in one job. Each may have lists that take seconds to read.
const MOST_OBSERVED_TOGETHER: usize = 8;
/// Verifications start in batches, because each pass has a cost, too.
const BATCH: Duration = Duration::from_secs(2);
/// Delay of a verification that had to wait for others.
const CROWDED: Duration = Duration::from_millis(50);
/// Time after which a connected ztunnel that has not acknowledged its snapshot counts as failed. Snapshots of 250 pods
/// take less than a second, so no rollout comes near it.
const UNSYNCED: Duration = Duration::from_secs(30);

impl InPodCapture {
    pub(super) fn reconcile_pods(
        &mut self,
        state: &mut AgentState,
        scope: ReconcileScope,
    ) -> Result<Option<Reason>, Reason> {
        if scope == ReconcileScope::Full {
            self.exempt_probes(state);
        }
        self.examine_node(state);
        state.status.set_standstill(self.workers.stand_still());
        let now = self.now();
        let is_late = self.enrolled.values().any(|enrolled_pod| enrolled_pod.lifecycle.is_late(now));
        if scope == ReconcileScope::Timers && !is_late {
            self.discover_if_due(state);
            self.start_due_actions();
            self.due = self.next_due();
            return Ok(self.current_problem(state));
        }
        let changed = state.changed_pods(scope);
        let exempted = match &changed {
            Some(changed) => {
                self.update_enrolled(state, Some(changed));
                self.exempt_changed(state, changed)
            }
            None => {
                self.announce_ztunnels(state);
                self.give_up_lost(state);
                self.update_enrolled(state, None);
                self.exempt_all(state)
            }
        };
        // No pod is captured before the node's probes of it are exempt; captured pods are reported in any case.
        if exempted.is_ok() {
            self.discover_if_due(state);
            self.open_if_discovered();
            self.start_due_actions();
        }
        self.give_up();
        self.report_status(state, changed.as_ref());
        self.report_bypasses(state, changed.as_ref());
        self.due = self.next_due();
        exempted.map(|()| self.current_problem(state))
    }

    /// Returns an error that persists although pods can be enrolled, if any.
    fn current_problem(&self, state: &AgentState) -> Option<Reason> {
        self.exemption
            .current_problem()
            .or_else(|| self.discovery.problem.clone())
            .or_else(|| self.unsynced_ztunnel(state))
    }

    /// Announces the ztunnel pods, from which follows which connections are ztunnels and which of these is the newest.
    /// The plugin knows their addresses before the API does.
    fn announce_ztunnels(&mut self, state: &AgentState) {
        let (mut pods, mut own) = (Vec::new(), BTreeMap::new());
        for one in ztunnel::list_candidates(&state.index, &state.policy.ztunnel) {
            let ips = [state.ledger.added_addresses(&one.uid), one.ips].concat();
            let enrolled_pod = self.enrolled.get(&one.uid);
            // The namespaces of all others are known without a search.
            if !one.host_network && enrolled_pod.is_none() {
                own.insert(one.uid.clone(), ips.clone());
            }
            let netns =
                if one.host_network { Some(self.node) } else { enrolled_pod.and_then(EnrolledPod::netns_id) };
            let ZtunnelCandidate { uid, created, terminating, .. } = one;
            pods.push(ZtunnelPod { uid, created, terminating, ips, netns });
        }
        self.discovery.ztunnels.set_pods(own);
        for pod in &mut pods {
            pod.netns = pod.netns.or_else(|| self.discovery.ztunnels.netns_id(&pod.uid));
        }
        self.hub.set_ztunnels(pods);
    }

    /// Returns the error of a connected ztunnel that does not become ready.
    fn unsynced_ztunnel(&self, state: &AgentState) -> Option<Reason> {
        let (_, pod) = self.hub.longest_unsynced().filter(|(since, _)| since.elapsed() >= UNSYNCED)?;
        let candidates = ztunnel::list_candidates(&state.index, &state.policy.ztunnel);
        let known = candidates.iter().find(|candidate| Some(&candidate.uid) == pod.as_ref());
        let name =
            known.map_or_else(|| "a ztunnel".to_owned(), |candidate| format!("ztunnel {}", candidate.name));
        let limit = UNSYNCED.as_secs();
        let why = format!(
            "{name} has not acknowledged its snapshot of pods for more than {limit} s: it is not ready"
        );
        Some(why.into())
    }

    /// Exempts the probes of all pods of the mesh. Precedes all changes of rules: a captured pod's probes are always
    /// exempt.
    fn exempt_all(&mut self, state: &mut AgentState) -> Result<(), Reason> {
        let found = self.exemption.probes.set_members().map_err(|error| error.to_string())?;
        let inherited: MemberAddresses =
            found.iter().filter_map(|(ip, uid)| Some((*ip, uid.clone()?))).collect();
        let members = state.resolve_members(&inherited);
        let desired = self.with_leaving(members, |_| true);
        let (added, removed) = self.change_sets(&found, &desired)?;
        self.report_sets(state, added, removed);
        self.exemption.addresses = desired;
        self.exemption.probes.reconcile_branches(&self.exemption.addresses);
        Ok(())
    }

    /// Like `exempt_all`, but only for addresses that changed pods have, had, or take over from others.
    fn exempt_changed(&mut self, state: &mut AgentState, changed: &ChangedPods) -> Result<(), Reason> {
        let mut ips = changed.ips.clone();
        for uid in changed.pods.keys() {
            ips.extend(state.ledger.added_addresses(uid));
            ips.extend(self.enrolled.get(uid).into_iter().flat_map(|enrolled_pod| &enrolled_pod.ips));
        }
        ips.extend(state.index.pods_with(&changed.pods).flat_map(|pod| pod.status.ips()));
        let owned = self.exemption.addresses.iter().filter(|(_, owner)| changed.pods.contains_key(*owner));
        ips.extend(owned.map(|(ip, _)| *ip));
        let members = state.members_among(&ips, changed, &self.exemption.addresses);
        let desired = self.with_leaving(members, |ip| ips.contains(ip));
        let before = self.exemption.addresses.iter().filter(|(ip, _)| ips.contains(*ip));
        let found = before.map(|(ip, uid)| (*ip, Some(uid.clone()))).collect();
        let _ = self.change_sets(&found, &desired)?;
        self.exemption.addresses.retain(|ip, _| !ips.contains(ip));
        self.exemption.addresses.extend(desired);
        self.exemption.probes.reconcile_branches(&self.exemption.addresses);
        Ok(())
    }

    fn change_sets(
        &mut self,
        found: &BTreeMap<IpAddr, Option<PodUid>>,
        desired: &MemberAddresses,
    ) -> Result<(usize, usize), Reason> {
        let (added, removed) =
            self.exemption.probes.replace_members(found, desired).map_err(|error| error.to_string())?;
        if added + removed > 0 {
            tracing::debug!(target: "ambient", added, removed, "probe sets changed");
        }
        Ok((added, removed))
    }

    /// Adds those of these addresses that belong to leaving pods, because they stay exempt until their rules are
    /// removed, and drops addresses of families that are not captured.
    fn with_leaving(
        &self,
        mut members: MemberAddresses,
        is_meant: impl Fn(&IpAddr) -> bool,
    ) -> MemberAddresses {
        let leaving = self.enrolled.iter().filter(|(_, enrolled_pod)| enrolled_pod.lifecycle.is_leaving());
        for (uid, enrolled_pod) in leaving {
            for ip in enrolled_pod.ips.iter().filter(|ip| is_meant(ip)) {
                members.entry(*ip).or_insert_with(|| uid.clone());
            }
        }
        members.retain(|ip, _| self.chosen.captures(*ip));
        members
    }

    /// Gives up pods that were added, that the API never showed, and that have no process: their DEL was lost.
    fn give_up_lost(&mut self, state: &mut AgentState) {
        let now = self.now();
        let empty = self.enrolled.iter().filter(|(_, enrolled_pod)| enrolled_pod.lifecycle.is_empty(now));
        for (uid, enrolled_pod) in empty {
            if state.ledger.is_expected(uid) && !state.index.pods().any(|pod| pod.metadata.uid == *uid) {
                info!(target: "ambient", namespace = %enrolled_pod.name.namespace, pod = %enrolled_pod.name.name, "pod was added and never appeared; treating it as gone");
                state.ledger.drop_lost_pod(uid);
            }
        }
    }

    /// Enrols pods that belong to the mesh, and begins to release those that no longer do. `only`: no other pods
    /// changed.
    fn update_enrolled(&mut self, state: &AgentState, only: Option<&ChangedPods>) {
        let (mut known, mut unplaced) = (BTreeSet::new(), BTreeSet::new());
        for pod in state.considered_pods(only) {
            let uid = &pod.metadata.uid;
            known.insert(uid);
            match state.pod_standing(pod) {
                AmbientStanding::Member { ips, .. } => self.pod_joined(state, pod, ips),
                // The pod's address, or its namespace's labels, may arrive later.
                AmbientStanding::Pending(_) if !self.enrolled.contains_key(uid) => {
                    unplaced.insert(uid.clone());
                }
                AmbientStanding::Pending(_) | AmbientStanding::Out(SkipReason::NamespaceUnknown) => {}
                AmbientStanding::Out(SkipReason::Terminated) => self.forget_pod(uid, "it has ended"),
                AmbientStanding::Out(reason) => self.pod_left(state, pod, &reason.to_string()),
            }
        }
        let gone = |uid: &PodUid| !known.contains(uid) && !state.ledger.is_expected(uid);
        let gone: Vec<PodUid> = match only {
            None => self.enrolled.keys().filter(|uid| gone(uid)).cloned().collect(),
            Some(changed) => changed.pods.keys().filter(|uid| gone(uid)).cloned().collect(),
        };
        gone.iter().for_each(|uid| self.forget_pod(uid, "it is gone"));
        if let Some(changed) = only {
            unplaced.extend(
                self.discovery.unplaced.iter().filter(|uid| !changed.pods.contains_key(*uid)).cloned(),
            );
        }
        self.set_without_netns(unplaced);
    }

    /// Starts the snapshots for ztunnels once all pods that they may serve are known.
    fn open_if_discovered(&mut self) {
        if self.hub.is_open() || !self.discovery.is_complete {
            return;
        }
        for (uid, enrolled_pod) in
            self.enrolled.iter().filter(|(_, enrolled_pod)| enrolled_pod.lifecycle.is_inherited())
        {
            self.hub.set_workload(enrolled_pod.to_workload(uid));
        }
        // Not earlier: ztunnel would conclude from a snapshot without these pods that they have ended.
        self.hub.start_snapshots();
        info!(target: "ambient", pods = self.enrolled.len(), "initial netns discovery complete; opening the ZDS snapshot");
    }

    /// Applies deferred options of pods whose annotations changed twice within a moment.
    fn choose_deferred_options(&mut self) {
        let now = self.now();
        let chosen: Vec<PodUid> = self
            .enrolled
            .iter_mut()
            .filter_map(|(uid, enrolled_pod)| enrolled_pod.choose_deferred_options(now).then(|| uid.clone()))
            .collect();
        for uid in chosen {
            self.metrics.count_pod_event("update");
            self.handle_pod_event(&uid, PodEvent::Joined { changed: true });
        }
    }

    /// Lets the traffic of pods that request it continue while ztunnel is unavailable, and captures them again when it
    /// is available.
    fn open_or_close(&mut self) {
        let is_unavailable = self.presence.is_unavailable();
        let members = self.enrolled.iter_mut().filter(|(_, pod)| !pod.lifecycle.is_leaving());
        let changed: Vec<PodUid> =
            members.filter_map(|(uid, pod)| pod.open_or_close(is_unavailable).then(|| uid.clone())).collect();
        for uid in changed {
            if let Some(enrolled_pod) = self.enrolled.get(&uid) {
                let open = enrolled_pod.options.open;
                enrolled_pod.log_transition(if open { "pod opened" } else { "pod closed" }, Some("ztunnel"));
                self.handle_pod_event(&uid, PodEvent::Opened(open));
            }
        }
    }

    /// Starts all actions that are due.
    fn start_due_actions(&mut self) {
        self.choose_deferred_options();
        self.open_or_close();
        let now = self.now();
        let ready = |(uid, enrolled_pod): (&PodUid, &EnrolledPod)| {
            Some((uid.clone(), enrolled_pod.lifecycle.due_action(now)?))
        };
        let ready: Vec<(PodUid, PodAction)> = self.enrolled.iter().filter_map(ready).collect();
        let busy_pods = || self.enrolled.values().filter(|pod| pod.lifecycle.is_busy());
        // Jobs of slow pods wait in a lane of their own.
        let mut slow_busy = busy_pods().filter(|pod| pod.is_slow()).count();
        let mut busy = busy_pods().count() - slow_busy;
        let next = round_to_batch(now + OBSERVE);
        let (mut routine, is_reported) = (Vec::new(), self.changes.is_running());
        for (uid, action) in ready {
            let Some(enrolled_pod) = self.enrolled.get_mut(&uid) else { continue };
            let observes = action == PodAction::Observe;
            if observes && enrolled_pod.relies_on_watch(is_reported) {
                enrolled_pod.lifecycle.postpone_observation(next);
                continue;
            }
            let busy = if enrolled_pod.is_slow() { &mut slow_busy } else { &mut busy };
            if observes && *busy >= MOST_VERIFICATIONS {
                // The action stays due until another one has ended.
                continue;
            }
            *busy += usize::from(observes);
            enrolled_pod.lifecycle.begin_action(&action, next);
            if observes && enrolled_pod.is_routine() {
                enrolled_pod.begun = Instant::now();
                routine.extend(enrolled_pod.to_job_pod(&uid));
            } else {
                self.execute_action(&uid, action);
            }
        }
        while !routine.is_empty() {
            let pods = routine.drain(..routine.len().min(MOST_OBSERVED_TOGETHER)).collect();
            self.workers.send_job(CaptureJob::ObserveEach(pods), false);
        }
    }

    /// Answers expired ADDs with the reason.
    fn give_up(&mut self) {
        let now = self.now();
        let late = self.enrolled.iter().filter(|(_, enrolled_pod)| enrolled_pod.lifecycle.is_late(now));
        let late: Vec<PodUid> = late.map(|(uid, _)| uid.clone()).collect();
        for uid in late {
            let why = self.why_not(&uid);
            self.handle_pod_event(&uid, PodEvent::Expired(why.into()));
        }
    }

    fn why_not(&self, uid: &PodUid) -> String {
        let enrolled_pod = self.enrolled.get(uid);
        if let Some(streak) = enrolled_pod.and_then(|enrolled_pod| enrolled_pod.ambiguity) {
            return streak.to_string();
        }
        let lifecycle = enrolled_pod.map(|enrolled_pod| &enrolled_pod.lifecycle);
        let refused = lifecycle.and_then(|lifecycle| lifecycle.refusal_reason());
        match lifecycle {
            Some(lifecycle) if !lifecycle.is_ruled() => {
                lifecycle.last_failure().unwrap_or("its rules are not in place yet").to_owned()
            }
            _ if refused.is_some() => refused.unwrap_or_default().to_owned(),
            _ if self.presence.connections == 0 => {
                "no ztunnel is connected to the agent on this node".to_owned()
            }
            _ if !self.hub.is_open() => "the agent does not know the node's pods yet".to_owned(),
            _ => "ztunnel did not answer in time".to_owned(),
        }
    }

    /// Reports the status of pods.
    fn report_status(&self, state: &mut AgentState, only: Option<&ChangedPods>) {
        state.report_pods(
            only,
            |pod, life, ips| {
                let evidence = match (self.enrolled.get(&pod.metadata.uid), ips) {
                    (Some(enrolled_pod), _) => {
                        enrolled_pod.evidence(life, self.hub.is_served(&pod.metadata.uid))
                    }
                    (None, Some(_)) => Evidence {
                        life,
                        rules: RulesEvidence::Absent { failing: false },
                        ..Evidence::UNKNOWN
                    },
                    (None, None) => Evidence::OUTSIDE,
                };
                evidence.classify()
            },
            |uid| self.why_not(uid),
        );
        for family in Family::BOTH {
            let size = self.exemption.addresses.keys().filter(|ip| Family::from_ip(**ip) == family).count();
            state.metrics.set_size(family, size);
        }
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        let now = self.now();
        // Actions that cannot start now start when running jobs have ended.
        let of = |enrolled_pod: &EnrolledPod| enrolled_pod.lifecycle.next_wakeup(now, now + CROWDED);
        let pods = self.enrolled.values().filter_map(of).min().map(|due| self.started + due);
        let now = Instant::now();
        let unsynced =
            self.hub.longest_unsynced().map(|(since, _)| since + UNSYNCED).filter(|due| *due > now);
        let drift = self.exemption.drift.next_observation().filter(|_| !self.exemption.busy);
        pods.into_iter()
            .chain(self.discovery_due())
            .chain(unsynced)
            .chain(drift)
            .chain(self.presence.next_opening())
            .min()
    }
}

/// Rounds up to the start of the next batch of verifications.
fn round_to_batch(when: AgentTime) -> AgentTime {
    let batches = when.as_secs().div_ceil(BATCH.as_secs());
    BATCH.saturating_mul(u32::try_from(batches).unwrap_or(u32::MAX))
}
