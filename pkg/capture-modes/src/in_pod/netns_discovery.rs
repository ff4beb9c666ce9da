//! Namespaces of pods that started before this agent, and of pods whose namespace was replaced.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use inpod::{NetnsMatch, NetnsQuery};
use model::{Pod, PodUid, Reason};
use planner::{AmbientStanding, SkipReason};
use pod_status::lifecycle::PodEvent;
use tracing::debug;

use super::{
    InPodCapture,
    enrolled_pod::EnrolledPod,
    search_schedule::SOON,
    worker::{CaptureJob, SearchResult},
};
use agent::AgentState;

impl InPodCapture {
    /// When the next search begins, if there is anything to search for.
    pub(super) fn search_due(&self) -> Option<Instant> {
        let processes = (!self.searched || !self.enrolled.is_empty()).then_some(self.processes.next);
        let records = (self.searched && !self.unplaced.is_empty()).then_some(self.records.next);
        processes.into_iter().chain(records).min().filter(|_| !self.seeking)
    }

    pub(super) fn search_if_due(&mut self, state: &AgentState) {
        let by_processes = self.processes.is_due();
        // The first search is for all.
        let by_records = if self.searched { self.records.is_due() } else { by_processes };
        let by_records = by_records && !self.unplaced.is_empty();
        if self.seeking || !(by_processes || by_records) {
            return;
        }
        let (mut processes, mut records) = (BTreeMap::new(), BTreeMap::new());
        self.sought.clear();
        if by_processes {
            let own = self.enrolled.iter().filter(|(_, enrolled_pod)| !enrolled_pod.lifecycle.is_awaited());
            for (uid, enrolled_pod) in own.filter(|(_, enrolled_pod)| !enrolled_pod.ips.is_empty()) {
                self.sought.insert(uid.clone());
                processes.insert(uid.clone(), sought(enrolled_pod));
                if enrolled_pod.netns.is_none() {
                    records.insert(uid.clone(), sought(enrolled_pod));
                }
            }
            self.processes.regular();
        }
        if by_records {
            let unplaced = state.index.pods().filter(|pod| self.unplaced.contains(&pod.metadata.uid));
            records.extend(unplaced.map(sought_anew));
            self.records.later();
        }
        if !self.searched {
            processes.extend(suspects(state).filter(|pod| !pod.status.ips().is_empty()).map(sought_anew));
            records.extend(suspects(state).map(sought_anew));
        }
        if processes.is_empty() && records.is_empty() {
            self.searched = true;
            return;
        }
        self.seeking = true;
        self.workers.send(CaptureJob::Search { processes, records }, !self.searched);
    }

    /// A search begins now for a pod that has no namespace, or lost it.
    pub(super) fn search_soon(&mut self) {
        self.processes.within(Duration::ZERO, false);
    }

    /// These pods belong to the mesh, and neither an ADD nor the API has shown where they are. One that is just starting
    /// will have an ADD in a moment; of another one the plugin may have recorded the ADD, or be about to.
    pub(super) fn set_without_netns(&mut self, uids: BTreeSet<PodUid>) {
        if !uids.is_subset(&self.unplaced) {
            self.records.within(SOON, self.unplaced.is_empty());
        }
        self.unplaced = uids;
    }

    pub(super) fn found(&mut self, state: &mut AgentState, result: Result<SearchResult, Reason>) {
        if !std::mem::take(&mut self.seeking) {
            return; // everything was settled meanwhile
        }
        // A search among records alone must not postpone the next one among processes.
        let by_processes = !self.sought.is_empty() || !self.searched;
        let finds = match result {
            Ok(finds) => finds,
            Err(error) => {
                self.search_trouble =
                    Some(format!("cannot search for the network namespaces of running pods: {error}").into());
                if by_processes {
                    self.processes.later();
                }
                return;
            }
        };
        self.searched = true;
        self.search_trouble = None;
        for uid in std::mem::take(&mut self.sought) {
            let there = finds.processes.contains_key(&uid);
            self.handle(&uid, PodEvent::Searched { there });
        }
        for (uid, found) in finds.processes {
            self.found_one(state, &uid, found);
        }
        // After the records: where a pod's processes are is newer information than its ADD.
        for (uid, recorded) in finds.records {
            self.inherit(state, &uid, recorded);
        }
        if by_processes && self.enrolled.values().any(|enrolled_pod| enrolled_pod.netns.is_none()) {
            self.processes.later();
        }
        self.unplaced.retain(|uid| !self.enrolled.contains_key(uid));
    }

    fn found_one(&mut self, state: &AgentState, uid: &PodUid, found: NetnsMatch) {
        let NetnsMatch { netns, others, captured } = found;
        if captured && !self.enrolled.contains_key(uid) {
            self.left_meanwhile(state, uid);
        }
        let Some(enrolled_pod) =
            self.enrolled.get_mut(uid).filter(|enrolled_pod| !enrolled_pod.lifecycle.is_awaited())
        else {
            return;
        };
        if others > 0 {
            debug!(target: "ambient", namespace = %enrolled_pod.name.namespace, pod = %enrolled_pod.name.name, namespaces = others + 1, "processes of the pod are in several network namespaces");
        }
        let netns = enrolled_pod.settle_in(netns);
        self.handle(uid, PodEvent::Found { netns, captured });
    }
}

/// Pods outside of the mesh that may have left it while no agent ran.
fn suspects(state: &AgentState) -> impl Iterator<Item = &Pod> {
    let out = |pod: &&Pod| match state.standing(pod) {
        AmbientStanding::Out(SkipReason::HostNetwork | SkipReason::Terminated | SkipReason::HasSidecar) => {
            false
        }
        AmbientStanding::Out(SkipReason::NamespaceUnknown) => false, // its labels may arrive later
        AmbientStanding::Out(_) => true,
        _ => false,
    };
    state.index.pods().filter(out)
}

fn sought_anew(pod: &Pod) -> (PodUid, NetnsQuery) {
    let sought = NetnsQuery { uids: pod.runtime_uids(), ips: pod.status.ips(), known: None };
    (pod.metadata.uid.clone(), sought)
}

fn sought(enrolled_pod: &EnrolledPod) -> NetnsQuery {
    NetnsQuery { uids: enrolled_pod.uids.clone(), ips: enrolled_pod.ips.clone(), known: enrolled_pod.id() }
}
