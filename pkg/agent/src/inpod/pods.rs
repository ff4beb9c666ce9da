//! Single pods: into the mesh, and out of it.

use std::{net::IpAddr, sync::Arc, time::Instant};

use model::Pod;
use netns::Netns;
use planner::{
    ambient::{AMBIENT_REDIRECTION, Standing},
    inpod::Asked,
};
use tracing::{info, warn};

use super::{InPodWay, captive::Captive, worker::Job};
use crate::{core::Core, settings::Redirection};

impl InPodWay {
    /// The captive that a pod is, or becomes.
    pub(super) fn captive_of(&mut self, core: &Core, pod: &Pod) -> &mut Captive {
        let dns = self.chosen.dns_capture;
        self.captives.entry(pod.metadata.uid.clone()).or_insert_with(|| {
            let asked = Asked::of(pod);
            for warning in &asked.warnings {
                warn!(target: "ambient", "{}: {warning}; it counts as absent", pod.name());
            }
            core.metrics.event("add");
            let mut captive = Captive::new(pod, asked.options(dns));
            captive.marked = is_marked(pod);
            captive.announced = annotation(pod) == Redirection::Enabled.value();
            captive
        })
    }

    pub(super) fn is_member(&mut self, core: &Core, pod: &Pod, ips: Vec<IpAddr>) {
        let is_new = !self.captives.contains_key(&pod.metadata.uid);
        let dns = self.chosen.dns_capture;
        let captive = self.captive_of(core, pod);
        let returns = std::mem::take(&mut captive.leaving);
        captive.privilege = pod.network_privilege(); // a container for debugging may have come
        // The plugin knows its addresses before the API does.
        if !ips.is_empty() {
            captive.ips = ips;
        }
        let asked = core.index.asked(&captive.name).filter(|_| captive.may_change());
        let chosen = asked.map(|asked| asked.options(dns)).filter(|chosen| captive.options != *chosen);
        let differs = chosen.is_some();
        if let Some(chosen) = chosen {
            captive.change(chosen);
            core.metrics.event("update");
        }
        if is_new {
            self.search_soon();
        } else if (differs || returns) && self.captives.get(&pod.metadata.uid).is_some_and(Captive::is_ruled)
        {
            self.capture(&pod.metadata.uid);
        }
    }

    /// A pod does not belong to the mesh, or not any more.
    pub(super) fn is_out(&mut self, core: &Core, pod: &Pod, why: &str) {
        let uid = &pod.metadata.uid;
        let Some(captive) = self.captives.get_mut(uid) else { return };
        if captive.leaving {
            return;
        }
        captive.leaving = true;
        captive.due = Instant::now();
        captive.answer(&Err(format!("it does not belong to the mesh: {why}")));
        // Nothing was ever made in a namespace that was not found, unless an agent before this one did.
        if captive.netns.is_none() && !captive.marked {
            self.forget(uid, why);
            return;
        }
        core.metrics.event("delete");
        info!(target: "ambient", "{} leaves the mesh: {why}", captive.name);
    }

    /// A pod outside of the mesh has rules of ours: it left while no agent was here.
    pub(super) fn left_meanwhile(&mut self, core: &Core, uid: &str) {
        let pod = core.index.pods().find(|pod| pod.metadata.uid == uid);
        if let Some(pod) = pod.filter(|pod| matches!(core.standing(pod), Standing::Out(_))) {
            self.captive_of(core, pod).leaving = true;
        }
    }

    /// Has a pod's rules put in place.
    pub(super) fn capture(&mut self, uid: &str) {
        let Some(captive) = self.captives.get_mut(uid) else { return };
        let Some(netns) = captive.netns.clone() else { return };
        if captive.busy {
            captive.again = true;
            return;
        }
        captive.begin();
        let urgent = !captive.waiting.is_empty();
        let (pod, before) = (captive.options.clone(), captive.seen.clone());
        self.workers.send(Job::Capture { uid: uid.to_owned(), netns, pod, before }, urgent);
    }

    /// Has a pod's rules taken away. ztunnel is told when they are gone, and not before: else its traffic would be led
    /// to nobody.
    pub(super) fn let_go(&mut self, uid: &str) {
        let Some(captive) = self.captives.get_mut(uid) else { return };
        let Some(netns) = captive.netns.clone() else { return };
        captive.begin();
        self.workers.send(Job::Release { uid: uid.to_owned(), netns }, false);
    }

    /// A pod that has ended: its rules went with its namespace.
    pub(super) fn forget(&mut self, uid: &str, why: &str) {
        let Some(mut captive) = self.captives.remove(uid) else { return };
        captive.answer(&Err(why.to_owned()));
        self.hub.remove(uid);
        tracing::debug!(target: "ambient", "{}: {why}", captive.name);
    }

    /// All pods are captured in another way from now on.
    pub(crate) fn forget_all(&mut self) {
        let uids: Vec<String> = self.captives.keys().cloned().collect();
        uids.iter().for_each(|uid| self.forget(uid, "it is captured in another way"));
    }

    /// An ADD that failed: what it began ends with its sandbox. The pod's rules stay, so that nothing of it gets past
    /// the mesh; should it run nevertheless, it is found, and captured, as any running pod.
    pub(super) fn abandon(&mut self, uid: &str, why: String) {
        let Some(captive) = self.captives.get_mut(uid) else { return };
        warn!(target: "ambient", "{} could not be enrolled: {why}", captive.name);
        captive.answer(&Err(why.clone()));
        captive.failed(why);
        if !captive.is_served() {
            self.hub.remove(uid);
            self.captives.remove(uid);
        }
    }

    /// Answers an ADD if nothing is left to wait for.
    pub(super) fn answer_served(&mut self, uid: &str) {
        if let Some(captive) = self.captives.get_mut(uid)
            && captive.is_ruled()
            && captive.is_served()
        {
            captive.answer(&Ok(()));
        }
    }
}

/// The namespace in which ztunnel serves a captive, whose rules were put in place there.
pub(super) fn served_in(captive: &Captive) -> Result<Arc<Netns>, String> {
    let (Some(netns), true) = (&captive.netns, captive.is_ruled()) else {
        return Err("its rules are not in place".to_owned());
    };
    if !captive.is_served() {
        let why = captive.refused.as_deref().unwrap_or("it has not answered");
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
