//! One pass: observe, plan, apply, verify.

use std::{collections::BTreeMap, net::IpAddr, time::Instant};

use enrolment::ztunnel::{self, ZtunnelCandidate};
use model::{MemberAddresses, PodName, PodUid, Reason};
use node_plan::{
    DesiredState, KernelSlots, ObservedState, Operation, RouteEdit, SlotAssignment, ZtunnelFallback,
    ZtunnelInstance, ZtunnelSlot, assign_slots, plan_operations, prepare_slot,
};
use tracing::{debug, info, warn};

use super::{NodeCapture, VerifiedState, report_bypasses, report_status, report_unstable, shared};
use crate::node_watch::NodeChange;
use agent::{AgentState, HistoryEntry, ReconcileScope, join_reasons, summarize_steps};

/// Refuses numbers that other components use, unless an agent has applied the node path: then foreign additions are those
/// components' responsibility, and whatever they removed of ours is restored.
fn refuse_to_share(observed: &ObservedState) -> Result<(), Reason> {
    let is_new = observed.rules.is_empty() && observed.sets.is_empty() && observed.links.is_empty();
    let Some(foreign) = observed.foreign.first().filter(|_| is_new) else { return Ok(()) };
    Err(format!(
        "other components use what the node path needs ({} objects, the first: {foreign}): choose other tables with \
         --ambient-tables or priorities with --ambient-rule-priority, or remove them",
        observed.foreign.len()
    )
    .into())
}

/// The verb for addresses of a pod that joins.
pub(super) const ADDED: &str = "added to";

/// Located ztunnels, and the error of another one.
type RunningZtunnels = (Vec<(ZtunnelCandidate, ZtunnelInstance)>, Option<Reason>);

/// A pass after which the kernel matches the desired state.
#[derive(Debug)]
pub(super) struct NodePass {
    /// The error that remains although the kernel matches, if any.
    pub(super) lost: Option<Reason>,
    /// The kind of objects that other components had changed and the pass restored. With several kinds: that of the
    /// first step.
    pub(super) repaired: Option<NodeChange>,
}

