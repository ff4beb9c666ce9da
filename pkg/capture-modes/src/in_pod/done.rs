//! Handling of results from workers and ztunnels.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use model::{NOTICE_INTERVAL, PodName, PodUid, Reason};
use netns::NetnsId;
use netns_changes::{Change, NetnsDisturbance, NetnsWatch};
use pod_capture::{CaptureReport, ConnectionsReport, PodRulesSnapshot};
use pod_status::lifecycle::{PodAction, PodEvent, UNDONE, writer_clause};
use tracing::{debug, info, warn};
use zds::ZdsEvent;

use super::{
    InPodCapture,
    enrolled_pod::{EnrolledPod, JOINED},
    worker::{JobResult, RulesCheck},
};
use agent::{AgentState, HistoryEntry, ReconcileScope, join_reasons, summarize_steps};

impl InPodCapture {
    pub(super) fn handle_result(&mut self, state: &mut AgentState, done: JobResult) {
        if !self.is_nothing_new(&done) {
            match done.pod_uid() {
                Some(uid) => state.mark_pod(uid, &[]),
                None => state.mark_dirty(ReconcileScope::Membership),
            }
        }
        match done {
            JobResult::Captured { uid, netns, result } => {
                self.note_captured(state, &uid, &result);
                self.finish_capture(&uid, netns, result);
                self.observe_again(&uid, netns);
            }
            JobResult::Verified { uid, netns, watch, result } => {
                self.keep_watch(&uid, netns, watch);
                self.note_verified(state, &uid, &result);
                if self.finish_observation(state, &uid, netns, result) {
                    self.report_bypasses(state, None);
                    state.mark_pod(&uid, &[]); // its capture state may have changed
                }
                self.observe_again(&uid, netns);
            }
            JobResult::Changed(change) => self.netns_changed(change),
            JobResult::NodeChanged(change) => {
                self.exemption.drift.record_notice(change, Instant::now());
                self.examine_node(state);
                self.due = self.next_due();
            }
            JobResult::ObservedEach(pods) => {
                for (uid, netns, in_place) in pods {
                    self.finish_routine_observation(state, uid, netns, in_place);
                }
            }
            JobResult::Released { uid, netns, result } => {
                let done = result.as_ref().map(|_| ()).map_err(Reason::as_str);
                self.record_pod_change(state, &uid, "left the mesh", "its rules were removed", done);
                self.finish_release(&uid, netns, result);
            }
            JobResult::NetnsDiscovered(result) => self.finish_discovery(state, result),
            JobResult::Exempted { .. } if !self.exemption.busy => {} // from before the capture mode changed
            JobResult::Exempted { took, result } => {
                self.finish_exemption(state, took, result);
                self.examine_node(state); // changes that were noticed meanwhile
                self.due = self.next_due();
            }
            JobResult::Zds(ZdsEvent::Connections { connected, synced, unknown }) => {
                if connected != self.presence.connections {
                    let what = format!("ztunnel connections: {} → {connected}", self.presence.connections);
                    note_ztunnel(state, None, &what, Ok(()));
                }
                state.status.record_change();
                let meanwhile = "new connections of captured pods fail until one is there";
                state.notices.observe_ztunnel(connected > 0, meanwhile, Instant::now());
                state.notices.unknown_ztunnels(unknown, Instant::now());
                self.presence.set_connections(connected, synced);
                self.metrics.set_ztunnels(connected, synced, unknown);
            }
            JobResult::Zds(ZdsEvent::Accepted { uid, netns }) => {
                self.note_answer(state, &uid, "ztunnel serves the pod", Ok(()));
                self.handle_pod_event(&uid, PodEvent::Accepted(netns));
            }
            JobResult::Zds(ZdsEvent::Refused { uid, netns, error }) => {
                // Requests to ztunnel are repeated, and each is refused again: the history records only the first
                // refusal.
                let is_new = self
                    .enrolled
                    .get(&uid)
                    .is_some_and(|enrolled_pod| enrolled_pod.lifecycle.refusal_reason().is_none());
                if is_new {
                    self.note_answer(state, &uid, "send to ztunnel", Err(&error));
                }
                self.record_refusal(&uid, netns, &error);
            }
        }
    }

