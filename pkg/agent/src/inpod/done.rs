//! What workers and ztunnels say.

use std::time::{Duration, Instant};

use inpod::Report;
use netns::NetnsId;
use tracing::{debug, info, warn};
use zds::Event;

use super::{
    InPodWay,
    captive::{Captive, Step},
    worker::{Done, Look},
};
use crate::{
    core::Core,
    history::{Entry, summary},
    owner::Level,
};

impl InPodWay {
    pub(super) fn take(&mut self, core: &mut Core, done: Done) {
        if !self.is_nothing_new(&done) {
            core.is_dirty(Level::Members);
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
                let is_new = self.captives.get(&uid).is_some_and(|captive| captive.refused.is_none());
                if is_new {
                    self.note_said(core, &uid, "it was told of the pod", Err(&error));
                }
                self.refused(&uid, netns, &error);
            }
        }
    }

    fn note_captured(&self, core: &mut Core, uid: &str, result: &Result<Report, String>) {
        let is_awaited = self.captives.get(uid).is_some_and(|captive| !captive.waiting.is_empty());
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

    fn note_looked(&self, core: &mut Core, uid: &str, result: &Result<Look, String>) {
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
    fn note(&self, core: &mut Core, uid: &str, cause: &str, what: &str, done: Result<(), &str>) {
        if let Some(captive) = self.captives.get(uid) {
            let (pod, took) = (Some(captive.name.to_string()), captive.begun.elapsed());
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
    fn note_said(&self, core: &mut Core, uid: &str, what: &str, done: Result<(), &str>) {
        if let Some(captive) = self.captives.get(uid) {
            note_ztunnel(core, Some(captive.name.to_string()), what, done);
        }
    }

    /// Most looks show what was seen before; and with the rules of a pod that an ADD waits for, ztunnel comes next, whose
    /// answer is not to wait for a turn.
    fn is_nothing_new(&self, done: &Done) -> bool {
        let of = |uid: &String, holds: fn(&Captive) -> bool| self.captives.get(uid).is_some_and(holds);
        match done {
            Done::Looked { uid, result: Ok(look), .. } => {
                look.repaired.is_empty() && of(uid, |captive| captive.step == Step::Verified)
            }
            Done::Captured { uid, result: Ok(_), .. } => of(uid, |captive| !captive.waiting.is_empty()),
            Done::Exempted { .. } => true, // a turn follows if it is
            _ => false,
        }
    }

    fn tell_notices(&self, core: &mut Core, done: &Done) {
        match done {
            Done::Looked { uid, result: Ok(look), .. } if !look.repaired.is_empty() => {
                if let Some(captive) = self.captives.get(uid).filter(|captive| !captive.leaving) {
                    core.notices.repaired(&format!("traffic of {} to ztunnel", captive.name), &look.repaired);
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
            warn!(target: "ambient", "no ztunnel is connected: new connections of captured pods fail until one is");
        }
        (self.connections, self.synced) = (number, synced);
        self.metrics.ztunnels(number, synced);
    }

    fn captured(&mut self, uid: &str, netns: NetnsId, result: Result<Report, String>) {
        let Some(captive) = self.captives.get_mut(uid) else { return };
        captive.busy = false;
        let again = std::mem::take(&mut captive.again);
        if captive.leaving {
            return; // the next turn takes away what was made
        }
        if again || captive.id() != Some(netns) {
            self.capture(uid);
            return;
        }
        self.metrics.step("capture pod", result.is_ok());
        match result {
            Ok(report) => {
                if let Some(warning) = report.warning {
                    debug!(target: "ambient", "{}: {warning}", captive.name);
                }
                if !report.differences.is_empty() {
                    captive.seen = Some(report.seen);
                    captive.step = Step::Ruled;
                }
                captive.step = captive.step.max(Step::Ruled);
                captive.succeeded();
                let workload = captive.workload(uid);
                self.hub.put(workload);
                self.answer_served(uid);
            }
            Err(why) => {
                if captive.trouble.as_ref() != Some(&why) {
                    warn!(target: "ambient", "{} cannot be captured: {why}", captive.name);
                }
                captive.failed(why.clone());
                if !captive.waiting.is_empty() {
                    self.abandon(uid, why);
                }
            }
        }
    }

    fn looked(&mut self, uid: &str, netns: NetnsId, result: Result<Look, String>) {
        let Some(captive) = self.captives.get_mut(uid) else { return };
        captive.busy = false;
        let again = std::mem::take(&mut captive.again);
        if captive.leaving {
            return;
        }
        if again || captive.id() != Some(netns) {
            self.capture(uid);
            return;
        }
        match result {
            Ok(Look { glance, repaired }) => {
                if !repaired.is_empty() {
                    warn!(target: "ambient", "{}: rules were put back: {}", captive.name, repaired.join("; "));
                    self.metrics.repaired("pod");
                }
                captive.seen = Some(glance);
                captive.looked = Some(Instant::now());
                captive.seen_well();
                captive.say();
            }
            Err(why) => {
                if captive.trouble.as_ref() != Some(&why) {
                    warn!(target: "ambient", "{}: its rules cannot be kept: {why}", captive.name);
                }
                captive.doubted(why);
            }
        }
    }

    fn released(&mut self, uid: &str, result: Result<Vec<String>, String>) {
        let Some(captive) = self.captives.get_mut(uid) else { return };
        captive.busy = false;
        captive.again = false;
        self.metrics.step("release pod", result.is_ok());
        match result {
            Ok(_) if !captive.leaving => {
                // It came back meanwhile.
                captive.step = Step::Bare;
                self.capture(uid);
            }
            Ok(taken) => {
                info!(target: "ambient", "{} is not captured any more", captive.name);
                debug!(target: "ambient", "{}: removed {}", captive.name, taken.join("; "));
                self.forget(uid, "it has left the mesh");
            }
            Err(why) => {
                warn!(target: "ambient", "{}: its rules cannot be removed: {why}", captive.name);
                captive.failed(why);
            }
        }
    }

    fn accepted(&mut self, uid: &str, netns: NetnsId) {
        let Some(captive) = self.captives.get_mut(uid) else { return };
        captive.served = Some(netns);
        captive.announced = false;
        if captive.is_served() {
            captive.refused = None;
            captive.say();
            self.answer_served(uid);
        }
    }

    fn refused(&mut self, uid: &str, netns: NetnsId, error: &str) {
        let Some(captive) = self.captives.get_mut(uid).filter(|captive| captive.id() == Some(netns)) else {
            return;
        };
        let why = format!("ztunnel refused it: {error}");
        captive.served = None;
        captive.announced = false;
        if captive.refused.as_ref() != Some(&why) {
            warn!(target: "ambient", "{}: {why}", captive.name);
        }
        captive.refused = Some(why.clone());
        if !captive.waiting.is_empty() {
            self.abandon(uid, why);
        }
    }
}

fn note_ztunnel(core: &mut Core, pod: Option<String>, what: &str, done: Result<(), &str>) {
    let (cause, what) = ("ztunnel".to_owned(), what.to_owned());
    core.history.note(Entry { cause, what, pod, took: Duration::ZERO, error: done.err() });
}
