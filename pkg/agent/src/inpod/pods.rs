//! Single pods: into the mesh, and out of it.

use std::{net::IpAddr, sync::Arc, time::Instant};

use model::Pod;
use netns::Netns;
use planner::{
    ambient::{AMBIENT_REDIRECTION, Standing},
    inpod::Asked,
};
use pod_status::Redirection;
use tracing::{info, warn};

use super::{InPodCapture, enrolled_pod::EnrolledPod, worker::Job};
use crate::agent_state::AgentState;

impl InPodCapture {
    /// The enrolled_pod that a pod is, or becomes.
    pub(super) fn enrolled_pod_of(&mut self, core: &AgentState, pod: &Pod) -> &mut EnrolledPod {
        let dns = self.chosen.dns_capture;
        self.enrolled.entry(pod.metadata.uid.clone()).or_insert_with(|| {
            let asked = Asked::of(pod);
            for warning in &asked.warnings {
                let name = pod.name();
                warn!(target: "ambient", namespace = %name.namespace, pod = %name.name, error = %warning, "invalid annotation ignored");
            }
            core.metrics.event("add");
            let mut enrolled_pod = EnrolledPod::new(pod, asked.options(dns));
            enrolled_pod.marked = is_marked(pod);
            enrolled_pod.announced = annotation(pod) == Redirection::Enabled.value();
            enrolled_pod
        })
    }

    pub(super) fn pod_joined(&mut self, core: &AgentState, pod: &Pod, ips: Vec<IpAddr>) {
        let is_new = !self.enrolled.contains_key(&pod.metadata.uid);
        let dns = self.chosen.dns_capture;
        let enrolled_pod = self.enrolled_pod_of(core, pod);
        let returns = std::mem::take(&mut enrolled_pod.leaving);
        enrolled_pod.privilege = pod.network_privilege(); // a container for debugging may have come
        // The plugin knows its addresses before the API does.
        if !ips.is_empty() {
            enrolled_pod.ips = ips;
        }
        let asked = core.index.asked(&enrolled_pod.name).filter(|_| enrolled_pod.may_change());
        let chosen = asked.map(|asked| asked.options(dns)).filter(|chosen| enrolled_pod.options != *chosen);
        let differs = chosen.is_some();
        if let Some(chosen) = chosen {
            enrolled_pod.change(chosen);
            core.metrics.event("update");
        }
        if is_new {
            self.search_soon();
        } else if (differs || returns)
            && self.enrolled.get(&pod.metadata.uid).is_some_and(EnrolledPod::is_ruled)
        {
            self.capture(&pod.metadata.uid);
        }
    }

    /// A pod does not belong to the mesh, or not any more.
    pub(super) fn pod_left(&mut self, core: &AgentState, pod: &Pod, why: &str) {
        let uid = &pod.metadata.uid;
        let Some(enrolled_pod) = self.enrolled.get_mut(uid) else { return };
        if enrolled_pod.leaving {
            return;
        }
        enrolled_pod.leaving = true;
        enrolled_pod.due = Instant::now();
        enrolled_pod.answer(&Err(format!("it does not belong to the mesh: {why}")));
        // Nothing was ever made in a namespace that was not found, unless an agent before this one did.
        if enrolled_pod.netns.is_none() && !enrolled_pod.marked {
            self.forget(uid, why);
            return;
        }
        core.metrics.event("delete");
        info!(target: "ambient", namespace = %enrolled_pod.name.namespace, pod = %enrolled_pod.name.name, reason = why, "pod leaves the mesh");
    }

    /// A pod outside of the mesh has rules of ours: it left while no agent was here.
    pub(super) fn left_meanwhile(&mut self, core: &AgentState, uid: &str) {
        let pod = core.index.pods().find(|pod| pod.metadata.uid == uid);
        if let Some(pod) = pod.filter(|pod| matches!(core.standing(pod), Standing::Out(_))) {
            self.enrolled_pod_of(core, pod).leaving = true;
        }
    }

