//! Exemption of the node's probes of captured pods: sets and rules on the node. Changing a set is fast; rules may need
//! tools that read the node's whole firewall, so a worker maintains them.

use std::time::{Duration, Instant};

use model::Reason;
use tracing::warn;

use super::{InPodCapture, worker::CaptureJob};
use crate::node_watch::{NodeChange, NodeDisturbance};
use agent::{AgentState, HistoryEntry, ReconcileScope, summarize_steps};

/// Purpose of the sets and rules, as reports name it.
const PROBES: &str = "probes of the node past ztunnel";

impl InPodCapture {
    /// Maintains sets and rules. The first call blocks: no pod is captured before its probes are exempt.
    pub(super) fn exempt_probes(&mut self, state: &mut AgentState) {
        self.exemption.sets = self.exemption.probes.ensure_sets().err().map(|error| error.to_string().into());
        if self.exemption.busy {
            return;
        }
        if self.exemption.was_tried {
            self.exemption.busy = true;
            self.workers.send_job(CaptureJob::Exempt, false);
        } else {
            let began = Instant::now();
            let result = self.exemption.probes.rules.ensure_rules().map_err(|error| error.to_string().into());
            self.finish_exemption(state, began.elapsed(), result);
        }
    }

    /// Queues an observation of the node's sets and rules if another component changed them and an observation is due.
    /// Does not rely on a pass, because errors of the node may delay passes.
    pub(super) fn examine_node(&mut self, state: &mut AgentState) {
        if self.exemption.busy || !self.exemption.was_tried {
            return;
        }
        let Some(disturbance) = self.exemption.drift.take_due(Instant::now()) else { return };
        if disturbance.has_kind(NodeChange::Rules) {
            self.exemption.rules_changed = Some(disturbance.clone());
        }
        if disturbance.has_kind(NodeChange::Sets) {
            self.exemption.sets_changed = Some(disturbance.noticed);
            state.mark_dirty(ReconcileScope::Membership); // such a pass compares them
        }
        if disturbance.has_kind(NodeChange::Network) {
            self.exemption.probes.reconcile_branches(&self.exemption.addresses);
        }
        self.exempt_probes(state);
    }

    /// Reports changes of the sets that repaired changes by another component.
    pub(super) fn report_sets(&mut self, state: &mut AgentState, added: usize, removed: usize) {
        let Some(noticed) = self.exemption.sets_changed.take().filter(|_| added + removed > 0) else {
            return;
        };
        self.exemption.drift.end_observation(Duration::ZERO, true, Instant::now());
        warn!(target: "ambient", added, removed, "probe sets of the node restored");
        self.metrics.count_repair("node");
        self.metrics.drift_repaired(NodeChange::Sets.metric_label(), noticed.elapsed());
        let message = format!("{added} addresses added to sets, and {removed} removed");
        let (cause, what, took) = ("drift".to_owned(), format!("restored: {message}"), noticed.elapsed());
        state.history.record_change(HistoryEntry { cause, what, took, ..HistoryEntry::default() });
        state.notices.report_repair(PROBES, &[message]);
    }

    pub(super) fn finish_exemption(
        &mut self,
        state: &mut AgentState,
        took: Duration,
        result: Result<Vec<String>, Reason>,
    ) {
        self.exemption.busy = false;
        self.exemption.was_tried = true;
        let repaired = result.as_ref().is_ok_and(|missing| !missing.is_empty());
        if repaired {
            self.exemption.watch.note_repair();
        }
        self.exemption.drift.end_observation(took, repaired, Instant::now());
        let before = self.exemption.rules.take();
        match result {
            Ok(missing) if missing.is_empty() => {}
            Ok(missing) => self.note_exempted(state, &missing, took),
            Err(error) => self.exemption.rules = Some(error),
        }
        self.exemption.rules_changed = None;
        if self.exemption.rules != before {
            state.mark_dirty(ReconcileScope::Membership); // waiting requests are answered in the next pass
        }
    }

    fn note_exempted(&self, state: &mut AgentState, missing: &[String], took: Duration) {
        let disturbance = self.exemption.rules_changed.as_ref();
        let cause =
            disturbance.and_then(NodeDisturbance::drift_cause).unwrap_or_else(|| state.history.pass_cause());
        let what = format!("applied: {}", summarize_steps(missing));
        let writer = disturbance.and_then(|changes| changes.writer.as_deref());
        state.history.record_change(HistoryEntry { cause, what, pod: None, took, error: None });
        if self.hub.is_open() {
            warn!(target: "ambient", rules = missing.join("; "), writer, "probe rules of the node restored");
            self.metrics.count_repair("node");
            state.notices.report_repair(PROBES, missing);
            if let Some(changes) = disturbance {
                self.metrics.drift_repaired(NodeChange::Rules.metric_label(), changes.noticed.elapsed());
            }
        }
    }
}