impl NodeCapture {
    pub(super) fn run_pass(
        &mut self,
        state: &mut AgentState,
        scope: ReconcileScope,
        writer: Option<&str>,
    ) -> Result<NodePass, Reason> {
        let to_message = |error: node_capture::Error| error.to_string();
        self.verify_at = None; // a failed pass is followed by others
        self.unreported = self.unreported.saturating_add(1);
        let mut observed = self.path.observe_network().map_err(to_message)?;
        if self.applied.is_none() {
            refuse_to_share(&observed)?;
        }
        let scope = if self.has_same_links(&observed) { scope } else { ReconcileScope::Full };
        let known = self.known_slots(&observed);
        let (living, lost) = self.running_ztunnels(state, scope, &known)?;
        let desired = self.desired_state(state, &observed, &known, &living);
        self.desired = Some(desired.clone());
        let scope = if self.only_members_differ(&desired) { scope } else { ReconcileScope::Full };
        self.complete_observation(scope, &mut observed, &desired)?;
        let steps = plan_operations(&self.settings.node, Some(&desired), &observed);
        // Also if another component made its change before the verification that followed.
        let restoring = restoring_steps(&steps, self.applied.as_ref(), &desired);
        if !restoring.is_empty() && writer.is_none() {
            state.history.add_cause(|| "drift".to_owned()); // pods may join or leave in the same pass
        }
        let mut repaired = None;
        if !steps.is_empty() {
            self.apply_steps(state, &steps, &desired, &observed)?;
            self.applied = Some(desired.clone());
            // Drops notifications of our own changes; foreign changes are observed next.
            let _ = scope == ReconcileScope::Full && self.ztunnels.take_changes();
            observed = self.path.observe_network().map_err(to_message)?;
            self.complete_observation(scope, &mut observed, &desired)?;
            let left = plan_operations(&self.settings.node, Some(&desired), &observed);
            if let Some(step) = left.first() {
                if !restoring.is_empty() && has_leaked(&left) {
                    self.stability.record_conflict(self.started.elapsed());
                    self.report_conflict(state, &desired, &restoring, writer);
                }
                return Err(format!(
                    "the node path was changed again right after it was applied; the next step is: {step}"
                )
                .into());
            }
            if !restoring.is_empty() {
                report_repair(state, &restoring);
                self.note_repair(&restoring);
                repaired = restoring.first().map(changed_kind);
            }
        }
        if has_leaked(&restoring) {
            self.stability.record_observation(true, self.started.elapsed());
            self.report_conflict(state, &desired, &restoring, writer);
        } else if scope == ReconcileScope::Full {
            self.stability.record_observation(false, self.started.elapsed());
        }
        self.recheck_at = self.stability.recheck_delay().map(|delay| Instant::now() + delay);
        if !self.alone {
            for what in self.path.remove_elsewhere().map_err(to_message)? {
                info!(target: "ambient", rules = what, "removed stale rules from the other iptables backend");
            }
            self.alone = true;
        }
        state.notices.observe_ztunnel(desired.active.is_some(), self.fallback_effect(), Instant::now());
        let is_unstable = self.stability.is_unstable();
        let overruled = join_reasons(observed.bypass_reasons());
        let before = self.verified.iter().flat_map(|before| before.observed.bypass_reasons());
        if join_reasons(before) != overruled {
            match overruled.as_str() {
                "" => {
                    info!(target: "ambient", "no rules of other components precede ours on the node any more");
                }
                rules => {
                    warn!(target: "ambient", rules, writer, "rules of another component precede ours on the node, so that traffic of pods bypasses the mesh");
                }
            }
            state.history.record_change(HistoryEntry::for_overruling_rules(None, &overruled, writer));
        }
        report_status(state, &desired, &observed, &overruled, is_unstable);
        self.unreported = 0;
        self.refused_exceptions = report_bypasses(state, &desired, &overruled, is_unstable);
        // The file is read only while no agent runs: failing to write it keeps no pod from being enrolled now.
        let unwritten = shared::write_shared_config(&self.settings, &desired).err();
        let inactive = observed.inactive_rules().next().map(Reason::from);
        self.applied = Some(desired.clone());
        self.verified = Some(VerifiedState { desired, observed });
        self.fresh.clear();
        self.path.close_ztunnel_netns().map_err(to_message)?;
        Ok(NodePass { lost: inactive.or(lost).or(unwritten), repaired })
    }

    /// Reports what was just restored if it has to be restored repeatedly.
    fn report_conflict(
        &self,
        state: &mut AgentState,
        desired: &DesiredState,
        steps: &[Operation],
        writer: Option<&str>,
    ) {
        if self.stability.is_unstable() {
            let what = summarize_steps(steps);
            report_unstable(state, desired, (&what, writer), self.stability.repair_count());
        }
    }

    /// Returns the ztunnels' slots: those that the routes show, or else, if another component has removed the routes, those of
    /// the last verification.
    pub(super) fn known_slots(&self, observed: &ObservedState) -> KernelSlots {
        let mut known = KernelSlots::from(&self.settings.node, observed);
        let Some(VerifiedState { desired: verified, .. }) = &self.verified else { return known };
        for slot in ZtunnelSlot::BOTH {
            let ips = slot.part_mut(&mut known.ips);
            if ips.is_empty() {
                ips.extend(verified.ztunnel_in(slot).into_iter().flat_map(|ztunnel| &ztunnel.ips));
            }
        }
        known.active = known.active.or(verified.active);
        known
    }

