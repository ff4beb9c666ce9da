//! What workers and ztunnels say.

use std::time::{Duration, Instant, SystemTime};

use inpod::Report;
use netns::NetnsId;
use tracing::{debug, info, warn};
use zds::Event;

use super::{
    InPodCapture,
    enrolled_pod::{EnrolledPod, RulesState},
    worker::{Done, Look},
};
use crate::{
    agent_state::AgentState,
    history::{Entry, summary},
    reconciler::Scope,
};

impl InPodCapture {
    pub(super) fn take(&mut self, core: &mut AgentState, done: Done) {
        if !self.is_nothing_new(&done) {
            core.mark_dirty(Scope::Membership);
        }
        self.tell_notices(core, &done);
        match done {
            Done::Captured { uid, netns, result } => {
                self.note_captured(core, &uid, &result);
                self.captured(&uid, netns, result);
            }
            Done::Looked { uid, netns, result } => {
                self.note_looked(core, &uid, &result);
                self.looked(&uid, netns, result);
                self.tell_bypasses(core);
            }
            Done::Released { uid, result } => {
                let done = result.as_ref().map(|_| ()).map_err(String::as_str);
                self.note(core, &uid, "left the mesh", "its rules were removed", done);
                self.released(&uid, result);
            }
            Done::Searched(result) => self.found(core, result),
            Done::Exempted { took, result } => self.exempted(core, took, result),
            Done::Zds(Event::Connections { connected, synced, unknown }) => {
                if connected != self.connections {
                    let what = format!("connections of ztunnel: {connected}, before: {}", self.connections);
                    note_ztunnel(core, None, &what, Ok(()));
                }
                core.status.changed();
                core.notices.unknown_ztunnels(unknown, Instant::now());
                self.metrics.unknown_ztunnels(unknown);
                self.connected(connected, synced);
            }
            Done::Zds(Event::Accepted { uid, netns }) => {
                self.note_said(core, &uid, "ztunnel serves the pod", Ok(()));
                self.accepted(&uid, netns);
            }
            Done::Zds(Event::Refused { uid, netns, error }) => {
                let is_new =
                    self.enrolled.get(&uid).is_some_and(|enrolled_pod| enrolled_pod.refused.is_none());
                if is_new {
                    self.note_said(core, &uid, "it was told of the pod", Err(&error));
                }
                self.refused(&uid, netns, &error);
            }
        }
    }

    fn note_captured(&self, core: &mut AgentState, uid: &str, result: &Result<Report, String>) {
        let is_awaited = self.enrolled.get(uid).is_some_and(|enrolled_pod| !enrolled_pod.waiting.is_empty());
        let cause = if is_awaited { "ADD" } else { "joined the mesh" };
        match result {
            Ok(report) if report.differences.is_empty() => {}
            Ok(report) => {
                let what = format!("put in place: {}", summary(&report.differences));
                self.note(core, uid, cause, &what, Ok(()));
            }
            Err(why) => self.note(core, uid, cause, "its rules were to be put in place", Err(why)),
        }
    }

    fn note_looked(&self, core: &mut AgentState, uid: &str, result: &Result<Look, String>) {
        match result {
            Ok(look) if look.repaired.is_empty() => {}
            Ok(look) => {
                let what = format!("put back: {}", summary(&look.repaired));
                self.note(core, uid, "drift", &what, Ok(()));
            }
            Err(why) => self.note(core, uid, "drift", "its rules were looked at", Err(why)),
        }
    }

    /// Remembers work on a pod, which ends now.
    fn note(&self, core: &mut AgentState, uid: &str, cause: &str, what: &str, done: Result<(), &str>) {
        if let Some(enrolled_pod) = self.enrolled.get(uid) {
            let (pod, took) = (Some(enrolled_pod.name.to_string()), enrolled_pod.begun.elapsed());
            core.history.note(Entry {
                cause: cause.to_owned(),
                what: what.to_owned(),
                pod,
                took,
                error: done.err(),
            });
        }
    }