    /// Has a pod's rules put in place.
    pub(super) fn capture(&mut self, uid: &str) {
        let Some(enrolled_pod) = self.enrolled.get_mut(uid) else { return };
        let Some(netns) = enrolled_pod.netns.clone() else { return };
        if enrolled_pod.busy {
            enrolled_pod.again = true;
            return;
        }
        enrolled_pod.begin();
        let urgent = !enrolled_pod.waiting.is_empty();
        let (pod, before) = (enrolled_pod.options.clone(), enrolled_pod.seen.clone());
        self.workers.send(Job::Capture { uid: uid.to_owned(), netns, pod, before }, urgent);
    }

    /// Has a pod's rules taken away. ztunnel is told when they are gone, and not before: else its traffic would be led
    /// to nobody.
    pub(super) fn let_go(&mut self, uid: &str) {
        let Some(enrolled_pod) = self.enrolled.get_mut(uid) else { return };
        let Some(netns) = enrolled_pod.netns.clone() else { return };
        enrolled_pod.begin();
        self.workers.send(Job::Release { uid: uid.to_owned(), netns }, false);
    }

    /// A pod that has ended: its rules went with its namespace.
    pub(super) fn forget(&mut self, uid: &str, why: &str) {
        let Some(mut enrolled_pod) = self.enrolled.remove(uid) else { return };
        enrolled_pod.answer(&Err(why.to_owned()));
        self.hub.remove(uid);
        tracing::debug!(target: "ambient", namespace = %enrolled_pod.name.namespace, pod = %enrolled_pod.name.name, reason = why, "pod forgotten");
    }

    /// All pods are captured in another way from now on.
    pub(crate) fn forget_all(&mut self) {
        let uids: Vec<String> = self.enrolled.keys().cloned().collect();
        uids.iter().for_each(|uid| self.forget(uid, "it is captured in another way"));
    }

    /// An ADD that failed: what it began ends with its sandbox. The pod's rules stay, so that nothing of it gets past
    /// the mesh; should it run nevertheless, it is found, and captured, as any running pod.
    pub(super) fn abandon(&mut self, uid: &str, why: String) {
        let Some(enrolled_pod) = self.enrolled.get_mut(uid) else { return };
        warn!(target: "ambient", namespace = %enrolled_pod.name.namespace, pod = %enrolled_pod.name.name, error = why, "pod could not be enrolled");
        enrolled_pod.answer(&Err(why.clone()));
        enrolled_pod.failed(why);
        if !enrolled_pod.is_served() {
            self.hub.remove(uid);
            self.enrolled.remove(uid);
        }
    }

    /// Answers an ADD if nothing is left to wait for.
    pub(super) fn answer_served(&mut self, uid: &str) {
        if let Some(enrolled_pod) = self.enrolled.get_mut(uid)
            && enrolled_pod.is_ruled()
            && enrolled_pod.is_served()
        {
            enrolled_pod.answer(&Ok(()));
        }
    }
}

/// The namespace in which ztunnel serves a enrolled_pod, whose rules were put in place there.
pub(super) fn served_in(enrolled_pod: &EnrolledPod) -> Result<Arc<Netns>, String> {
    let (Some(netns), true) = (&enrolled_pod.netns, enrolled_pod.is_ruled()) else {
        return Err("its rules are not in place".to_owned());
    };
    if !enrolled_pod.is_served() {
        let why = enrolled_pod.refused.as_deref().unwrap_or("it has not answered");
        return Err(format!("ztunnel does not serve it: {why}"));
    }
    Ok(Arc::clone(netns))
}

fn is_marked(pod: &Pod) -> bool {
    annotation(pod).is_some_and(|value| Redirection::VALUES.contains(&value))
}

fn annotation(pod: &Pod) -> Option<&str> {
    pod.metadata.annotations.get(AMBIENT_REDIRECTION).map(String::as_str)
}