    /// Returns the located ztunnels, and the error of one that could not be located. Fails if the kernel does not show
    /// where a ztunnel is that has a slot, because without it the slot would be removed, with its connections.
    pub(super) fn running_ztunnels(
        &mut self,
        state: &AgentState,
        scope: ReconcileScope,
        known: &KernelSlots,
    ) -> Result<RunningZtunnels, Reason> {
        let mut candidates = ztunnel::list_candidates(&state.index, &state.policy.ztunnel);
        for candidate in &mut candidates {
            candidate.ips.retain(|ip| !state.ledger.has_lost(&candidate.uid, *ip));
        }
        let chosen = ztunnel::active_candidate(&candidates).map(|active| active.uid.clone());
        let (mut living, mut problem) = (Vec::new(), None);
        for candidate in candidates.iter().filter(|candidate| !candidate.ips.is_empty()) {
            let has_slot = known.ips.iter().flatten().any(|ip| candidate.ips.contains(ip));
            match self.locate_candidate(scope, candidate) {
                Ok(generation) => living.push((candidate.clone(), generation)),
                Err(error) if has_slot && !error.is_absence() => {
                    return Err(format!("cannot locate ztunnel {}: {error}", candidate.name).into());
                }
                Err(error) if Some(&candidate.uid) == chosen.as_ref() => {
                    problem = Some(format!("ztunnel {} cannot be used: {error}", candidate.name).into());
                }
                // A ztunnel that starts or ends has no network yet, or none any longer.
                Err(error) => {
                    debug!(target: "ambient", ztunnel = %candidate.name, %error, "ztunnel cannot be located");
                }
            }
        }
        Ok((living, problem))
    }

    fn locate_candidate(
        &mut self,
        scope: ReconcileScope,
        candidate: &ZtunnelCandidate,
    ) -> Result<ZtunnelInstance, node_capture::Error> {
        let slots = self.verified.as_ref().map(|verified| &verified.desired.slots);
        let before = slots.into_iter().flatten().flatten().find(|slot| slot.uid == candidate.uid);
        match before {
            Some(before) if scope != ReconcileScope::Full && before.ips == candidate.ips => {
                Ok(ZtunnelInstance { dns: candidate.dns_capture, ..before.clone() })
            }
            _ => self.path.locate_ztunnel(&candidate.uid, &candidate.ips, candidate.dns_capture),
        }
    }

    fn desired_state(
        &mut self,
        state: &mut AgentState,
        observed: &ObservedState,
        known: &KernelSlots,
        living: &[(ZtunnelCandidate, ZtunnelInstance)],
    ) -> DesiredState {
        let (candidates, generations): (Vec<_>, Vec<_>) = living.iter().cloned().unzip();
        let active = ztunnel::active_candidate(&candidates).map(|active| &active.uid);
        let assigned = assign_slots(known, &generations, active);
        let coming = ztunnel::next_candidate(&candidates).map(|coming| &coming.uid);
        let SlotAssignment { slots, active } = prepare_slot(assigned, &generations, coming);
        let found = observed.sets.values().flatten();
        let inherited: MemberAddresses = found.filter_map(|(ip, uid)| Some((*ip, uid.clone()?))).collect();
        let members = state.resolve_members(&inherited);
        DesiredState { slots, active, members, fallback: self.fallback }
    }

    /// Makes the next check of the rules report them as changed, if these steps restored some.
    pub(super) fn note_repair(&self, steps: &[Operation]) {
        if steps.iter().any(|step| changed_kind(step) == NodeChange::Rules) {
            self.watch.note_repair();
        }
    }

    fn only_members_differ(&self, desired: &DesiredState) -> bool {
        self.verified.as_ref().is_some_and(|verified| has_same_path(&verified.desired, desired))
    }

    /// Returns whether none of our links was deleted or replaced. Only a full pass locates their ztunnel, in whose namespace
    /// they are created again unless it has ended.
    fn has_same_links(&self, observed: &ObservedState) -> bool {
        let numbers = |state: &ObservedState| -> Vec<_> {
            state.links.iter().map(|(name, link)| (name.clone(), link.index)).collect()
        };
        self.verified.as_ref().is_some_and(|verified| numbers(&verified.observed) == numbers(observed))
    }

    /// Adds the state of rules and of other namespaces, observed now or when everything was last as desired.
    fn complete_observation(
        &mut self,
        scope: ReconcileScope,
        observed: &mut ObservedState,
        desired: &DesiredState,
    ) -> Result<(), Reason> {
        if let Some(VerifiedState { observed: verified, .. }) =
            self.verified.as_ref().filter(|_| scope != ReconcileScope::Full)
        {
            observed.firewall.clone_from(&verified.firewall);
            observed.inactive.clone_from(&verified.inactive);
            observed.sysctls.clone_from(&verified.sysctls);
            observed.inside.clone_from(&verified.inside);
            for (name, link) in &mut observed.links {
                link.right = verified.links.get(name).is_some_and(|verified| verified.right);
            }
            return Ok(());
        }
        let to_message = |error: node_capture::Error| Reason::from(error.to_string());
        self.path.observe_firewall(observed).map_err(to_message)?;
        self.path.observe_slots(observed, &desired.slots).map_err(to_message)
    }