    /// Remembers what ztunnel said; how long that took it nobody knows.
    fn note_said(&self, core: &mut AgentState, uid: &str, what: &str, done: Result<(), &str>) {
        if let Some(enrolled_pod) = self.enrolled.get(uid) {
            note_ztunnel(core, Some(enrolled_pod.name.to_string()), what, done);
        }
    }

    /// Most looks show what was seen before; and with the rules of a pod that an ADD waits for, ztunnel comes next, whose
    /// answer is not to wait for a turn.
    fn is_nothing_new(&self, done: &Done) -> bool {
        let of = |uid: &String, holds: fn(&EnrolledPod) -> bool| self.enrolled.get(uid).is_some_and(holds);
        match done {
            Done::Looked { uid, result: Ok(look), .. } => {
                look.repaired.is_empty() && of(uid, |enrolled_pod| enrolled_pod.rules == RulesState::Verified)
            }
            Done::Captured { uid, result: Ok(_), .. } => {
                of(uid, |enrolled_pod| !enrolled_pod.waiting.is_empty())
            }
            Done::Exempted { .. } => true, // a turn follows if it is
            _ => false,
        }
    }

    fn tell_notices(&self, core: &mut AgentState, done: &Done) {
        match done {
            Done::Looked { uid, result: Ok(look), .. } if !look.repaired.is_empty() => {
                if let Some(enrolled_pod) =
                    self.enrolled.get(uid).filter(|enrolled_pod| !enrolled_pod.leaving)
                {
                    core.notices
                        .repaired(&format!("traffic of {} to ztunnel", enrolled_pod.name), &look.repaired);
                }
            }
            Done::Zds(Event::Connections { connected, .. }) => {
                let meanwhile = "new connections of captured pods fail until one is there";
                core.notices.ztunnel(*connected > 0, meanwhile, Instant::now());
            }
            _ => {}
        }
    }

    fn connected(&mut self, number: usize, synced: usize) {
        if number == 0 && self.connections > 0 {
            self.disconnected = Some(Instant::now());
            warn!(target: "ambient", effect = "new connections of captured pods fail", "no ztunnel is connected");
        }
        (self.connections, self.synced) = (number, synced);
        self.metrics.ztunnels(number, synced);
    }

    fn captured(&mut self, uid: &str, netns: NetnsId, result: Result<Report, String>) {
        let Some(enrolled_pod) = self.enrolled.get_mut(uid) else { return };
        enrolled_pod.busy = false;
        let again = std::mem::take(&mut enrolled_pod.again);
        if enrolled_pod.leaving {
            return; // the next turn takes away what was made
        }
        if again || enrolled_pod.id() != Some(netns) {
            self.capture(uid);
            return;
        }
        self.metrics.step("capture pod", result.is_ok());
        match result {
            Ok(report) => {
                if let Some(warning) = report.warning {
                    debug!(target: "ambient", namespace = %enrolled_pod.name.namespace, pod = %enrolled_pod.name.name, warning, "capturing without private mounts");
                }
                if !report.differences.is_empty() {
                    enrolled_pod.seen = Some(report.seen);
                    enrolled_pod.rules = RulesState::Applied;
                }
                enrolled_pod.rules = enrolled_pod.rules.max(RulesState::Applied);
                enrolled_pod.succeeded();
                let workload = enrolled_pod.workload(uid);
                self.hub.put(workload);
                self.answer_served(uid);
            }
            Err(why) => {
                if enrolled_pod.trouble.as_ref() != Some(&why) {
                    warn!(target: "ambient", namespace = %enrolled_pod.name.namespace, pod = %enrolled_pod.name.name, error = why, "pod cannot be captured");
                }
                enrolled_pod.failed(why.clone());
                if !enrolled_pod.waiting.is_empty() {
                    self.abandon(uid, why);
                }
            }
        }
    }