    /// Keeps the watch on the pod's namespace, from which changes are reported, unless the pod has another namespace by
    /// now.
    fn keep_watch(&mut self, uid: &PodUid, netns: NetnsId, watch: Option<NetnsWatch<PodUid>>) {
        let Some(enrolled_pod) = self.enrolled.get_mut(uid) else { return };
        if let Some(watch) = watch
            && enrolled_pod.netns_id() == Some(netns)
            && !enrolled_pod.lifecycle.is_leaving()
        {
            enrolled_pod.watch = Some(watch);
        }
    }

    fn netns_changed(&mut self, change: Change<PodUid>) {
        let uid = change.key.clone();
        let Some(enrolled_pod) = self.enrolled.get_mut(&uid) else { return };
        if let (true, Some(netns)) = (enrolled_pod.record_disturbance(change), enrolled_pod.netns_id()) {
            self.observe_again(&uid, netns);
        }
    }

    /// Queues an observation of a pod's rules if its namespace changed and no job is running there. Does not rely on a
    /// pass, because errors of the node may delay passes.
    fn observe_again(&mut self, uid: &PodUid, netns: NetnsId) {
        let Some(enrolled_pod) = self.enrolled.get(uid) else { return };
        if enrolled_pod.disturbance.is_some() && !enrolled_pod.lifecycle.is_busy() {
            self.handle_pod_event(uid, PodEvent::Changed(netns));
            self.due = self.next_due();
        }
    }

    fn note_captured(&self, state: &mut AgentState, uid: &PodUid, result: &Result<CaptureReport, Reason>) {
        let Some(enrolled_pod) = self.enrolled.get(uid) else { return };
        let cause = match enrolled_pod.cause {
            _ if enrolled_pod.lifecycle.has_lost_rules() => "drift",
            JOINED if enrolled_pod.lifecycle.is_inherited() => "agent start",
            cause => cause,
        };
        match result {
            Ok(report) if report.differences.is_empty() => {}
            Ok(report) => {
                let mut what = format!("applied: {}", summarize_steps(&report.differences));
                if let Some(connections) = &report.connections {
                    what.push_str(&format!("; {connections}"));
                }
                self.record_pod_change(state, uid, cause, &what, Ok(()));
            }
            Err(why) => self.record_pod_change(state, uid, cause, "apply rules", Err(why.as_str())),
        }
    }

    fn note_verified(&self, state: &mut AgentState, uid: &PodUid, result: &Result<RulesCheck, Reason>) {
        match result {
            Ok(check) if check.repaired.is_empty() => {}
            Ok(check) => {
                let examined = self.enrolled.get(uid).and_then(|pod| pod.examined.as_ref());
                let clause = writer_clause(examined.and_then(NetnsDisturbance::writer_name).as_deref());
                let what = format!("restored: {}{clause}", summarize_steps(&check.repaired));
                let lasted = if check.observed.is_complete() { Ok(()) } else { Err(UNDONE) };
                self.record_pod_change(state, uid, "drift", &what, lasted);
            }
            Err(why) => self.record_pod_change(state, uid, "drift", "verify rules", Err(why.as_str())),
        }
    }

    /// Records a change of a pod that has just ended.
    fn record_pod_change(
        &self,
        state: &mut AgentState,
        uid: &PodUid,
        cause: &str,
        what: &str,
        done: Result<(), &str>,
    ) {
        if let Some(enrolled_pod) = self.enrolled.get(uid) {
            // For drift: the time since it was noticed.
            let began = enrolled_pod.examined.as_ref().map_or(enrolled_pod.begun, |drift| drift.noticed);
            let (pod, took) = (Some(enrolled_pod.name.to_string()), began.elapsed());
            let (cause, what, error) = (cause.to_owned(), what.to_owned(), done.err().map(str::to_owned));
            state.history.record_change(HistoryEntry { cause, what, pod, took, error });
        }
    }

