//! Selection of the capture mode that the node's ztunnel supports. A connected ztunnel supports in-pod capture;
//! without a connection, the newest ztunnel pod decides. Without any ztunnel pod, [`CaptureSettings::starts_in_pod`]
//! does.
//!
//! During a mode change no traffic bypasses the mesh: the new mode is in place before the old one is removed, for the
//! node as a whole or pod by pod.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use enrolment::ztunnel;
use model::{ContainerId, PodUid, Reason};
use netns::NetnsId;
use node_plan::ZtunnelFallback;
use retry::LastError;
use tracing::{info, warn};

use crate::{
    error::Error, in_pod, in_pod::InPodCapture, node, node::NodeCapture, settings::CaptureSettings,
    settings::InPodConfig, uninstall,
};
use agent::{
    AgentHandle, AgentMetrics, AgentState, CaptureMode, CaptureReply, CaptureResult, CaptureSnapshot,
    ChangedPods, HistoryEntry, PodAttachment, PodEnrolment, ReconcileScope, summarize_steps,
};

/// Interval between attempts to remove rules from pods: each one searches all namespaces, and a pod may prevent its own removal.
const CLEAR_AGAIN: Duration = Duration::from_secs(30);
/// Time for which an earlier connection takes precedence over what ztunnel pods declare.
const BELIEVED: Duration = Duration::from_secs(10);

/// Time after which a pod without rules of its own is reported.
const LATE: Duration = Duration::from_secs(10);

/// A node path that remains while pods get rules of their own.
struct HandOver {
    began: Instant,
    /// UIDs of pods that were removed from the node path.
    done: BTreeSet<PodUid>,
}

impl HandOver {
    fn new() -> HandOver {
        HandOver { began: Instant::now(), done: BTreeSet::new() }
    }
}

/// Both modes, of which one is in use.
pub(crate) struct AutoCapture {
    settings: Arc<CaptureSettings>,
    node: Option<NodeCapture>,
    /// Remains open once opened, because ztunnels may be connected.
    in_pod: Option<InPodCapture>,
    chosen: InPodConfig,
    owner: AgentHandle,
    metrics: AgentMetrics,
    is_in_pod: bool,
    /// The transition from node-level capture to in-pod capture.
    handing_over: Option<HandOver>,
    /// Why the last attempt to change the mode failed; `None`: it succeeded, or the mode is the right one.
    unswitched: Option<Reason>,
    fallback: ZtunnelFallback,
    /// Whether rules that in-pod capture may have left in pods were removed since the node path came into use.
    is_cleared: bool,
    /// When they were removed, or could not be.
    clearing: Option<Instant>,
    /// Why they could not be removed, as last logged.
    uncleared: LastError,
    /// When the last pass that decided on the mode began.
    reconciled: Instant,
}

impl AutoCapture {
    /// Opens the mode that the settings start with, and the node path if it exists: an earlier agent ended before all
    /// pods had left it.
    pub(crate) fn open(
        settings: &Arc<CaptureSettings>,
        chosen: &InPodConfig,
        owner: AgentHandle,
        metrics: AgentMetrics,
    ) -> Result<AutoCapture, Error> {
        let mut auto = AutoCapture {
            settings: Arc::clone(settings),
            node: None,
            in_pod: None,
            chosen: chosen.clone(),
            owner,
            metrics,
            is_in_pod: settings.starts_in_pod && !node::is_installed(settings),
            handing_over: None,
            unswitched: None,
            fallback: settings.fallback,
            is_cleared: false,
            clearing: None,
            uncleared: LastError::default(),
            reconciled: Instant::now(),
        };
        auto.open_current()?;
        Ok(auto)
    }

    fn open_current(&mut self) -> Result<(), Error> {
        if self.is_in_pod { self.open_in_pod() } else { self.open_node() }
    }

    fn open_node(&mut self) -> Result<(), Error> {
        let mut node = NodeCapture::open(&self.settings, &self.owner)?;
        let _ = node.set_fallback(self.fallback);
        self.node = Some(node);
        Ok(())
    }

    fn open_in_pod(&mut self) -> Result<(), Error> {
        if self.in_pod.is_none() {
            let metrics = self.metrics.clone();
            self.in_pod = Some(InPodCapture::open(&self.settings, &self.chosen, &self.owner, metrics)?);
        }
        Ok(())
    }

