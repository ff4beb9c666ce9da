//! The node path while its pods are handed over to in-pod capture: what another component changes is restored for those that
//! still depend on it.

use std::{collections::BTreeSet, time::Instant};

use model::{MemberAddresses, PodUid, Reason};
use node_plan::{
    DesiredState, ObservedState, SlotAssignment, ZtunnelInstance, assign_slots, plan_operations,
};
use rules::{ChainSet, SavedRule, Target};

use super::{
    NodeCapture, VerifiedState,
    pass::{changed_kind, report_repair},
    watch_ztunnels,
};
use crate::node_watch::{NodeChange, NodeDisturbance, processor_time};
use agent::{AgentState, CaptureResult, ReconcileScope};

impl NodeCapture {
    /// Restores the node path as it was verified last, without the pods `handed_over`, if the watch has reported a change, and in
    /// each full pass; pods that have left the mesh are removed. No pod and no ztunnel is added. Where this agent has verified
    /// none, because an earlier one began the handover, the first observation shows ztunnels and pods.
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
        let disturbance = self.drift.take_covered(scope, Instant::now());
        if disturbance.is_none() && scope != ReconcileScope::Full {
            return Ok(());
        }
        if scope == ReconcileScope::Full {
            watch_ztunnels(&mut self.path, &mut self.watch, &self.ztunnels);
        }
        if let Some(cause) = disturbance.as_ref().and_then(NodeDisturbance::drift_cause) {
            state.history.add_cause(|| cause);
        }
        let done = self.restore_path(state, handed_over);
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
    fn restore_path(
        &mut self,
        state: &mut AgentState,
        handed_over: &BTreeSet<PodUid>,
    ) -> Result<Option<NodeChange>, Reason> {
        let to_message = |error: node_capture::Error| Reason::from(error.to_string());
        let mut observed = self.path.observe_network().map_err(to_message)?;
        let is_owned = observed.sets.values().flatten().any(|(_, uid)| uid.is_some());
        if self.verified.is_none() && !is_owned {
            return Ok(None); // nobody is left on it, or it is that of Istio's own agent
        }
        let known = self.known_slots(&observed);
        let (living, _) = self.running_ztunnels(state, ReconcileScope::Full, &known)?;
        let living: Vec<ZtunnelInstance> = living.into_iter().map(|(_, ztunnel)| ztunnel).collect();
        let SlotAssignment { slots, .. } = assign_slots(&known, &living, None);
        let active = known.active.filter(|slot| slot.select_from(&slots).is_some());
        let members = self.remaining_members(state, handed_over, &observed);
        let desired = DesiredState { slots, active, members, fallback: self.fallback };
        self.path.observe_firewall(&mut observed).map_err(to_message)?;
        self.path.observe_slots(&mut observed, &desired.slots).map_err(to_message)?;
        for table in observed.firewall.values_mut().flat_map(|found| found.tables.values_mut()) {
            table.rules.retain(|rule| !leads_to_probes(rule));
        }
        let is_known = self.verified.as_ref().is_some_and(|verified| verified.desired == desired);
        let verified = self
            .verified
            .get_or_insert_with(|| VerifiedState { desired: desired.clone(), observed: observed.clone() });
        let (slots, active) = (verified.desired.slots.clone(), verified.desired.active);
        let steps = plan_operations(&self.settings.node, Some(&desired), &observed);
        if !steps.is_empty() {
            self.apply_steps(state, &steps, &desired, &observed)?;
        }
        let is_repair = is_known && !steps.is_empty();
        if is_repair {
            report_repair(state, &steps);
            self.note_repair(&steps);
        }
        if let Some(verified) = &mut self.verified {
            // A ztunnel that could not be located may be located next time.
            verified.desired = DesiredState { slots, active, ..desired };
        }
        Ok(steps.first().filter(|_| is_repair).map(changed_kind))
    }

    /// Returns the addresses that stay on the node path: those of the last verification and those in the sets, as far as their
    /// owners are still in the mesh and not `handed_over`. A pod that was enrolled just before the handover, or by an earlier
    /// agent, is in no verified state.
    fn remaining_members(
        &self,
        state: &mut AgentState,
        handed_over: &BTreeSet<PodUid>,
        observed: &ObservedState,
    ) -> MemberAddresses {
        let mut members =
            self.verified.as_ref().map(|verified| verified.desired.members.clone()).unwrap_or_default();
        let mut unowned = BTreeSet::new();
        for (ip, uid) in observed.sets.values().flatten() {
            if let Some(uid) = uid {
                members.entry(*ip).or_insert_with(|| uid.clone());
            } else {
                unowned.insert(*ip); // by Istio's agent, which stores no owners
            }
        }
        let mut current = state.resolve_members(&members);
        current.retain(|ip, uid| {
            !handed_over.contains(uid) && (members.get(ip) == Some(uid) || unowned.contains(ip))
        });
        current
    }
}

/// Whether a rule jumps to the chains for probes of in-pod capture. Such a jump has to be the first rule of its chain, as ours has:
/// each would move ahead of the other again and again. Between the two, the order makes no difference.
fn leads_to_probes(rule: &SavedRule) -> bool {
    let target = rule.rule.as_ref().map(|rule| &rule.target);
    matches!(target, Some(Target::Jump(chain)) if ChainSet::PROBES.contains(&chain.0))
}