    /// Records an answer of ztunnel; its duration is unknown.
    fn note_answer(&self, state: &mut AgentState, uid: &PodUid, what: &str, done: Result<(), &str>) {
        if let Some(enrolled_pod) = self.enrolled.get(uid) {
            note_ztunnel(state, Some(enrolled_pod.name.to_string()), what, done);
        }
    }

    /// Returns whether a result needs no pass: most verifications find no change, and once the rules of a pod that an
    /// ADD waits for are in place, ztunnel's answer must not wait for a pass.
    fn is_nothing_new(&self, done: &JobResult) -> bool {
        let of = |uid: &PodUid, holds: fn(&EnrolledPod) -> bool| self.enrolled.get(uid).is_some_and(holds);
        match done {
            JobResult::Verified { uid, result: Ok(check), .. } => {
                let is_unchanged = check.repaired.is_empty() && check.observed.is_complete();
                is_unchanged && of(uid, EnrolledPod::stays_verified)
            }
            JobResult::Captured { uid, result: Ok(_), .. } => of(uid, |pod| pod.lifecycle.is_awaited()),
            JobResult::Exempted { .. } => true, // a pass follows if one is needed
            JobResult::ObservedEach(_) => true, // each pod's result is handled separately
            JobResult::Changed(_) | JobResult::NodeChanged(_) => true, // an observation follows
            _ => false,
        }
    }

    fn finish_capture(&mut self, uid: &PodUid, netns: NetnsId, result: Result<CaptureReport, Reason>) {
        let Some(enrolled_pod) = self.enrolled.get_mut(uid) else { return };
        self.metrics.count_operation("capture pod", result.is_ok());
        let PodName { namespace, name } = &enrolled_pod.name;
        let changed = match result {
            Ok(report) => {
                if let Some(warning) = &report.warning {
                    debug!(target: "ambient", %namespace, pod = %name, warning, "capturing without private mounts");
                }
                log_connections(
                    &enrolled_pod.name,
                    report.connections.as_ref().filter(|_| !enrolled_pod.quiet),
                );
                let changed = !report.differences.is_empty();
                // A pod that has another namespace by now is captured there by a separate job.
                if changed && enrolled_pod.netns_id() == Some(netns) {
                    enrolled_pod.observed_rules = None; // observed next
                    // A repair did not hold, or could not be verified.
                    if enrolled_pod.lifecycle.has_lost_rules() {
                        self.metrics.count_repair("pod");
                    }
                }
                Ok(changed)
            }
            Err(error) => {
                if enrolled_pod.lifecycle.last_failure() != Some(error.as_str()) {
                    warn!(target: "ambient", %namespace, pod = %name, %error, "pod cannot be captured");
                }
                Err(error)
            }
        };
        self.handle_pod_event(uid, PodEvent::Captured(netns, changed));
    }

    /// Finishes an observation without a verification: rules that differ are then verified, unless they are about to be
    /// removed.
    fn finish_routine_observation(
        &mut self,
        state: &mut AgentState,
        uid: PodUid,
        netns: NetnsId,
        in_place: Option<Arc<PodRulesSnapshot>>,
    ) {
        let Some(enrolled_pod) = self.enrolled.get(&uid) else { return };
        if enrolled_pod.netns_id() != Some(netns) {
            // It is captured in its other namespace: a verification there would not make ztunnel serve it.
            return self.handle_pod_event(&uid, PodEvent::Observed(netns, Ok(false)));
        }
        // Rules that a release is about to remove must not be repaired.
        let last = enrolled_pod.observed_rules.clone().filter(|_| enrolled_pod.lifecycle.is_leaving());
        let Some(observed) = in_place.or(last) else { return self.execute_action(&uid, PodAction::Observe) };
        let check = RulesCheck { observed, repaired: Vec::new(), connections: None };
        self.handle_result(state, JobResult::Verified { uid, netns, watch: None, result: Ok(check) });
    }

