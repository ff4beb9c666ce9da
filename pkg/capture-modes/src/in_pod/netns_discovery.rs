//! Netns discovery: namespaces of pods that started before this agent, and of pods whose namespace was replaced.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use enrolment::{AmbientStanding, FactIndex, SkipReason, ambient::has_sidecar};
use model::{Pod, PodUid, Reason};
use netns::NetnsId;
use pod_capture::{NetnsAnswer, NetnsMatch, NetnsQuery};
use pod_identity::{Ambiguity, AmbiguityStreak, KnownPods, PodIds};
use pod_status::lifecycle::PodEvent;
use tracing::warn;

use super::{
    InPodCapture,
    enrolled_pod::EnrolledPod,
    search_schedule::{SOON, SearchSchedule},
    worker::{CaptureJob, DiscoveryResult},
    ztunnel_netns::ZtunnelNamespaces,
};
use agent::AgentState;

/// State of netns discovery.
#[derive(Debug, Default)]
pub(super) struct NetnsDiscovery {
    /// Whether a search is in progress.
    pub(super) is_running: bool,
    /// Pods whose processes are searched for, by UID, each with the namespace that was known when the search began;
    /// `None`: the search is not among the processes of pods.
    sought: Option<BTreeMap<PodUid, Option<NetnsId>>>,
    /// When the next search among processes is due.
    processes: SearchSchedule,
    /// When the next search among the plugin's records is due.
    records: SearchSchedule,
    /// The namespaces of ztunnel pods.
    pub(super) ztunnels: ZtunnelNamespaces,
    /// Pods of the mesh whose addresses and namespace are unknown, by UID.
    pub(super) unplaced: BTreeSet<PodUid>,
    /// Pods outside of the mesh that may have left it while no agent ran, by UID, until their namespace is found.
    pub(super) suspects: BTreeSet<PodUid>,
    /// Whether the first search has ended: ztunnels can be sent all pods.
    pub(super) is_complete: bool,
    /// Error of the last search, if it failed.
    pub(super) problem: Option<Reason>,
}

impl InPodCapture {
    /// Returns when the next search is due, if there is anything to search for.
    pub(super) fn discovery_due(&self) -> Option<Instant> {
        let is_sought =
            !self.discovery.is_complete || !self.enrolled.is_empty() || !self.discovery.suspects.is_empty();
        let processes = is_sought.then_some(self.discovery.processes.next);
        let records = (self.discovery.is_complete && !self.discovery.unplaced.is_empty())
            .then_some(self.discovery.records.next);
        processes
            .into_iter()
            .chain(records)
            .chain(self.discovery.ztunnels.next_discovery())
            .min()
            .filter(|_| !self.discovery.is_running)
    }

    pub(super) fn discover_if_due(&mut self, state: &AgentState) {
        let (is_first, for_ztunnels) = (!self.discovery.is_complete, self.discovery.ztunnels.is_due());
        // The first search covers all pods, whatever made it due.
        let by_processes = self.discovery.processes.is_due() || (is_first && for_ztunnels);
        let by_records = if is_first { by_processes } else { self.discovery.records.is_due() };
        let by_records = by_records && !self.discovery.unplaced.is_empty();
        if self.discovery.is_running || !(by_processes || by_records || for_ztunnels) {
            return;
        }
        let (mut processes, mut records, mut sought) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
        if by_processes {
            let own = self.enrolled.iter().filter(|(_, enrolled_pod)| !enrolled_pod.lifecycle.is_awaited());
            for (uid, enrolled_pod) in own.filter(|(_, enrolled_pod)| !enrolled_pod.ips.is_empty()) {
                sought.insert(uid.clone(), enrolled_pod.netns_id());
                let (ips, known) = (enrolled_pod.ips.clone(), enrolled_pod.netns.clone());
                processes.insert(uid.clone(), NetnsQuery { ips, known, recorded: None });
            }
            self.discovery.processes.schedule_regular();
            self.update_suspects(state);
        }
        for pod in state.index.pods() {
            let uid = &pod.metadata.uid;
            let is_suspect = by_processes && self.discovery.suspects.contains(uid);
            if is_suspect && !pod.status.ips().is_empty() {
                let query = NetnsQuery { ips: pod.status.ips(), known: None, recorded: None };
                processes.insert(pod.metadata.uid.clone(), query);
            }
            let enrolled_pod = self.enrolled.get(uid).filter(|_| sought.contains_key(uid));
            let is_lost = enrolled_pod.is_some_and(|enrolled_pod| enrolled_pod.netns.is_none());
            if is_suspect || is_lost || (by_records && self.discovery.unplaced.contains(uid)) {
                let ips =
                    enrolled_pod.map_or_else(|| pod.status.ips(), |enrolled_pod| enrolled_pod.ips.clone());
                records.push((PodIds::from(pod), ips));
            }
        }
        if by_records {
            self.discovery.records.schedule_retry();
        }
        // A search among processes reads all of them anyway.
        if by_processes || for_ztunnels {
            processes.extend(self.discovery.ztunnels.netns_queries());
        }
        if processes.is_empty() && records.is_empty() {
            self.discovery.is_complete = true;
            self.discovery.problem = None;
            return;
        }
        self.discovery.is_running = true;
        self.discovery.sought = by_processes.then_some(sought);
        let pods = collect_known_pods(&state.index, &self.enrolled);
        self.workers
            .send_job(CaptureJob::DiscoverNetns { pods, processes, records }, !self.discovery.is_complete);
    }

