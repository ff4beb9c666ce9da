//! Namespaces of pods that started before this agent, and of pods whose namespace was replaced.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use enrolment::{AmbientStanding, SkipReason};
use inpod::{NetnsAnswer, NetnsMatch, NetnsQuery};
use model::{Pod, PodUid, Reason};
use netns::NetnsId;
use pod_identity::{Ambiguity, AmbiguityStreak, KnownPods, PodIds};
use pod_status::lifecycle::PodEvent;
use tracing::warn;

use super::{
    InPodCapture,
    enrolled_pod::EnrolledPod,
    search_schedule::SOON,
    worker::{CaptureJob, DiscoveryResult},
};
use agent::AgentState;

impl InPodCapture {
    /// When the next search begins, if there is anything to search for.
    pub(super) fn discovery_due(&self) -> Option<Instant> {
        let processes = (!self.searched || !self.enrolled.is_empty()).then_some(self.processes.next);
        let records = (self.searched && !self.unplaced.is_empty()).then_some(self.records.next);
        processes
            .into_iter()
            .chain(records)
            .chain(self.ztunnels.next_discovery())
            .min()
            .filter(|_| !self.seeking)
    }

    pub(super) fn discover_if_due(&mut self, state: &AgentState) {
        let by_processes = self.processes.is_due();
        // The first search is for all.
        let by_records = if self.searched { self.records.is_due() } else { by_processes };
        let by_records = by_records && !self.unplaced.is_empty();
        // A search among processes looks at all of them anyway.
        let for_ztunnels = by_processes || self.ztunnels.is_due();
        if self.seeking || !(by_processes || by_records || for_ztunnels) {
            return;
        }
        let (mut processes, mut records) = (BTreeMap::new(), Vec::new());
        self.sought.clear();
        if by_processes {
            let own = self.enrolled.iter().filter(|(_, enrolled_pod)| !enrolled_pod.lifecycle.is_awaited());
            for (uid, enrolled_pod) in own.filter(|(_, enrolled_pod)| !enrolled_pod.ips.is_empty()) {
                self.sought.insert(uid.clone());
                processes.insert(uid.clone(), netns_query(enrolled_pod));
            }
            self.processes.schedule_regular();
        }
        for pod in state.index.pods() {
            let uid = &pod.metadata.uid;
            let is_suspect = !self.searched && is_suspect(state, pod);
            if is_suspect && !pod.status.ips().is_empty() {
                processes.extend([sought_anew(pod)]);
            }
            let enrolled_pod = self.enrolled.get(uid).filter(|_| self.sought.contains(uid));
            let is_lost = enrolled_pod.is_some_and(|enrolled_pod| enrolled_pod.netns.is_none());
            if is_suspect || is_lost || (by_records && self.unplaced.contains(uid)) {
                let ips =
                    enrolled_pod.map_or_else(|| pod.status.ips(), |enrolled_pod| enrolled_pod.ips.clone());
                records.push((PodIds::from(pod), ips));
            }
        }
        if by_records {
            self.records.schedule_retry();
        }
        if for_ztunnels {
            processes.extend(self.ztunnels.netns_queries());
        }
        if processes.is_empty() && records.is_empty() {
            self.searched = true;
            return;
        }
        self.seeking = true;
        let pods = KnownPods::new(state.index.pods().map(PodIds::from));
        self.workers.send_job(CaptureJob::DiscoverNetns { pods, processes, records }, !self.searched);
    }

    /// A search begins now for a pod that has no namespace, or lost it.
    pub(super) fn discover_soon(&mut self) {
        self.processes.schedule_within(Duration::ZERO, false);
    }

    /// These pods belong to the mesh, and neither an ADD nor the API has shown where they are. One that is just starting
    /// will have an ADD in a moment; of another one the plugin may have recorded the ADD, or be about to.
    pub(super) fn set_without_netns(&mut self, uids: BTreeSet<PodUid>) {
        if !uids.is_subset(&self.unplaced) {
            self.records.schedule_within(SOON, self.unplaced.is_empty());
        }
        self.unplaced = uids;
    }

