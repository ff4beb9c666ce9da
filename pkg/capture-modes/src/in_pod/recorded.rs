//! Pods that were added while an earlier agent ran, from the plugin's records of their ADDs.

use agent::{AgentState, PodAttachment};
use enrolment::{AmbientStanding, SkipReason};
use model::PodUid;
use pod_status::lifecycle::PodEvent;
use tracing::info;

use super::{InPodCapture, enrolled_pod::EnrolledPod, pod_records::RecordedPod};

impl InPodCapture {
    /// Treats an ADD that an earlier agent handled as if this one had. Returns true if the pod's namespace is known
    /// from the record.
    pub(super) fn inherit_pod(
        &mut self,
        state: &mut AgentState,
        uid: &PodUid,
        recorded: RecordedPod,
    ) -> bool {
        let RecordedPod { found, ips, container, network, file } = recorded;
        // At a DEL the plugin removes the record before it notifies the agent. So either the DEL is still to arrive, or
        // the record does not exist any longer.
        if !file.exists() || self.belongs_to_another(uid, found.netns.id()) {
            return false;
        }
        let is_placed =
            |enrolled_pod: &EnrolledPod| enrolled_pod.netns.is_some() || enrolled_pod.lifecycle.is_awaited();
        if self.enrolled.get(uid).is_some_and(is_placed) {
            return false;
        }
        let Some(pod) = state.index.pods().find(|pod| pod.metadata.uid == *uid) else { return false };
        let (standing, pod) = (state.pod_standing(pod), pod.clone());
        let attachment = PodAttachment { uid: uid.clone(), ips, network };
        let addresses = state.ledger.record_inherited(&container, attachment);
        match standing {
            AmbientStanding::Out(SkipReason::NamespaceUnknown | SkipReason::Terminated) => return false,
            AmbientStanding::Out(_) if self.enrolled.contains_key(uid) => {}
            AmbientStanding::Out(_) if found.captured => self.left_meanwhile(state, &pod),
            AmbientStanding::Out(_) => return false,
            // Other pods have its addresses by now, or it has another container.
            AmbientStanding::Pending(_) if addresses.is_empty() => return false,
            AmbientStanding::Member { .. } | AmbientStanding::Pending(_) => {
                self.enrolled_pod_mut(state, &pod, "add");
            }
        }
        let Some(enrolled_pod) = self.enrolled.get_mut(uid) else { return false };
        if enrolled_pod.ips.is_empty() {
            enrolled_pod.ips = addresses;
        }
        enrolled_pod.container = container;
        let netns = enrolled_pod.set_netns(found.netns, found.witness);
        info!(target: "ambient", namespace = %enrolled_pod.name.namespace, pod = %enrolled_pod.name.name, "network namespace known from the record of the pod's ADD");
        self.handle_pod_event(uid, PodEvent::Found { netns, captured: found.captured });
        true
    }
}