    fn looked(&mut self, uid: &str, netns: NetnsId, result: Result<Look, String>) {
        let Some(enrolled_pod) = self.enrolled.get_mut(uid) else { return };
        enrolled_pod.busy = false;
        let again = std::mem::take(&mut enrolled_pod.again);
        if enrolled_pod.leaving {
            return;
        }
        if again || enrolled_pod.id() != Some(netns) {
            self.capture(uid);
            return;
        }
        match result {
            Ok(Look { glance, repaired }) => {
                if !repaired.is_empty() {
                    warn!(target: "ambient", namespace = %enrolled_pod.name.namespace, pod = %enrolled_pod.name.name, rules = repaired.join("; "), "rules of the pod restored");
                    self.metrics.repaired("pod");
                }
                enrolled_pod.seen = Some(glance);
                enrolled_pod.looked = Some(SystemTime::now());
                enrolled_pod.seen_well();
                enrolled_pod.say();
            }
            Err(why) => {
                if enrolled_pod.trouble.as_ref() != Some(&why) {
                    warn!(target: "ambient", namespace = %enrolled_pod.name.namespace, pod = %enrolled_pod.name.name, error = why, "rules of the pod cannot be verified");
                }
                enrolled_pod.doubted(why);
            }
        }
    }

    fn released(&mut self, uid: &str, result: Result<Vec<String>, String>) {
        let Some(enrolled_pod) = self.enrolled.get_mut(uid) else { return };
        enrolled_pod.busy = false;
        enrolled_pod.again = false;
        self.metrics.step("release pod", result.is_ok());
        match result {
            Ok(_) if !enrolled_pod.leaving => {
                // It came back meanwhile.
                enrolled_pod.rules = RulesState::Absent;
                self.capture(uid);
            }
            Ok(taken) => {
                info!(target: "ambient", namespace = %enrolled_pod.name.namespace, pod = %enrolled_pod.name.name, "pod released");
                debug!(target: "ambient", namespace = %enrolled_pod.name.namespace, pod = %enrolled_pod.name.name, rules = taken.join("; "), "rules removed");
                self.forget(uid, "it has left the mesh");
            }
            Err(why) => {
                warn!(target: "ambient", namespace = %enrolled_pod.name.namespace, pod = %enrolled_pod.name.name, error = why, "rules of the pod cannot be removed");
                enrolled_pod.failed(why);
            }
        }
    }

    fn accepted(&mut self, uid: &str, netns: NetnsId) {
        let Some(enrolled_pod) = self.enrolled.get_mut(uid) else { return };
        enrolled_pod.served = Some(netns);
        enrolled_pod.announced = false;
        if enrolled_pod.is_served() {
            enrolled_pod.refused = None;
            enrolled_pod.say();
            self.answer_served(uid);
        }
    }

    fn refused(&mut self, uid: &str, netns: NetnsId, error: &str) {
        let Some(enrolled_pod) =
            self.enrolled.get_mut(uid).filter(|enrolled_pod| enrolled_pod.id() == Some(netns))
        else {
            return;
        };
        let why = format!("ztunnel refused it: {error}");
        enrolled_pod.served = None;
        enrolled_pod.announced = false;
        if enrolled_pod.refused.as_ref() != Some(&why) {
            warn!(target: "ambient", namespace = %enrolled_pod.name.namespace, pod = %enrolled_pod.name.name, error, "ztunnel refused the pod");
        }
        enrolled_pod.refused = Some(why.clone());
        if !enrolled_pod.waiting.is_empty() {
            self.abandon(uid, why);
        }
    }
}

fn note_ztunnel(core: &mut AgentState, pod: Option<String>, what: &str, done: Result<(), &str>) {
    let (cause, what) = ("ztunnel".to_owned(), what.to_owned());
    core.history.note(Entry { cause, what, pod, took: Duration::ZERO, error: done.err() });
}