    pub(super) fn finish_discovery(
        &mut self,
        state: &mut AgentState,
        result: Result<DiscoveryResult, Reason>,
    ) {
        if !std::mem::take(&mut self.seeking) {
            return; // everything was settled meanwhile
        }
        // A search among records alone must not postpone the next one among processes.
        let by_processes = !self.sought.is_empty() || !self.searched;
        let mut finds = match result {
            Ok(finds) => finds,
            Err(error) => {
                self.ztunnels.apply_answers(None);
                self.discovery_problem =
                    Some(format!("cannot search for the network namespaces of running pods: {error}").into());
                if by_processes {
                    self.processes.schedule_retry();
                }
                return;
            }
        };
        self.searched = true;
        self.discovery_problem = None;
        self.ztunnels.apply_answers(Some(&mut finds.processes));
        for uid in std::mem::take(&mut self.sought) {
            let answer = finds.processes.get(&uid);
            let is_empty = matches!(answer, None | Some(NetnsAnswer::Unchanged { runs: false }));
            if !matches!(answer, Some(NetnsAnswer::Ambiguous(_)))
                && let Some(enrolled_pod) = self.enrolled.get_mut(&uid)
            {
                enrolled_pod.ambiguity = None;
            }
            self.handle_pod_event(&uid, PodEvent::DiscoveryDone { there: !is_empty });
        }
        // The runtime itself named the namespace in a record, so that counts more than where processes are.
        for (uid, recorded) in finds.records {
            if self.inherit_pod(state, &uid, recorded) {
                finds.processes.remove(&uid);
            }
        }
        for (uid, answer) in finds.processes {
            match answer {
                NetnsAnswer::Found(found) => self.found_one(state, &uid, found),
                NetnsAnswer::Ambiguous(why) => self.note_ambiguity(state, &uid, why),
                NetnsAnswer::Unchanged { .. } => {}
            }
        }
        if by_processes && self.enrolled.values().any(|enrolled_pod| enrolled_pod.netns.is_none()) {
            self.processes.schedule_retry();
        }
        self.unplaced.retain(|uid| !self.enrolled.contains_key(uid));
    }

    fn found_one(&mut self, state: &mut AgentState, uid: &PodUid, found: NetnsMatch) {
        let NetnsMatch { netns, witness, captured } = found;
        if self.is_of_another(uid, netns.id()) {
            self.note_ambiguity(state, uid, Ambiguity::SharedNetns);
            return;
        }
        if captured && !self.enrolled.contains_key(uid) {
            self.left_meanwhile(state, uid);
        }
        let Some(enrolled_pod) =
            self.enrolled.get_mut(uid).filter(|enrolled_pod| !enrolled_pod.lifecycle.is_awaited())
        else {
            return;
        };
        let netns = enrolled_pod.set_netns(netns, witness);
        self.handle_pod_event(uid, PodEvent::Found { netns, captured });
    }

    /// Whether another pod has this namespace: one namespace belongs to one pod, and the first answer stands.
    pub(super) fn is_of_another(&self, uid: &PodUid, netns: NetnsId) -> bool {
        self.enrolled
            .iter()
            .any(|(other, enrolled_pod)| other != uid && enrolled_pod.netns_id() == Some(netns))
    }

    /// Notes that no namespace could be attributed to the pod. It is not captured on a guess; if it is captured, it stays so.
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

/// Whether the pod is outside of the mesh, and may have left it while no agent ran.
fn is_suspect(state: &AgentState, pod: &Pod) -> bool {
    match state.pod_standing(pod) {
        AmbientStanding::Out(SkipReason::HostNetwork | SkipReason::Terminated | SkipReason::HasSidecar) => {
            false
        }
        AmbientStanding::Out(SkipReason::NamespaceUnknown) => false, // its labels may arrive later
        AmbientStanding::Out(_) => true,
        _ => false,
    }
}

fn sought_anew(pod: &Pod) -> (PodUid, NetnsQuery) {
    (pod.metadata.uid.clone(), NetnsQuery { ips: pod.status.ips(), known: None, recorded: None })
}

fn netns_query(enrolled_pod: &EnrolledPod) -> NetnsQuery {
    NetnsQuery { ips: enrolled_pod.ips.clone(), known: enrolled_pod.netns.clone(), recorded: None }
}
