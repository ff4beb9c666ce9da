//! The node path while its pods are handed over to in-pod redirection: what another component changes is restored for those that
//! still depend on it.

use std::{collections::BTreeSet, time::Instant};

use model::{PodUid, Reason};
use node_plan::{DesiredState, ZtunnelSlot, plan_operations};
use rules::{ChainSet, SavedRule, Target};

use super::{
    NodeCapture,
    pass::{changed_kind, report_repair},
    watch_ztunnels,
};
use crate::node_watch::{NodeChange, NodeDisturbance, processor_time};
use agent::{AgentState, CaptureResult, ReconcileScope};

impl NodeCapture {
    /// Returns when changes that the watch has reported are to be observed.
    pub(crate) fn next_observation(&self) -> Option<Instant> {
        self.drift.next_observation()
    }

    /// Restores the node path as it was verified last, without the pods `handed_over`, if the watch has reported a change, and in
    /// each full pass; pods that have left the mesh are removed. No pod and no ztunnel is added. A path that this agent has never
    /// verified stays as it is.
    ///
    /// # Errors
    /// The step that failed. After a reported change, it is repeated at the pace of repairs.
    pub(crate) fn restore_remaining(
        &mut self,
        state: &mut AgentState,
        handed_over: &BTreeSet<PodUid>,
        scope: ReconcileScope,
    ) -> CaptureResult {
        let began = processor_time();
        let disturbance = self.drift.take_due(Instant::now());
        if disturbance.is_none() && scope != ReconcileScope::Full {
            return Ok(());
        }
        if scope == ReconcileScope::Full {
            watch_ztunnels(&mut self.path, &mut self.watch, &self.ztunnels);
        }
        if let Some(cause) = disturbance.as_ref().and_then(NodeDisturbance::drift_cause) {
            state.history.add_cause(|| cause);
        }
        let done = self.restore_verified(state, handed_over);
        // Otherwise the namespace of a ztunnel that has ended would stay, with the links to it.
        let closed = self.path.close_ztunnel_netns().map_err(|error| Reason::from(error.to_string()));
        let done = done.and_then(|repaired| closed.map(|()| repaired));
        let worked = processor_time().saturating_sub(began);
        self.drift.end_observation(worked, !matches!(done, Ok(None)), Instant::now());
        match (disturbance, &done) {
            (Some(disturbance), Ok(Some(kind))) => {
                state.metrics.drift_repaired(kind.metric_label(), disturbance.noticed.elapsed());
            }
            (Some(disturbance), Err(_)) => self.drift.restore_disturbance(disturbance),
            _ => {}
        }
        done.map(drop)
    }

    /// Returns the kind of objects that another component had changed and that were restored.
    fn restore_verified(
        &mut self,
        state: &mut AgentState,
        handed_over: &BTreeSet<PodUid>,
    ) -> Result<Option<NodeChange>, Reason> {
        let to_message = |error: nodepath::Error| Reason::from(error.to_string());
        let Some(verified) = self.verified.as_ref().map(|verified| verified.desired.clone()) else {
            return Ok(None);
        };
        let mut desired = DesiredState { fallback: self.fallback, ..verified.clone() };
        let (living, _) = self.running_ztunnels(state, ReconcileScope::Full)?;
        for slot in ZtunnelSlot::BOTH {
            let part = slot.part_mut(&mut desired.slots);
            let located = |uid: &PodUid| living.iter().find(|(_, ztunnel)| ztunnel.uid == *uid);
            *part = part.take().and_then(|before| Some(located(&before.uid)?.1.clone()));
        }
        desired.active = desired.active.filter(|slot| desired.ztunnel_in(*slot).is_some());
        let mut observed = self.path.observe_network().map_err(to_message)?;
        // A pod that was enrolled just before the handover is in no verified state yet.
        for (ip, uid) in observed.sets.values().flatten() {
            if let Some(uid) = uid {
                desired.members.entry(*ip).or_insert_with(|| uid.clone());
            }
        }
        let current = state.resolve_members(&desired.members);
        desired.members.retain(|ip, uid| !handed_over.contains(uid) && current.get(ip) == Some(uid));
        self.path.observe_rest(&mut observed, &desired.slots).map_err(to_message)?;
        for table in observed.firewall.values_mut().flat_map(|found| found.tables.values_mut()) {
            table.rules.retain(|rule| !leads_to_probes(rule));
        }
        let steps = plan_operations(&self.settings.node, Some(&desired), &observed);
        if !steps.is_empty() {
            self.apply_steps(state, &steps, &desired, &observed)?;
        }
        let is_repair = desired == verified && !steps.is_empty();
        if is_repair {
            report_repair(state, &steps);
        }
        if let Some(known) = &mut self.verified {
            // A ztunnel that could not be located may be located next time.
            known.desired = DesiredState { slots: verified.slots, active: verified.active, ..desired };
        }
        Ok(steps.first().filter(|_| is_repair).map(changed_kind))
    }
}

/// Whether a rule jumps to the chains for probes of in-pod capture. Such a jump has to be the first rule of its chain, as ours has:
/// each would move ahead of the other again and again. Between the two, the order makes no difference.
fn leads_to_probes(rule: &SavedRule) -> bool {
    let target = rule.rule.as_ref().map(|rule| &rule.target);
    matches!(target, Some(Target::Jump(chain)) if ChainSet::PROBES.contains(&chain.0))
}