    /// Updates the suspects: for the first search all pods outside of the mesh, afterwards those that were not found.
    fn update_suspects(&mut self, state: &AgentState) {
        let NetnsDiscovery { suspects, is_complete, .. } = &self.discovery;
        let is_open = |pod: &&Pod| !*is_complete || suspects.contains(&pod.metadata.uid);
        let outside = state.index.pods().filter(is_open).filter(|pod| is_suspect(state, pod));
        let uids = outside.map(|pod| &pod.metadata.uid);
        let is_placed = |uid: &&PodUid| self.enrolled.get(*uid).is_some_and(|pod| pod.netns.is_some());
        self.discovery.suspects = uids.filter(|uid| !is_placed(uid)).cloned().collect();
    }

    /// Schedules an immediate search for a pod that has no namespace, or lost it.
    pub(super) fn discover_soon(&mut self) {
        self.discovery.processes.schedule_within(Duration::ZERO, false);
    }

    /// Sets the pods of the mesh whose namespace neither an ADD nor the API has shown. A pod that is just starting gets
    /// its ADD soon; for another one, the plugin may have recorded the ADD, or be about to.
    pub(super) fn set_without_netns(&mut self, uids: BTreeSet<PodUid>) {
        if !uids.is_subset(&self.discovery.unplaced) {
            self.discovery.records.schedule_within(SOON, self.discovery.unplaced.is_empty());
        }
        self.discovery.unplaced = uids;
    }

    pub(super) fn finish_discovery(
        &mut self,
        state: &mut AgentState,
        result: Result<DiscoveryResult, Reason>,
    ) {
        if !std::mem::take(&mut self.discovery.is_running) {
            return; // the results are no longer needed
        }
        let sought = self.discovery.sought.take();
        // A search among records only must not postpone the next one among processes.
        let by_processes = sought.is_some();
        let mut finds = match result {
            Ok(finds) => finds,
            Err(error) => {
                self.discovery.ztunnels.apply_answers(None);
                self.discovery.problem =
                    Some(format!("cannot search for the network namespaces of running pods: {error}").into());
                if by_processes {
                    self.discovery.processes.schedule_retry();
                }
                return;
            }
        };
        self.discovery.is_complete = true;
        self.discovery.problem = None;
        self.discovery.ztunnels.apply_answers(Some(&mut finds.processes));
        let sought = sought.unwrap_or_default();
        for uid in sought.keys() {
            let answer = finds.processes.get(uid);
            let is_empty = matches!(answer, None | Some(NetnsAnswer::Unchanged { runs: false }));
            if !matches!(answer, Some(NetnsAnswer::Ambiguous(_)))
                && let Some(enrolled_pod) = self.enrolled.get_mut(uid)
            {
                enrolled_pod.ambiguity = None;
            }
            self.handle_pod_event(uid, PodEvent::DiscoveryDone { there: !is_empty });
        }
        // The runtime itself named the namespace in a record, so a record takes precedence over the namespaces of
        // processes.
        for (uid, recorded) in finds.records {
            let is_bare = !recorded.found.captured;
            let is_known = self.inherit_pod(state, &uid, recorded);
            if is_known {
                finds.processes.remove(&uid);
            }
            if is_known || is_bare {
                self.discovery.suspects.remove(&uid);
            }
        }
        for (uid, answer) in finds.processes {
            // An ADD or a DEL during the search takes precedence over what it found.
            let known = sought.get(&uid).copied().flatten();
            if self.enrolled.get(&uid).is_some_and(|enrolled_pod| enrolled_pod.netns_id() != known) {
                continue;
            }
            match answer {
                NetnsAnswer::Found(found) => self.found_one(state, &uid, found),
                NetnsAnswer::Ambiguous(why) => self.note_ambiguity(state, &uid, why),
                NetnsAnswer::Unchanged { .. } => {}
            }
        }
        let is_missing = !self.discovery.suspects.is_empty()
            || self.enrolled.values().any(|enrolled_pod| enrolled_pod.netns.is_none());
        if by_processes && is_missing {
            self.discovery.processes.schedule_retry();
        }
        self.discovery.unplaced.retain(|uid| !self.enrolled.contains_key(uid));
    }

