//! Simulation of a change of labels or settings, by the agent's own decision.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use agent::{AgentSnapshot, CaptureSnapshot, KnownPod};
use agent_protocol::PodRecord;
use capture_modes::{CaptureConfig, CaptureSettings, InPodConfig};
use daemon_settings::SimulatedSettings;
use enrolment::{
    EnrolmentPolicy, PodDecision, SkipReason,
    ambient::{AmbientStanding, pod_standing},
    exceptions::RequestedExceptions,
    inpod::{EffectiveOptions, InPodAnnotations},
};
use hostnet::RtnetlinkHandle;
use model::{ExistingConnections, Family, Namespace, Pod, PodUid};
use pod_capture::{JoiningSockets, PodRulesSpec};
use report::{
    BypassView, LabelChange, MembershipEffect, NodeSimulation, RedirectionMode, SIMULATION_SCHEMA,
    SimulatedPod, StateReason,
};
use rules::inpod::{PodExceptions, PodOptions};

use crate::{
    inpod::bypass_view,
    pods::{decide_sidecar, sidecar_reason, state_reason},
    records::{NetnsOwners, netns_by_record},
    redirection_mode,
    sidecar::{self, NetnsPaths},
};

/// Time limit of counting connections, for all pods that would join.
const LIMIT: Duration = Duration::from_secs(4);

/// Basis of an agent's decisions.
struct DecisionBasis<'a> {
    settings: &'a CaptureSettings,
    /// Mode in which it captures ambient pods; `None`: ambient mode is off.
    mode: Option<RedirectionMode>,
    policy: EnrolmentPolicy,
}

impl DecisionBasis<'_> {
    fn new(settings: &CaptureSettings, mode: Option<RedirectionMode>) -> DecisionBasis<'_> {
        let policy = EnrolmentPolicy { ambient: mode.is_some(), ..settings.policy.clone() };
        DecisionBasis { settings, mode, policy }
    }
}

/// Simulates a change of labels for the node's pods, without changing anything. Open connections of pods that would join are
/// counted, in the network namespaces with the pods' addresses, and conflicts with ztunnel's ports there are found.
pub(super) fn simulate_labels(
    settings: &CaptureSettings,
    snapshot: &AgentSnapshot,
    records: &[Arc<PodRecord>],
    change: &LabelChange,
) -> NodeSimulation {
    let is_concerned = |known: &&KnownPod| {
        let meta = &known.pod.metadata;
        change.concerns_pod(&meta.namespace, &meta.name) && !known.is_gone()
    };
    let known: Vec<&KnownPod> = snapshot.pods.iter().filter(is_concerned).collect();
    let basis = DecisionBasis::new(settings, redirection_mode(&snapshot.capture));
    let pods = known.iter().map(|known| {
        let (mut pod, mut namespace) = (known.pod.clone(), known.namespace.clone());
        match (&change.pod, &mut namespace) {
            (Some(_), _) => change.apply_to(&mut pod.metadata.labels),
            (None, Some(namespace)) => change.apply_to(&mut namespace.metadata.labels),
            (None, None) => {} // the decision reports that the namespace is unknown
        }
        simulate_pod(known, &basis, &pod, namespace.as_ref(), &basis)
    });
    let mut pods: Vec<SimulatedPod> = pods.collect();
    add_sockets(settings, records, &known, &basis, &mut pods);
    let simulation = build_simulation(settings, &basis, snapshot, snapshot.synced, pods);
    let namespace_missing =
        simulation.synced && known.is_empty() && !snapshot.namespaces.contains(&change.namespace);
    NodeSimulation { namespace_missing, ..simulation }
}