    /// Applies the steps, up to the first that fails.
    pub(super) fn apply_steps(
        &mut self,
        state: &mut AgentState,
        steps: &[Operation],
        desired: &DesiredState,
        observed: &ObservedState,
    ) -> Result<(), Reason> {
        // The slot alone is not enough: a successor replaces a ztunnel that died.
        let ztunnel = |desired: &DesiredState| desired.active_ztunnel().map(|ztunnel| ztunnel.uid.clone());
        let before = self.verified.as_ref().map(|verified| ztunnel(&verified.desired));
        let began = Instant::now();
        let done = steps.iter().try_for_each(|step| {
            let done = self.path.apply_step(step);
            state.metrics.count_operation(step.kind(), done.is_ok());
            debug!(target: "ambient", %step, "applying");
            done.map_err(|error| Reason::from(format!("{step}: {error}")))
        });
        let (cause, error) = (state.history.pass_cause(), done.as_ref().err().map(ToString::to_string));
        for (pod, what) in changed_pods(state, steps, observed) {
            let (cause, error, pod) = (cause.clone(), error.clone(), Some(pod.to_string()));
            state.history.record_change(HistoryEntry { cause, what, pod, took: began.elapsed(), error });
        }
        let (what, took) = (summarize_steps(steps), began.elapsed());
        state.history.record_change(HistoryEntry { cause, what, pod: None, took, error });
        done?;
        let slot = desired.active.map(ZtunnelSlot::number);
        if before.is_none_or(|before| before != ztunnel(desired)) {
            state.status.record_change();
            state.metrics.record_switch(slot, began.elapsed());
            match desired.active_ztunnel() {
                Some(ztunnel) => {
                    info!(target: "ambient", ztunnel = %ztunnel.uid, slot, "new connections go through ztunnel");
                }
                None => warn!(target: "ambient", effect = self.fallback_effect(), "no ztunnel is ready"),
            }
        }
        Ok(())
    }

    fn fallback_effect(&self) -> &'static str {
        match self.fallback {
            ZtunnelFallback::Hold => "TCP of enrolled pods is held until one is",
            ZtunnelFallback::Reject => "TCP of enrolled pods is rejected",
            ZtunnelFallback::Open => "TCP of enrolled pods goes outside the mesh",
        }
    }
}

/// Returns the pods whose addresses these steps add to the sets or remove, as far as they are known, each with a
/// description of the change.
fn changed_pods(
    state: &AgentState,
    steps: &[Operation],
    observed: &ObservedState,
) -> BTreeMap<PodName, String> {
    let mut changed: BTreeMap<(&PodUid, &str), Vec<String>> = BTreeMap::new();
    let owners: BTreeMap<IpAddr, &PodUid> =
        observed.sets.values().flatten().filter_map(|(ip, uid)| Some((*ip, uid.as_ref()?))).collect();
    for step in steps {
        let (verb, pairs): (_, Vec<_>) = match step {
            Operation::AddMembers(added) => (ADDED, added.iter().map(|(ip, uid)| (ip, uid)).collect()),
            Operation::RemoveMembers(ips) => {
                ("removed from", ips.iter().filter_map(|ip| Some((ip, *owners.get(ip)?))).collect())
            }
            _ => continue,
        };
        for (ip, uid) in pairs {
            changed.entry((uid, verb)).or_default().push(ip.to_string());
        }
    }
    let changed = changed.into_iter().filter_map(|((uid, verb), ips)| {
        let pod = state.index.pods().find(|pod| pod.metadata.uid == *uid)?;
        Some((pod.name(), describe_members(&ips, verb)))
    });
    changed.collect()
}

/// Describes a change of the sets for the history.
pub(super) fn describe_members(ips: &[String], verb: &str) -> String {
    format!("{verb} the sets of captured addresses: {}", ips.join(", "))
}