    /// Finishes an observation. Returns whether rules of other components precede ours that did not before, or no
    /// longer do.
    fn finish_observation(
        &mut self,
        state: &mut AgentState,
        uid: &PodUid,
        netns: NetnsId,
        result: Result<RulesCheck, Reason>,
    ) -> bool {
        let Some(enrolled_pod) = self.enrolled.get_mut(uid) else { return false };
        let (mut differs, mut is_contested, mut overruled) = (false, false, None);
        let PodName { namespace, name } = &enrolled_pod.name.clone();
        let is_there = enrolled_pod.netns_id() == Some(netns) && !enrolled_pod.lifecycle.is_leaving();
        let result = match result {
            Ok(RulesCheck { observed, repaired, connections }) => {
                log_connections(&enrolled_pod.name, connections.as_ref());
                is_contested = !observed.is_complete();
                if !repaired.is_empty() && !is_contested {
                    self.metrics.count_repair("pod");
                }
                if is_there {
                    let (was, is) = (
                        join_reasons(enrolled_pod.overruling_rules()),
                        join_reasons(observed.bypass_reasons()),
                    );
                    overruled = (was != is).then_some(is);
                    let before = enrolled_pod.observed_rules.as_ref();
                    differs = before.is_none_or(|before| {
                        !before.bypass_reasons().eq(observed.bypass_reasons())
                            || before.bypassing_connections() != observed.bypassing_connections()
                    });
                    enrolled_pod.observed_rules = Some(observed);
                    enrolled_pod.observed_at = Some(SystemTime::now());
                }
                Ok(repaired)
            }
            Err(error) => {
                if is_there && enrolled_pod.lifecycle.last_failure() != Some(error.as_str()) {
                    warn!(target: "ambient", %namespace, pod = %name, %error, "rules of the pod cannot be verified");
                }
                Err(error)
            }
        };
        // Must be read before the event below, which determines it anew.
        let was_unstable = enrolled_pod.lifecycle.is_unstable();
        let repaired = result.as_ref().cloned().unwrap_or_default();
        let cause = enrolled_pod.end_observation();
        if let Some(cause) = cause.as_ref().filter(|_| !repaired.is_empty() && !is_contested) {
            self.metrics.drift_repaired(cause.metric_label(), cause.noticed.elapsed());
        }
        let writer = cause.and_then(|cause| cause.writer_name());
        if let Some(rules) = overruled {
            if !rules.is_empty()
                && enrolled_pod.overruling_logged.is_none_or(|at| at.elapsed() > NOTICE_INTERVAL)
            {
                enrolled_pod.overruling_logged = Some(Instant::now());
                warn!(target: "ambient", %namespace, pod = %name, rules, writer, "rules of another component precede those of the pod, so that traffic bypasses the mesh");
            }
            let pod = Some(enrolled_pod.name.to_string());
            state.history.record_change(HistoryEntry::for_overruling_rules(pod, &rules, writer.as_deref()));
        }
        let event = match is_contested {
            true => PodEvent::Contested(netns, !repaired.is_empty()),
            false => PodEvent::Observed(netns, result.map(|repaired| !repaired.is_empty())),
        };
        self.handle_pod_event(uid, event);
        self.report_stability(state, uid, was_unstable, &repaired, writer.as_deref());
        differs
    }

