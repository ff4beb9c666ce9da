//! Requests of the plugin between passes.

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use model::{ContainerId, Family, Pod, PodUid, Reason};
use node_plan::{ZtunnelFallback, ZtunnelSlot};

use super::{
    NodeCapture,
    pass::{ADDED, describe_members},
    report_unobserved, watch_ztunnels,
};
use crate::node_watch::{NodeDisturbance, processor_time};
use agent::{
    AgentState, CaptureMode, CaptureReply, CaptureResult, CaptureSnapshot, HistoryEntry, PodAttachment,
    PodEnrolment, ReconcileScope,
};

/// Delay of the verification of a pod that was enrolled without a pass, together with all that are enrolled meanwhile:
/// with many pods a verification takes longer than an enrolment, and pods often start several at a time.
const VERIFY_AFTER: Duration = Duration::from_millis(50);

impl CaptureMode for NodeCapture {
    fn reconcile(&mut self, state: &mut AgentState, scope: ReconcileScope) -> Result<Option<Reason>, Reason> {
        let began = processor_time();
        let is_recheck = self.recheck_at.take_if(|due| *due <= Instant::now()).is_some();
        let scope = if is_recheck { ReconcileScope::Full } else { scope };
        let disturbance =
            self.drift.take_covered(scope, Instant::now()).or_else(|| self.drift.take_without_rules());
        let is_full = disturbance.as_ref().is_some_and(NodeDisturbance::needs_full_pass);
        let scope = if is_full { ReconcileScope::Full } else { scope };
        if scope == ReconcileScope::Full {
            watch_ztunnels(&mut self.path, &mut self.watch, &self.ztunnels);
        }
        if let Some(cause) = disturbance.as_ref().and_then(NodeDisturbance::drift_cause) {
            state.history.add_cause(|| cause);
        }
        let writer = disturbance.as_ref().and_then(|changes| changes.writer.clone());
        let done = self.run_pass(state, scope, writer.as_deref());
        match (disturbance, &done) {
            (Some(disturbance), Ok(done)) => {
                if let Some(kind) = done.repaired {
                    state.metrics.drift_repaired(kind.metric_label(), disturbance.noticed.elapsed());
                }
                let worked = processor_time().saturating_sub(began);
                self.drift.end_observation(worked, done.repaired.is_some(), Instant::now());
            }
            // Due at once, so that the next attempt covers it.
            (Some(disturbance), Err(_)) => self.drift.restore_disturbance(disturbance),
            (None, _) => {}
        }
        // A failed pass is repeated immediately.
        if let Some(problem) = done.as_ref().err().filter(|_| self.unreported > 1) {
            report_unobserved(state, problem.as_str());
        }
        done.map(|done| done.lost)
    }

    fn is_awaited(&self) -> bool {
        !self.joining.is_empty()
    }

    fn answer_requests(&mut self, problem: Option<&Reason>) {
        for reply in std::mem::take(&mut self.joining) {
            drop(reply.send(problem.map_or(Ok(()), |problem| Err(problem.clone()))));
        }
    }

    /// Enrols a pod immediately where everything is in place, else in the next pass, which restores it.
    fn enrol_pod(&mut self, state: &mut AgentState, enrolment: PodEnrolment, reply: CaptureReply) {
        let PodEnrolment { container, attachment, pod, .. } = enrolment;
        if self.enrol_at_once(state, &attachment, &pod) {
            drop(reply.send(Ok(())));
        } else {
            state.mark_dirty(ReconcileScope::Full);
            self.joining.push(reply);
        }
        state.ledger.record_add(&container, attachment);
    }

    /// If an earlier pod is still captured by one of the addresses, the request waits for the next pass, which removes
    /// the address.
    fn skip_pod(
        &mut self,
        state: &mut AgentState,
        container: &ContainerId,
        attachment: PodAttachment,
        reply: CaptureReply,
    ) {
        let verified = self.verified.as_ref();
        let is_member = |ip| verified.is_some_and(|verified| verified.desired.members.contains_key(ip));
        if attachment.ips.iter().any(|ip| self.fresh.contains(ip) || is_member(ip)) {
            state.mark_dirty(ReconcileScope::Membership);
            self.joining.push(reply);
        } else {
            drop(reply.send(Ok(())));
        }
        state.ledger.record_skip(container, attachment);
    }

    fn release_pod(
        &mut self,
        _core: &mut AgentState,
        _container: &ContainerId,
        gone: PodAttachment,
        _is_last: bool,
    ) -> CaptureResult {
        self.members.release_pod(&gone.ips, &gone.uid).map(drop).map_err(|error| error.to_string().into())
    }

    fn check_pod(&mut self, _: &mut AgentState, _: &PodUid, ips: &[IpAddr], reply: CaptureReply) {
        drop(reply.send(self.check_members(ips)));
    }

    fn set_fallback(&mut self, fallback: ZtunnelFallback) -> bool {
        std::mem::replace(&mut self.fallback, fallback) != fallback
    }

    fn work_completed(&mut self, _core: &mut AgentState) {
        if let Ok(change) = self.changes.try_recv() {
            self.drift.record_notice(change, Instant::now());
        }
    }

    fn capture_snapshot(&self) -> CaptureSnapshot {
        CaptureSnapshot::Node {
            desired: self.desired.clone(),
            fallback: self.fallback,
            refused_exceptions: self.refused_exceptions.clone(),
            repairs: if self.stability.is_unstable() { self.stability.repair_count() } else { 0 },
        }
    }

    fn next_wakeup(&self) -> Option<Instant> {
        [self.verify_at, self.drift.next_observation(), self.recheck_at].into_iter().flatten().min()
    }
}

impl NodeCapture {
    /// Enrols a pod without a pass. Returns false if not everything is in place, or something was found missing.
    fn enrol_at_once(&mut self, state: &mut AgentState, attachment: &PodAttachment, pod: &Pod) -> bool {
        let Some(active) = self.ready_for(&attachment.ips) else { return false };
        self.verify_at.get_or_insert_with(|| Instant::now() + VERIFY_AFTER);
        self.fresh.extend(&attachment.ips);
        let began = Instant::now();
        let done = self.members.enrol_pod(&attachment.ips, &attachment.uid, active, self.fallback);
        let ips: Vec<String> = attachment.ips.iter().map(IpAddr::to_string).collect();
        let (cause, what) = ("ADD".to_owned(), describe_members(&ips, ADDED));
        let (pod, error) = (Some(pod.name().to_string()), done.as_ref().err().map(ToString::to_string));
        let took = began.elapsed();
        state.history.record_change(HistoryEntry { cause, what, pod, took, error });
        done.is_ok()
    }

    /// Returns the active slot if rules, sets and routes of these addresses' families were in place in the last
    /// observation. A later observation that failed, or a change that is not observed yet, means that they may not be.
    fn ready_for(&self, ips: &[IpAddr]) -> Option<Option<ZtunnelSlot>> {
        let verified = self.verified.as_ref().filter(|_| self.unreported == 0 && !self.drift.may_leak())?;
        let families = verified.desired.families();
        let all = ips.iter().all(|ip| families.contains(&Family::from_ip(*ip)));
        // A ztunnel that serves one family only leaves traffic of the other held.
        let served = |ip: &IpAddr| verified.desired.active_for(Family::from_ip(*ip)).is_some();
        let uniform = verified.desired.active.is_none() || ips.iter().all(served);
        (all && uniform && verified.desired.fallback == self.fallback).then_some(verified.desired.active)
    }
}