pub(super) fn report_repair(state: &AgentState, steps: &[Operation]) {
    let messages: Vec<String> = steps.iter().map(ToString::to_string).collect();
    state.metrics.count_repair("node");
    state.notices.report_repair("traffic of the node's pods to ztunnel", &messages);
}

/// Returns whether two states differ in their members at most, and these have the same families.
fn has_same_path(one: &DesiredState, other: &DesiredState) -> bool {
    (&one.slots, one.active, one.fallback) == (&other.slots, other.active, other.fallback)
        && one.families() == other.families()
}

/// Returns the steps that restore what another component has changed since `applied`, also while pods join or leave.
fn restoring_steps(
    steps: &[Operation],
    applied: Option<&DesiredState>,
    desired: &DesiredState,
) -> Vec<Operation> {
    let Some(applied) = applied.filter(|applied| has_same_path(applied, desired)) else { return Vec::new() };
    let mut kept = applied.members.clone();
    kept.retain(|ip, uid| desired.members.get(ip) == Some(uid));
    let restores = |step: &&Operation| applied == desired || is_needed_for(step, &kept);
    steps.iter().filter(restores).cloned().collect()
}

/// Returns whether a step is necessary for these members, also without those that have joined or left since.
fn is_needed_for(step: &Operation, members: &MemberAddresses) -> bool {
    match step {
        Operation::AddMembers(added) => added.iter().any(|(ip, uid)| members.get(ip) == Some(uid)),
        Operation::RemoveMembers(_) => false,
        Operation::Routes(_, edits) => edits.iter().any(|edit| match edit {
            RouteEdit::Replace(route) => route.dst.is_none_or(|dst| members.contains_key(&dst.addr())),
            RouteEdit::Delete(_) => false,
        }),
        _ => true,
    }
}

/// Returns whether traffic could bypass ztunnel without what these steps restore. Without links, routes or settings it
/// is held or lost.
fn has_leaked(steps: &[Operation]) -> bool {
    steps.iter().any(|step| {
        use Operation::{AddMembers, AddRule, CreateSet, Firewall};
        matches!(step, Firewall { .. } | AddRule(..) | AddMembers(_) | CreateSet(_))
    })
}

pub(super) fn changed_kind(step: &Operation) -> NodeChange {
    match step {
        Operation::Firewall { .. } | Operation::RemoveChains(_) => NodeChange::Rules,
        Operation::CreateSet(_)
        | Operation::DestroySet(_)
        | Operation::AddMembers(_)
        | Operation::RemoveMembers(_) => NodeChange::Sets,
        _ => NodeChange::Network,
    }
}

#[cfg(test)]
mod tests {
    use model::Family;
    use node_plan::{NetnsPlace, NodeConfig, member_routes, policy_rules};

    use super::*;

    #[test]
    fn drift_is_recognised_while_pods_join_and_leave() {
        let (config, [stays, joins, leaves]) =
            (NodeConfig::default(), [5, 6, 7].map(|last| IpAddr::from([10, 0, 0, last])));
        let state = |members: &[IpAddr]| DesiredState {
            members: members.iter().map(|ip| (*ip, PodUid::from("u1"))).collect(),
            ..DesiredState::default()
        };
        let added = |ip| Operation::AddMembers(vec![(ip, "u1".into())]);
        let routes = |ip| {
            let routes = member_routes(&config, ip, None, ZtunnelFallback::Hold);
            Operation::Routes(NetnsPlace::Node, routes.into_iter().map(RouteEdit::Replace).collect())
        };
        let rule = Operation::AddRule(NetnsPlace::Node, policy_rules(&config, Family::V4).remove(0));
        let removed = Operation::RemoveMembers(vec![leaves]);
        let steps = [routes(joins), routes(stays), rule.clone(), added(joins), added(stays), removed];
        let (before, now) = (state(&[stays, leaves]), state(&[stays, joins]));
        assert_eq!(restoring_steps(&steps, Some(&before), &now), [routes(stays), rule, added(stays)]);
        assert_eq!(restoring_steps(&steps, Some(&now), &now), steps);
        let other_path = DesiredState { fallback: ZtunnelFallback::Open, ..before };
        for applied in [None, Some(&other_path)] {
            assert_eq!(restoring_steps(&steps, applied, &now), []);
        }
    }
}
