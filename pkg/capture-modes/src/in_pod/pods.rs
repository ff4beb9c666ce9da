//! Single pods: joining the mesh, and leaving it.

use std::{net::IpAddr, time::Instant};

use enrolment::{AmbientStanding, ambient::AMBIENT_REDIRECTION, inpod::InPodAnnotations};
use model::{ContainerId, ExistingConnections, Pod, PodName, PodUid};
use netns::NetnsId;
use pod_status::{
    Redirection,
    lifecycle::{AgentTime, PodAction, PodEvent},
};
use tracing::{info, warn};

use super::{
    InPodCapture,
    enrolled_pod::{EnrolledPod, JOINED},
    netns_discovery::is_suspect,
    worker::CaptureJob,
};
use agent::AgentState;

impl InPodCapture {
    /// Returns the time for life cycles.
    pub(super) fn now(&self) -> AgentTime {
        self.started.elapsed()
    }

    /// Passes an event to a pod's life cycle, and executes the actions that follow.
    pub(super) fn handle_pod_event(&mut self, uid: &PodUid, event: PodEvent<NetnsId>) {
        let now = self.now();
        let Some(enrolled_pod) = self.enrolled.get_mut(uid) else { return };
        enrolled_pod.cause = match event {
            PodEvent::Added { .. } => "ADD",
            PodEvent::Joined { changed: true } if enrolled_pod.lifecycle.is_ruled() => "annotations changed",
            PodEvent::Opened(true) => "no ztunnel",
            PodEvent::Opened(false) => "ztunnel is back",
            PodEvent::Left(_) => JOINED,
            _ => enrolled_pod.cause,
        };
        for action in enrolled_pod.lifecycle.apply_event(event, now) {
            self.execute_action(uid, action);
        }
    }

    /// Executes an action on a pod.
    pub(super) fn execute_action(&mut self, uid: &PodUid, action: PodAction) {
        let Some(enrolled_pod) = self.enrolled.get_mut(uid) else { return };
        let PodName { namespace, name } = &enrolled_pod.name;
        match action {
            PodAction::Capture | PodAction::Observe | PodAction::Release => self.queue_job(uid, &action),
            // ztunnel is sent the pod once its rules are in place, and its removal once they have been removed:
            // earlier, its traffic would be redirected to ports where nothing listens.
            PodAction::Serve => {
                let netns = enrolled_pod.netns_id();
                self.hub.set_workload(enrolled_pod.to_workload(uid));
                // A pod that is back in an earlier namespace, which ztunnel still serves, is not acknowledged again.
                if let Some(netns) = netns.filter(|_| self.hub.is_served(uid)) {
                    self.handle_pod_event(uid, PodEvent::Accepted(netns));
                }
            }
            PodAction::Answer(result) => {
                if let Err(error) = &result {
                    warn!(target: "ambient", %namespace, pod = %name, %error, "pod could not be enrolled");
                }
                enrolled_pod.send_replies(&result);
            }
            PodAction::Moved => {
                info!(target: "ambient", %namespace, pod = %name, "pod has another network namespace; capturing it again");
                enrolled_pod.container = ContainerId::default();
                self.metrics.count_repair("namespace");
            }
            PodAction::Announce => enrolled_pod.log_transition("pod captured", None),
            PodAction::Forget(why) => self.forget_pod(uid, why.as_str()),
        }
    }

    /// Queues a worker's job in a pod's namespace.
    fn queue_job(&mut self, uid: &PodUid, action: &PodAction) {
        let Some(enrolled_pod) = self.enrolled.get_mut(uid) else { return };
        let Some(mut pod) = enrolled_pod.to_job_pod(uid) else { return };
        enrolled_pod.begun = Instant::now();
        let urgent = *action == PodAction::Capture && enrolled_pod.lifecycle.is_awaited();
        if self.takes_over {
            // A connection through the node-level ztunnel must not continue without ztunnel.
            pod.existing = ExistingConnections::Reset;
        }
        let job = match action {
            PodAction::Release => CaptureJob::Release(pod),
            PodAction::Observe => {
                enrolled_pod.examined = enrolled_pod.disturbance.take();
                CaptureJob::Verify { pod, watch: enrolled_pod.watch.is_none() }
            }
            _ => {
                enrolled_pod.disturbance = None; // it is observed first, also if that fails
                CaptureJob::Capture(pod)
            }
        };
        self.workers.send_job(job, urgent);
    }