    /// Switches to the other capture mode. The new mode is applied first, so that no packet of a captured pod bypasses
    /// the mesh: until everything of the old mode is removed, a pod's traffic is redirected by the new one or dropped.
    fn switch_mode(&mut self, state: &mut AgentState, is_in_pod: bool) -> CaptureResult {
        if is_in_pod {
            self.open_in_pod().map_err(|error| error.to_string())?;
            if let Some(in_pod) = &mut self.in_pod {
                in_pod.takes_over = true;
            }
            if let Some(node) = &mut self.node {
                // Their pods are not on the node path yet; at the next attempt they are captured in the new mode.
                node.answer_requests(Some(&"the capture mode has changed to in-pod capture".into()));
            }
            self.handing_over = Some(HandOver::new());
            (self.is_cleared, self.clearing) = (false, None);
            log_mode_change(is_in_pod);
        } else {
            self.take_over_on_node(state)?;
            self.handing_over = None;
        }
        self.is_in_pod = is_in_pod;
        state.mark_dirty(ReconcileScope::Full);
        Ok(())
    }

    /// Builds the node path first; then removes the pods' own rules.
    fn take_over_on_node(&mut self, state: &mut AgentState) -> CaptureResult {
        let began = Instant::now();
        if self.node.is_none() {
            self.open_node().map_err(|error| error.to_string())?;
        }
        if let Some(node) = &mut self.node {
            let problem = node.reconcile(state, ReconcileScope::Full)?;
            if !node.has_ztunnel() {
                // Pods keep their own rules.
                return Err(problem.unwrap_or_else(|| "the node path leads to no ztunnel".into()));
            }
        }
        log_mode_change(false);
        if let Some(in_pod) = &mut self.in_pod {
            in_pod.takes_over = false;
            in_pod.finish_work(); // a pending job would add rules after their removal
            in_pod.forget_all();
            in_pod.report_bypasses(state, Some(&ChangedPods::default())); // else they stay counted
        }
        let left = self.clear_pods();
        record_mode_change(state, false, began.elapsed(), &left);
        Ok(())
    }

    /// Removes the rules in pods, because they would cut a pod off without a ztunnel that supports in-pod capture.
    /// Returns the errors.
    fn clear_pods(&mut self) -> Vec<String> {
        let left = in_pod::uninstall(&self.settings);
        (self.is_cleared, self.clearing) = (left.is_empty(), Some(Instant::now()));
        let error = summarize_steps(&left);
        if self.is_cleared {
            self.uncleared.clear();
        } else if self.uncleared.replace(&error) {
            warn!(target: "ambient", error, "rules of in-pod capture are left in pods");
        }
        left
    }

    /// Whether rules in pods are to be removed now: an earlier agent may have left them, or some could not be removed. Pods keep
    /// them while the node path leads to no ztunnel.
    fn must_clear(&self, state: &AgentState) -> bool {
        let is_due = self.clearing.is_none_or(|last| last.elapsed() >= CLEAR_AGAIN);
        let is_pending = !self.is_in_pod && !self.is_cleared && is_due;
        is_pending
            && self.node.as_ref().is_some_and(NodeCapture::has_ztunnel)
            && ztunnel::is_served_on_node(&state.index, &state.policy.ztunnel)
    }

    /// Removes from the node path the pods whose own rules are in place, and finally the node path itself; until then,
    /// keeps it in place for the others. Returns the remaining error, if any.
    fn hand_over(&mut self, state: &mut AgentState, scope: ReconcileScope) -> Option<Reason> {
        let (Some(in_pod), Some(node), Some(handing)) =
            (&mut self.in_pod, &mut self.node, &mut self.handing_over)
        else {
            return None;
        };
        for pod in in_pod.pods_with_rules() {
            if handing.done.contains(&pod.uid) {
                continue;
            }
            match node.hand_over(&pod) {
                Ok(()) => drop(handing.done.insert(pod.uid)),
                Err(error) => warn!(target: "ambient", %error, "a pod stays on the node path"),
            }
        }
        let left = in_pod.count_without_rules();
        if left == Some(0) {
            let began = handing.began;
            in_pod.takes_over = false;
            (self.node, self.handing_over) = (None, None);
            self.metrics.record_switch(None, Duration::ZERO); // no slot accepts connections any longer
            let left = node::uninstall(&self.settings);
            uninstall::log_errors(&left);
            record_mode_change(state, true, began.elapsed(), &left);
            return None;
        }
        let unrestored = node.restore_remaining(state, &handing.done, scope).err();
        let is_late = handing.began.elapsed() > LATE;
        let late = left.filter(|_| is_late).map(|left| {
            format!("{left} pods have no rules of their own yet: their traffic stays on the node path, and is held there without its ztunnel").into()
        });
        unrestored.or(late)
    }

