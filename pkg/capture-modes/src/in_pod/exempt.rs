//! The exemption of the node's probes of captured pods: sets and rules on the node. Changing a set is quick; rules take
//! tools that read the node's whole firewall, so a worker maintains them.

use std::time::Duration;

use inpod::EnsureReport;
use model::Reason;
use tracing::warn;

use super::{InPodCapture, worker::CaptureJob};
use agent::{AgentState, HistoryEntry, ReconcileScope, summary};

impl InPodCapture {
    /// Maintains sets and rules. The first time this blocks: no pod is captured before its probes are exempt.
    pub(super) fn exempt_probes(&mut self, state: &mut AgentState) {
        self.exemption.sets = self.probes.ensure_sets().err().map(|error| error.to_string().into());
        if self.exemption.busy {
            return;
        }
        let before = self.exemption.seen.clone();
        if self.exemption.was_tried {
            self.exemption.busy = true;
            self.workers.send(CaptureJob::Exempt { before }, false);
        } else {
            let began = std::time::Instant::now();
            let result =
                self.probes.rules().ensure(before.as_ref()).map_err(|error| error.to_string().into());
            self.exempted(state, began.elapsed(), result);
        }
    }

    pub(super) fn exempted(
        &mut self,
        state: &mut AgentState,
        took: Duration,
        result: Result<EnsureReport, Reason>,
    ) {
        self.exemption.busy = false;
        self.exemption.was_tried = true;
        let before = self.exemption.rules.take();
        match result {
            Ok(EnsureReport { missing, seen }) => {
                self.exemption.seen = Some(seen);
                if !missing.is_empty() {
                    self.note_exempted(state, &missing, took);
                }
            }
            Err(error) => self.exemption.rules = Some(error),
        }
        if self.exemption.rules != before {
            state.mark_dirty(ReconcileScope::Membership); // waiting requests are answered in the next pass
        }
    }

    fn note_exempted(&self, state: &mut AgentState, missing: &[String], took: Duration) {
        let (cause, what) = (state.history.cause(), format!("applied: {}", summary(missing)));
        state.history.note(HistoryEntry { cause, what, pod: None, took, error: None });
        if self.open {
            warn!(target: "ambient", rules = missing.join("; "), "probe rules of the node restored");
            self.metrics.repaired("node");
            state.notices.repaired("probes of the node past ztunnel", missing);
        }
    }
}