    /// Returns the entry of a pod, which is added, and counted as `event`, if it is missing.
    pub(super) fn enrolled_pod_mut(
        &mut self,
        state: &AgentState,
        pod: &Pod,
        event: &'static str,
    ) -> &mut EnrolledPod {
        let (existing, now) = (self.chosen.existing, self.now());
        let policy = &self.chosen.pods;
        self.enrolled.entry(pod.metadata.uid.clone()).or_insert_with(|| {
            let asked = InPodAnnotations::read_from(pod);
            for warning in &asked.warnings {
                let name = pod.name();
                warn!(target: "ambient", namespace = %name.namespace, pod = %name.name, error = %warning, "invalid annotation ignored");
            }
            state.metrics.count_pod_event(event);
            let annotation = pod.metadata.annotations.get(AMBIENT_REDIRECTION).map(String::as_str);
            let options = asked.effective_options(state.index.namespace_exceptions(&pod.metadata.namespace), policy);
            EnrolledPod::new(pod, options, asked.existing.unwrap_or(existing), annotation, now)
        })
    }

    pub(super) fn pod_joined(&mut self, state: &AgentState, pod: &Pod, ips: Vec<IpAddr>) {
        let uid = &pod.metadata.uid;
        let is_new = !self.enrolled.contains_key(uid);
        let (existing, now) = (self.chosen.existing, self.now());
        let name = pod.name();
        let annotations = state.index.pod_annotations(&name);
        let inherited = state.index.namespace_exceptions(&name.namespace);
        let asked = annotations.map(|asked| asked.effective_options(inherited, &self.chosen.pods));
        let enrolled_pod = self.enrolled_pod_mut(state, pod, "add");
        enrolled_pod.quiet = state.is_flapping(uid);
        enrolled_pod.privilege = pod.network_privilege(); // an ephemeral container may have been added
        // The plugin knows its addresses before the API does.
        if !ips.is_empty() {
            enrolled_pod.ips = ips;
        }
        if let Some(asked) = annotations {
            enrolled_pod.existing = asked.existing.unwrap_or(existing);
        }
        enrolled_pod.asked = asked;
        let changed = enrolled_pod.choose_options(now);
        if changed {
            state.metrics.count_pod_event("update");
        }
        if is_new {
            self.discover_soon();
        }
        self.handle_pod_event(uid, PodEvent::Joined { changed });
    }

    /// Handles a pod that does not belong to the mesh, or no longer does.
    pub(super) fn pod_left(&mut self, state: &AgentState, pod: &Pod, why: &str) {
        let uid = &pod.metadata.uid;
        let shown = pod.metadata.annotations.get(AMBIENT_REDIRECTION);
        let is_marked = shown.is_some_and(|value| Redirection::VALUES.contains(&value.as_str()));
        // Until its namespace is found, ztunnel serves it, its probes are exempt, and it keeps its annotation.
        if is_marked && !self.discovery.is_complete && is_suspect(state, pod) {
            self.left_meanwhile(state, pod);
        }
        if self.enrolled.get(uid).is_none_or(|enrolled_pod| enrolled_pod.lifecycle.is_leaving()) {
            return;
        }
        self.handle_pod_event(uid, PodEvent::Left(why.into()));
        if let Some(enrolled_pod) = self.enrolled.get_mut(uid) {
            enrolled_pod.quiet = state.is_flapping(uid);
            state.metrics.count_pod_event("delete");
            enrolled_pod.log_transition("pod leaves the mesh", Some(why));
        }
    }

    /// Handles a pod outside of the mesh that has rules of ours, or may have some: it left while no agent ran.
    pub(super) fn left_meanwhile(&mut self, state: &AgentState, pod: &Pod) {
        let uid = &pod.metadata.uid;
        if !self.enrolled.contains_key(uid) && matches!(state.pod_standing(pod), AmbientStanding::Out(_)) {
            self.enrolled_pod_mut(state, pod, "delete");
            self.handle_pod_event(uid, PodEvent::LeftMeanwhile);
        }
    }

    /// Forgets a pod that has ended: its rules were removed with its namespace.
    pub(super) fn forget_pod(&mut self, uid: &PodUid, why: &str) {
        let Some(mut enrolled_pod) = self.enrolled.remove(uid) else { return };
        enrolled_pod.send_replies(&Err(why.into()));
        self.hub.remove_workload(uid);
        tracing::debug!(target: "ambient", namespace = %enrolled_pod.name.namespace, pod = %enrolled_pod.name.name, reason = why, "pod forgotten");
    }

    /// Forgets all pods, because the other mode captures them from now on.
    pub(crate) fn forget_all(&mut self) {
        let uids: Vec<PodUid> = self.enrolled.keys().cloned().collect();
        uids.iter().for_each(|uid| self.forget_pod(uid, "it is captured in the other mode"));
        self.exemption.suspend(Instant::now());
    }
}