/// Simulates an agent with other settings for the node's pods, like [`simulate_labels`].
pub(super) fn simulate_settings(
    now: (&CaptureSettings, bool),
    snapshot: &AgentSnapshot,
    records: &[Arc<PodRecord>],
    other: SimulatedSettings,
) -> NodeSimulation {
    let (settings, is_ambient) = now;
    let before = DecisionBasis::new(settings, redirection_mode(&snapshot.capture));
    let after = DecisionBasis::new(&other.capture, mode_with(&other, before.mode));
    let known: Vec<&KnownPod> = snapshot.pods.iter().filter(|known| !known.is_gone()).collect();
    let mut pods: Vec<SimulatedPod> = known
        .iter()
        .map(|known| simulate_pod(known, &before, &known.pod, known.namespace.as_ref(), &after))
        .collect();
    // Without ambient mode namespaces are not followed.
    let synced = if is_ambient { snapshot.synced } else { snapshot.has_pods };
    add_sockets(settings, records, &known, &after, &mut pods);
    let mut answer = build_simulation(settings, &after, snapshot, synced, pods);
    answer.not_simulated = other.not_simulated;
    if !is_ambient && other.ambient {
        let why = "labels of namespaces: without ambient mode, the agent does not know them, so pods that depend on them are unknown";
        answer.not_simulated.push(why.to_owned());
        if matches!(other.capture.capture, CaptureConfig::Auto(_)) {
            let why = "the capture mode: with AMBIENT_CAPTURE=auto the node's ztunnel decides";
            answer.not_simulated.push(why.to_owned());
        }
    }
    answer
}

/// Returns the capture mode of an agent with these settings. The node's ztunnel is unchanged, so an agent that chooses by it
/// chooses the mode in use now, if any.
fn mode_with(other: &SimulatedSettings, now: Option<RedirectionMode>) -> Option<RedirectionMode> {
    match (&other.capture.capture, now) {
        _ if !other.ambient => None,
        (CaptureConfig::Node, _) => Some(RedirectionMode::Node),
        (CaptureConfig::InPod(_), _) => Some(RedirectionMode::InPod),
        (CaptureConfig::Auto(_), Some(mode)) => Some(mode),
        (CaptureConfig::Auto(_), None) if other.capture.starts_in_pod => Some(RedirectionMode::InPod),
        (CaptureConfig::Auto(_), None) => Some(RedirectionMode::Node),
    }
}

/// Builds the report. `now`: the agent's settings, which have the detected sources of probes.
fn build_simulation(
    now: &CaptureSettings,
    basis: &DecisionBasis<'_>,
    snapshot: &AgentSnapshot,
    synced: bool,
    pods: Vec<SimulatedPod>,
) -> NodeSimulation {
    let probe_sources = probe_sources(now, basis);
    NodeSimulation {
        schema: SIMULATION_SCHEMA.to_owned(),
        mode: basis.mode,
        synced: synced && snapshot.stale.is_empty(),
        ztunnel_ready: is_ztunnel_ready(&snapshot.capture),
        problem: snapshot.problem.clone(),
        node_probe_sources: own_addresses(&probe_sources),
        probe_sources,
        pods,
        ..NodeSimulation::default()
    }
}

fn probe_sources(now: &CaptureSettings, basis: &DecisionBasis<'_>) -> Vec<IpAddr> {
    let then = basis.settings.capture.in_pod().filter(|_| basis.mode == Some(RedirectionMode::InPod));
    let Some(then) = then else { return Vec::new() };
    let probes = now.capture.in_pod().unwrap_or(then).rules.probes;
    then.captured_families().into_iter().map(|family| probes.address_for(family)).collect()
}

/// Returns those that are addresses of the calling thread's network namespace, the node's; empty if the kernel does not list these.
fn own_addresses(ips: &[IpAddr]) -> Vec<IpAddr> {
    let listed = RtnetlinkHandle::open().and_then(|mut handle| handle.list_addresses()).unwrap_or_default();
    ips.iter().copied().filter(|ip| listed.iter().any(|address| address.ip == *ip)).collect()
}

fn is_ztunnel_ready(mode: &CaptureSnapshot) -> bool {
    match mode {
        CaptureSnapshot::Node { desired, .. } => {
            desired.as_ref().is_some_and(|desired| desired.active.is_some())
        }
        CaptureSnapshot::InPod { ztunnels, .. } => ztunnels.iter().any(|ztunnel| ztunnel.in_sync),
        CaptureSnapshot::None => false,
    }
}

