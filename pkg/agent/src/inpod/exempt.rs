//! The node's probes of captured pods: sets and rules on the node. Sets are quick; rules take tools that read all that the
//! node's firewall holds, so a worker sees to them.

use std::time::Duration;

use inpod::EnsureReport;
use model::Reason;
use netfilter::RulesSnapshot;
use tracing::warn;

use super::{InPodCapture, worker::CaptureJob};
use crate::{
    agent_state::AgentState,
    history::{HistoryEntry, summary},
    reconciler::ReconcileScope,
};

/// How far the rules are.
#[derive(Debug, Default)]
pub(super) struct ProbeExemption {
    /// What a worker saw last.
    seen: Option<RulesSnapshot>,
    /// One is at it.
    busy: bool,
    /// They were looked at, with whatever result.
    was_tried: bool,
    sets: Option<Reason>,
    rules: Option<Reason>,
}

impl ProbeExemption {
    /// What was begun was dropped.
    pub(super) fn settled(&mut self) {
        self.busy = false;
    }

    /// What is wrong, if anything.
    pub(super) fn trouble(&self) -> Option<Reason> {
        let of = self.sets.as_ref().or(self.rules.as_ref());
        of.map(|error| format!("the node's probes are not exempt: {error}").into())
    }
}

impl InPodCapture {
    /// Sees to sets and rules. The first time this waits: no pod is captured before its probes are exempt.
    pub(super) fn exempt_probes(&mut self, core: &mut AgentState) {
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
            self.exempted(core, began.elapsed(), result);
        }
    }

    pub(super) fn exempted(
        &mut self,
        core: &mut AgentState,
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
                    self.note_exempted(core, &missing, took);
                }
            }
            Err(error) => self.exemption.rules = Some(error),
        }
        if self.exemption.rules != before {
            core.mark_dirty(ReconcileScope::Membership); // whoever asks is told in the next turn
        }
    }

    fn note_exempted(&self, core: &mut AgentState, missing: &[String], took: Duration) {
        let (cause, what) = (core.history.cause(), format!("put in place: {}", summary(missing)));
        core.history.note(HistoryEntry { cause, what, pod: None, took, error: None });
        if self.open {
            warn!(target: "ambient", rules = missing.join("; "), "probe rules of the node restored");
            self.metrics.repaired("node");
            core.notices.repaired("probes of the node past ztunnel", missing);
        }
    }
}