    /// Returns whether the node's ztunnel supports in-pod capture. A connected ztunnel is the best evidence, and so
    /// is one that was connected within [`BELIEVED`], because a restarting ztunnel is not ready meanwhile. An announced
    /// successor may never start: while another ztunnel serves the node, the socket is opened for the successor, and
    /// the mode does not change before the successor has connected.
    fn ztunnel_speaks_in_pod(&mut self, state: &AgentState) -> Result<Option<bool>, Reason> {
        let connected = self.in_pod.as_ref().and_then(InPodCapture::last_connected);
        if connected.is_some_and(|last| last.elapsed() < BELIEVED) {
            return Ok(Some(true));
        }
        let speaks = ztunnel::newest_supports_in_pod(&state.index, &state.policy.ztunnel);
        let is_announced = speaks == Some(true) && !self.is_in_pod;
        if is_announced && ztunnel::is_served_on_node(&state.index, &state.policy.ztunnel) {
            self.open_in_pod().map_err(|error| error.to_string())?;
            return Ok(None);
        }
        Ok(speaks)
    }

    /// Changes the mode if ztunnel needs the other one. Returns the scope of the pass that follows.
    fn follow_ztunnel(
        &mut self,
        state: &mut AgentState,
        scope: ReconcileScope,
    ) -> Result<ReconcileScope, Reason> {
        match self.ztunnel_speaks_in_pod(state)? {
            Some(is_in_pod) if is_in_pod != self.is_in_pod => {
                // An attempt observes the whole node: one that failed is repeated in full passes only.
                if scope == ReconcileScope::Full || self.unswitched.is_none() {
                    self.unswitched = self.switch_mode(state, is_in_pod).err();
                }
                self.unswitched.clone().map_or(Ok(ReconcileScope::Full), Err)
            }
            // An earlier switch to the node path failed half-way.
            Some(true) if self.node.is_some() && self.handing_over.is_none() => {
                (self.handing_over, self.unswitched) = (Some(HandOver::new()), None);
                Ok(ReconcileScope::Full)
            }
            _ => {
                self.unswitched = None;
                Ok(scope)
            }
        }
    }

    fn current_mode(&mut self) -> Result<&mut dyn CaptureMode, Reason> {
        let mode = match (self.is_in_pod, &mut self.node, &mut self.in_pod) {
            (false, Some(node), _) => Some(node as &mut dyn CaptureMode),
            (true, _, Some(in_pod)) => Some(in_pod as &mut dyn CaptureMode),
            _ => None,
        };
        mode.ok_or_else(|| "the capture mode of the node's ztunnel could not be opened".into())
    }
}

impl CaptureMode for AutoCapture {
    fn reconcile(&mut self, state: &mut AgentState, scope: ReconcileScope) -> Result<Option<Reason>, Reason> {
        self.reconciled = Instant::now();
        // If this fails, the present mode keeps capturing pods, and the error is reported.
        let followed = self.follow_ztunnel(state, scope);
        let scope = *followed.as_ref().unwrap_or(&scope);
        if self.current_mode().is_err() {
            self.open_current().map_err(|error| error.to_string())?;
        }
        let done = self.current_mode()?.reconcile(state, scope);
        if done.is_err()
            && let (Some(node), Some(handing)) = (&mut self.node, &self.handing_over)
        {
            let _ = node.restore_remaining(state, &handing.done, scope); // the other error is reported
        }
        let problem = done?;
        if self.must_clear(state) {
            self.clear_pods(); // errors are logged
        }
        Ok(self.hand_over(state, scope).or(followed.err()).or(problem))
    }

    fn is_awaited(&self) -> bool {
        let in_pod = self.in_pod.as_ref().is_some_and(CaptureMode::is_awaited);
        in_pod || self.node.as_ref().is_some_and(CaptureMode::is_awaited)
    }

    fn answer_requests(&mut self, problem: Option<&Reason>) {
        if let Ok(mode) = self.current_mode() {
            mode.answer_requests(problem);
        }
    }