/// Decides on a pod in its current and in its simulated state.
fn simulate_pod(
    known: &KnownPod,
    now: &DecisionBasis<'_>,
    pod: &Pod,
    namespace: Option<&Namespace>,
    then: &DecisionBasis<'_>,
) -> SimulatedPod {
    let (before, _) = pod_membership(&known.pod, known.namespace.as_ref(), now);
    let (after, reason) = pod_membership(pod, namespace, then);
    let meta = &known.pod.metadata;
    let undetermined = reason.code == SkipReason::NamespaceUnknown.code();
    let in_pod = InPodDecision::new(known, after, then.settings);
    let changes = match (InPodDecision::new(known, before, now.settings), &in_pod) {
        (Some(now), Some(then)) => option_changes(&now, then),
        _ => Vec::new(),
    };
    let (exceptions, refused_exceptions) = match (&in_pod, after) {
        (Some(decision), _) => {
            let EffectiveOptions { options, refused } = &decision.effective;
            (options.outside_descriptions(), refused.clone())
        }
        (None, Some(RedirectionMode::Node)) => {
            let asked = InPodAnnotations::read_from(&known.pod);
            (Vec::new(), asked.exceptions.refused_on_node(inherited_exceptions(known).as_ref()))
        }
        _ => Default::default(),
    };
    SimulatedPod {
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        before,
        after,
        reason,
        exceptions,
        refused_exceptions,
        changes,
        undetermined,
        ..SimulatedPod::default()
    }
}

/// In-pod capture of a pod. Labels are irrelevant: options are requested by annotations.
struct InPodDecision<'a> {
    config: &'a InPodConfig,
    families: Vec<Family>,
    effective: EffectiveOptions,
    existing: ExistingConnections,
}

impl InPodDecision<'_> {
    /// Returns the decision; `None`: the pod is not in this mode.
    fn new<'a>(
        known: &KnownPod,
        mode: Option<RedirectionMode>,
        settings: &'a CaptureSettings,
    ) -> Option<InPodDecision<'a>> {
        let config = settings.capture.in_pod().filter(|_| mode == Some(RedirectionMode::InPod))?;
        let asked = InPodAnnotations::read_from(&known.pod);
        Some(InPodDecision {
            config,
            families: config.within_kernel().captured_families(),
            effective: asked.effective_options(inherited_exceptions(known).as_ref(), &config.pods),
            existing: asked.existing.unwrap_or(config.existing),
        })
    }

    fn spec(&self) -> PodRulesSpec<'_> {
        PodRulesSpec {
            config: &self.config.rules,
            pod: &self.effective.options,
            families: &self.families,
            existing: self.existing,
        }
    }
}

fn inherited_exceptions(known: &KnownPod) -> Option<RequestedExceptions> {
    known.namespace.as_ref().map(|namespace| RequestedExceptions::read_from(&namespace.metadata.annotations))
}

/// Returns the effect of other settings on a pod that stays in in-pod capture.
fn option_changes(now: &InPodDecision<'_>, then: &InPodDecision<'_>) -> Vec<String> {
    let (before, after) = (&now.effective.options, &then.effective.options);
    // DNS is among the options: settings affect it, too.
    let [old, new] = [before, after].map(|options| {
        let exceptions = PodExceptions { dns: false, ..options.exceptions.clone() };
        PodOptions { exceptions, ..options.clone() }.outside_descriptions()
    });
    let lost = old.iter().filter(|text| !new.contains(text)).map(|text| format!("no longer outside: {text}"));
    let gained = new.iter().filter(|text| !old.contains(text)).map(|text| format!("newly outside: {text}"));
    let mut changes: Vec<String> = lost.chain(gained).collect();
    let has_v6 = |decision: &InPodDecision<'_>| decision.families.contains(&Family::V6);
    let switches = [(before.dns, after.dns, "its DNS"), (has_v6(now), has_v6(then), "its IPv6 traffic")];
    changes.extend(switches.into_iter().filter(|(before, after, _)| before != after).map(
        |(_, after, what)| match after {
            true => format!("{what} would be captured"),
            false => format!("{what} would no longer be captured"),
        },
    ));
    if now.existing != then.existing {
        let outcome = if then.existing == ExistingConnections::Reset { "reset" } else { "kept" };
        changes.push(format!("connections that it has when it is captured again would be {outcome}"));
    }
    changes
}