    fn found_one(&mut self, state: &mut AgentState, uid: &PodUid, found: NetnsMatch) {
        let NetnsMatch { netns, witness, captured } = found;
        if self.belongs_to_another(uid, netns.id()) {
            self.note_ambiguity(state, uid, Ambiguity::SharedNetns);
            return;
        }
        self.discovery.suspects.remove(uid);
        if captured && let Some(pod) = state.index.pods().find(|pod| pod.metadata.uid == *uid) {
            self.left_meanwhile(state, pod);
        }
        let Some(enrolled_pod) =
            self.enrolled.get_mut(uid).filter(|enrolled_pod| !enrolled_pod.lifecycle.is_awaited())
        else {
            return;
        };
        let netns = enrolled_pod.set_netns(netns, witness);
        self.handle_pod_event(uid, PodEvent::Found { netns, captured });
    }

    /// Returns whether another pod has this namespace: a namespace belongs to one pod, and the first attribution
    /// stands.
    pub(super) fn belongs_to_another(&self, uid: &PodUid, netns: NetnsId) -> bool {
        self.enrolled
            .iter()
            .any(|(other, enrolled_pod)| other != uid && enrolled_pod.netns_id() == Some(netns))
    }

    /// Records that no namespace could be attributed to the pod. A pod is never captured on a guess; a captured pod
    /// stays captured.
    fn note_ambiguity(&mut self, state: &mut AgentState, uid: &PodUid, why: Ambiguity) {
        let Some(enrolled_pod) = self.enrolled.get_mut(uid) else { return };
        let streak = AmbiguityStreak::continue_from(enrolled_pod.ambiguity, why);
        enrolled_pod.ambiguity = Some(streak);
        if streak.is_due() {
            let name = &enrolled_pod.name;
            warn!(target: "ambient", namespace = %name.namespace, pod = %name.name, reason = why.code(), "network namespace of the pod could not be determined");
            state.notices.ambiguous_netns(name, uid, &why.to_string());
        }
    }
}

/// Returns all pods of the node: those that the API shows, and those that were added and that it does not show, as while
/// its watch fails. Without the latter, their processes would be nobody's, and they would count as ended.
fn collect_known_pods(index: &FactIndex, enrolled: &BTreeMap<PodUid, EnrolledPod>) -> KnownPods {
    let shown: BTreeSet<&PodUid> = index.pods().map(|pod| &pod.metadata.uid).collect();
    let added = enrolled.iter().filter(|(uid, _)| !shown.contains(uid));
    KnownPods::new(index.pods().map(PodIds::from).chain(added.map(|(uid, pod)| pod.to_ids(uid))))
}

/// Returns whether the pod is outside of the mesh, and may have left it while no agent ran.
pub(super) fn is_suspect(state: &AgentState, pod: &Pod) -> bool {
    // Others have no namespace of their own, or no longer, or are never captured, and chains of a sidecar have the same names. Their
    // labels may hide that in the reason.
    let is_possible = !pod.spec.host_network
        && !pod.status.has_ended()
        && !state.policy.ztunnel.matches(pod)
        && !has_sidecar(pod);
    // Labels of an unknown namespace may arrive later.
    let is_other = |reason| matches!(reason, SkipReason::NamespaceUnknown | SkipReason::Terminated);
    is_possible && matches!(state.pod_standing(pod), AmbientStanding::Out(reason) if !is_other(reason))
}

#[cfg(test)]
mod tests {
    use enrolment::Fact;
    use model::ExistingConnections;
    use pod_identity::ProcessOwner;
    use pod_status::lifecycle::AgentTime;

    use super::*;

    /// As while the watch of pods fails.
    #[test]
    fn the_processes_of_a_pod_that_was_added_are_its_own_before_the_api_shows_it() {
        let uid = PodUid::from("2a1b3c4d-5e6f-7081-92a3-b4c5d6e7f809");
        let mut pod = Pod::default();
        pod.metadata.uid = uid.clone();
        let (options, mut index) = (Default::default(), FactIndex::default());
        let added = EnrolledPod::new(&pod, options, ExistingConnections::Keep, None, AgentTime::ZERO);
        let enrolled = BTreeMap::from([(uid.clone(), added)]);
        let owner = |index: &FactIndex| {
            collect_known_pods(index, &enrolled).process_owner(&format!("0::/kubepods/pod{uid}/1"))
        };
        let expected = ProcessOwner::Pod { uid: uid.clone(), nested: false };
        assert_eq!(owner(&index), expected);
        index.apply(Fact::Pod(Box::new(pod)));
        assert_eq!(owner(&index), expected, "it is not another one");
    }
}