    fn enrol_pod(&mut self, state: &mut AgentState, enrolment: PodEnrolment, reply: CaptureReply) {
        match self.current_mode() {
            Ok(mode) => mode.enrol_pod(state, enrolment, reply),
            Err(problem) => drop(reply.send(Err(problem))),
        }
    }

    fn skip_pod(
        &mut self,
        state: &mut AgentState,
        container: &ContainerId,
        attachment: PodAttachment,
        reply: CaptureReply,
    ) {
        match self.current_mode() {
            Ok(mode) => mode.skip_pod(state, container, attachment, reply),
            Err(problem) => drop(reply.send(Err(problem))),
        }
    }

    fn release_pod(
        &mut self,
        state: &mut AgentState,
        container: &ContainerId,
        gone: PodAttachment,
        is_last: bool,
    ) -> CaptureResult {
        if let (Some(node), true) = (&mut self.node, self.is_in_pod) {
            node.hand_over(&gone).map_err(|error| error.to_string())?; // its addresses may be reassigned to another pod soon
        }
        self.current_mode()?.release_pod(state, container, gone, is_last)
    }

    fn may_have_netns(&self, uid: &PodUid, netns: NetnsId) -> bool {
        self.in_pod.as_ref().is_none_or(|in_pod| in_pod.may_have_netns(uid, netns))
    }

    fn check_pod(&mut self, state: &mut AgentState, uid: &PodUid, ips: &[IpAddr], reply: CaptureReply) {
        // The node path captures a pod until the pod's own rules are in place.
        let left = self.node.as_mut().filter(|_| self.is_in_pod);
        if left.is_some_and(|node| node.check_members(ips).is_ok()) {
            drop(reply.send(Ok(())));
            return;
        }
        match self.current_mode() {
            Ok(mode) => mode.check_pod(state, uid, ips, reply),
            Err(_) => drop(reply.send(Ok(()))), // the node's mode is not known yet
        }
    }

    fn finish_work(&mut self) {
        if let Some(in_pod) = &mut self.in_pod {
            in_pod.finish_work();
        }
    }

    fn set_fallback(&mut self, fallback: ZtunnelFallback) -> bool {
        self.fallback = fallback;
        self.node.as_mut().is_some_and(|node| node.set_fallback(fallback))
    }

    fn work_completed(&mut self, state: &mut AgentState) {
        // The mode to which the result belongs does not matter: each mode consumes one if it has one.
        if let Some(in_pod) = &mut self.in_pod {
            in_pod.work_completed(state);
        }
        if let Some(node) = &mut self.node {
            node.work_completed(state);
        }
    }

    fn capture_snapshot(&self) -> CaptureSnapshot {
        match (self.is_in_pod, &self.node, &self.in_pod) {
            (false, Some(node), _) => node.capture_snapshot(),
            (true, _, Some(in_pod)) => in_pod.capture_snapshot(),
            _ => CaptureSnapshot::None,
        }
    }

    fn next_wakeup(&self) -> Option<Instant> {
        let Some(in_pod) = self.in_pod.as_ref().filter(|_| self.is_in_pod) else {
            return self.node.as_ref().and_then(CaptureMode::next_wakeup);
        };
        // When an earlier connection no longer counts, the mode must be selected again.
        let believed = in_pod.last_connected().map(|last| last + BELIEVED);
        let again = believed.filter(|until| *until > self.reconciled);
        let node = self.node.as_ref().filter(|_| self.handing_over.is_some());
        let drift = node.and_then(|node| node.drift.next_observation());
        in_pod.next_wakeup().into_iter().chain(again).chain(drift).min()
    }
}

fn log_mode_change(is_in_pod: bool) {
    info!(target: "ambient", mode = if is_in_pod { "in-pod" } else { "node-level" }, "capture mode changed");
}

/// Records a change of the capture mode. `left`: why objects of the other one could not be removed.
fn record_mode_change(state: &mut AgentState, is_in_pod: bool, took: Duration, left: &[String]) {
    let what = format!(
        "pods are captured {} from now on; what the other capture mode had made was removed afterwards",
        if is_in_pod { "in each pod's network namespace" } else { "on the node" }
    );
    let (cause, error) = ("ztunnel".to_owned(), (!left.is_empty()).then(|| summarize_steps(left)));
    state.history.record_change(HistoryEntry { cause, what, pod: None, took, error });
}