/// Returns the mode in which a pod belongs to the mesh, and why.
fn pod_membership(
    pod: &Pod,
    namespace: Option<&Namespace>,
    basis: &DecisionBasis<'_>,
) -> (Option<RedirectionMode>, StateReason) {
    let standing = pod_standing(pod, namespace, &basis.policy);
    let decision = decide_sidecar(pod, namespace, &basis.policy);
    match (&standing, decision) {
        (AmbientStanding::Member { .. } | AmbientStanding::Pending(_), _) if basis.mode.is_some() => {
            (basis.mode, state_reason(&standing))
        }
        (_, Ok(PodDecision::Sidecar(_)) | Err(_)) => (Some(RedirectionMode::Sidecar), sidecar_reason()),
        (AmbientStanding::Member { .. } | AmbientStanding::Pending(_), _) => {
            let (code, message) = ("ambient-off".to_owned(), "ambient mode is off".to_owned());
            (None, StateReason { code, message })
        }
        (_, Ok(PodDecision::Skip(reason))) => (None, state_reason(&AmbientStanding::Out(reason))),
        (_, Ok(PodDecision::Ambient(_))) => (None, state_reason(&standing)),
    }
}

/// Counts connections of the pods that would join and that capture would affect, determines their treatment, and finds ports of
/// ztunnel that the pods use themselves.
fn add_sockets(
    settings: &CaptureSettings,
    records: &[Arc<PodRecord>],
    known: &[&KnownPod],
    then: &DecisionBasis<'_>,
    pods: &mut [SimulatedPod],
) {
    let of_joining = |(_, pod): &(&&KnownPod, &mut SimulatedPod)| pod.effect() == MembershipEffect::Joins;
    let joining = known.iter().zip(pods).filter(of_joining);
    let joining: Vec<_> = joining
        .map(|(known, pod)| {
            let in_pod = InPodDecision::new(known, pod.after, then.settings);
            pod.resets_connections =
                in_pod.as_ref().is_some_and(|decision| decision.existing == ExistingConnections::Reset);
            (known, pod, in_pod)
        })
        .collect();
    if joining.is_empty() {
        return;
    }
    let places = NetnsPaths { netns_directory: &settings.netns_directory, proc: None };
    let Ok(all) = places.list_netns() else { return };
    let all = sidecar::by_address(all);
    let uids: BTreeSet<&PodUid> = joining.iter().map(|(known, ..)| &known.pod.metadata.uid).collect();
    let recorded = netns_by_record(records, |uid| uids.contains(uid));
    let (owners, began) = (NetnsOwners::from_records(records), Instant::now());
    for (known, pod, in_pod) in joining {
        if began.elapsed() > LIMIT {
            break;
        }
        let recorded = recorded.get(&known.pod.metadata.uid).copied();
        let (namespace, name) = (&pod.namespace, &pod.name);
        let netns = all.find_pod_netns(&known.pod.status.ips(), recorded, |netns| {
            owners.belongs_to_another(netns, namespace, name)
        });
        let spec = in_pod.as_ref().map(InPodDecision::spec);
        let found =
            netns.and_then(|netns| netns.run_in(|| pod_capture::joining_sockets(spec.as_ref())).ok()?);
        let Some(JoiningSockets { redirected, taken_ports }) = found else { continue };
        let BypassView { count, connections } = bypass_view(&redirected);
        (pod.connections, pod.listed_connections) = (Some(count), connections);
        pod.taken_ports = taken_ports.into_iter().map(|port| port.0).collect();
    }
}

#[cfg(test)]
mod tests;