    /// Reports a repair, and whether the pod's rules stay in place. While they do not, only the first and the last
    /// repair are logged: the history and the metric have each of them.
    fn report_stability(
        &self,
        state: &mut AgentState,
        uid: &PodUid,
        was_unstable: bool,
        repaired: &[String],
        writer: Option<&str>,
    ) {
        let Some(enrolled_pod) = self.enrolled.get(uid) else { return };
        let PodName { namespace, name } = &enrolled_pod.name;
        let (rules, repairs) = (repaired.join("; "), enrolled_pod.lifecycle.repair_count());
        match (was_unstable, enrolled_pod.lifecycle.is_unstable()) {
            (true, true) => {
                debug!(target: "ambient", %namespace, pod = %name, rules, repairs, "rules of the pod observed");
            }
            (true, false) => {
                state.notices.clear_unstable(uid);
                info!(target: "ambient", %namespace, pod = %name, repairs, "rules of the pod stay in place again");
            }
            (false, true) => {
                state.notices.report_unstable(
                    &enrolled_pod.name,
                    uid,
                    (&rules, writer),
                    repairs,
                    Instant::now(),
                );
                warn!(target: "ambient", %namespace, pod = %name, rules, repairs, writer, "rules of the pod are removed repeatedly; the pod is pending until they stay in place");
            }
            (false, false) if repaired.is_empty() => {}
            (false, false) => {
                warn!(target: "ambient", %namespace, pod = %name, rules, writer, "rules of the pod restored");
                if !enrolled_pod.lifecycle.is_leaving() {
                    state
                        .notices
                        .report_repair(&format!("traffic of {} to ztunnel", enrolled_pod.name), repaired);
                }
            }
        }
    }

    fn finish_release(&mut self, uid: &PodUid, netns: NetnsId, result: Result<Vec<String>, Reason>) {
        let Some(enrolled_pod) = self.enrolled.get(uid) else { return };
        self.metrics.count_operation("release pod", result.is_ok());
        let PodName { namespace, name } = &enrolled_pod.name;
        match &result {
            Ok(removed) if enrolled_pod.lifecycle.is_leaving() => {
                enrolled_pod.log_transition("pod released", None);
                debug!(target: "ambient", %namespace, pod = %name, rules = removed.join("; "), "rules removed");
            }
            Ok(_) => {} // the pod joined again meanwhile
            Err(error) => {
                warn!(target: "ambient", %namespace, pod = %name, %error, "rules of the pod cannot be removed");
            }
        }
        self.handle_pod_event(uid, PodEvent::Released(netns, result.map(drop)));
    }

    fn record_refusal(&mut self, uid: &PodUid, netns: NetnsId, error: &str) {
        let here = self.enrolled.get(uid).filter(|enrolled_pod| enrolled_pod.netns_id() == Some(netns));
        let Some(enrolled_pod) = here else { return };
        let why = format!("ztunnel refused it: {error}");
        if enrolled_pod.lifecycle.refusal_reason() != Some(&why) {
            warn!(target: "ambient", namespace = %enrolled_pod.name.namespace, pod = %enrolled_pod.name.name, error, "ztunnel refused the pod");
        }
        self.handle_pod_event(uid, PodEvent::Refused(netns, why.into()));
    }
}

/// Logs the outcome for connections that a pod had before it was captured.
fn log_connections(name: &PodName, report: Option<&ConnectionsReport>) {
    let PodName { namespace, name } = name;
    match report {
        None => {}
        Some(connections) if connections.matches_request() => {
            info!(target: "ambient", %namespace, pod = %name, %connections, "pod joined with open connections");
        }
        Some(connections) => {
            warn!(target: "ambient", %namespace, pod = %name, %connections, "pod joined, and some of its connections break");
        }
    }
}

fn note_ztunnel(state: &mut AgentState, pod: Option<String>, what: &str, done: Result<(), &str>) {
    let (cause, what, error) = ("ztunnel".to_owned(), what.to_owned(), done.err().map(str::to_owned));
    state.history.record_change(HistoryEntry { cause, what, pod, error, took: Duration::ZERO });
}
