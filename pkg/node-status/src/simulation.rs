//! Simulation of a change of labels, by the decision that the agent makes.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use agent::{AgentSnapshot, CaptureSnapshot, KnownPod};
use capture_modes::CaptureSettings;
use model::{ExistingConnections, Namespace, Pod, PodUid};
use netns::Netns;
use planner::{
    EnrolmentPolicy,
    ambient::{AmbientStanding, pod_standing},
    exceptions::RequestedExceptions,
    inpod::{EffectiveOptions, InPodAnnotations},
};
use report::{
    LabelChange, MembershipEffect, NodeSimulation, RedirectionMode, SIMULATION_SCHEMA, SimulatedPod,
    StateReason,
};
use sockdiag::TcpSockets;
use wire::PodRecord;

use crate::{
    mode_of,
    pods::{SidecarDecision, decide_sidecar, reason_of},
    records::recorded_namespaces,
    sidecar::{self, NetnsPaths},
};

/// For the connections of all pods that would join.
const LIMIT: Duration = Duration::from_secs(4);

/// Returns what a change of labels would do to the node's pods, and changes nothing. Open connections of pods that would join are
/// counted, in the network namespaces that belong to the pods' addresses.
pub(super) fn simulate(
    settings: &CaptureSettings,
    snapshot: &AgentSnapshot,
    records: &[Arc<PodRecord>],
    change: &LabelChange,
) -> NodeSimulation {
    let mode = mode_of(&snapshot.way);
    let is_concerned = |known: &&KnownPod| {
        let meta = &known.pod.metadata;
        meta.namespace == change.namespace && (change.pod.is_none() || change.is_of_pod(&meta.name))
    };
    let known: Vec<&KnownPod> = snapshot.pods.iter().filter(is_concerned).collect();
    let mut pods: Vec<SimulatedPod> =
        known.iter().map(|known| simulate_pod(known, mode, settings, change)).collect();
    let joining: Vec<(&KnownPod, &mut SimulatedPod)> =
        known.into_iter().zip(&mut pods).filter(|(_, pod)| pod.effect() == MembershipEffect::Joins).collect();
    count_connections(settings, records, joining);
    let in_pod = settings.capture.in_pod();
    let resets = in_pod.is_some_and(|config| config.existing == ExistingConnections::Reset);
    NodeSimulation {
        schema: SIMULATION_SCHEMA.to_owned(),
        mode,
        synced: snapshot.synced,
        ztunnel_ready: is_ztunnel_ready(&snapshot.way),
        problem: snapshot.trouble.clone(),
        resets_connections: resets,
        pods,
    }
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

fn simulate_pod(
    known: &KnownPod,
    mode: Option<RedirectionMode>,
    settings: &CaptureSettings,
    change: &LabelChange,
) -> SimulatedPod {
    let policy = &settings.policy;
    let (mut pod, mut namespace) = (known.pod.clone(), known.namespace.clone());
    match (&change.pod, &mut namespace) {
        (Some(_), _) => change.apply_to(&mut pod.metadata.labels),
        (None, Some(namespace)) => change.apply_to(&mut namespace.metadata.labels),
        (None, None) => {} // the decision says that the namespace is not known
    }
    let (before, _) = pod_membership(&known.pod, known.namespace.as_ref(), mode, policy);
    let (after, reason) = pod_membership(&pod, namespace.as_ref(), mode, policy);
    let meta = &known.pod.metadata;
    let (exceptions, refused_exceptions) = effective_exceptions(&pod, namespace.as_ref(), after, settings);
    SimulatedPod {
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        before,
        after,
        reason,
        connections: None,
        exceptions,
        refused_exceptions,
    }
}

/// Returns what would stay outside of the mesh by intent, and the exceptions that would be refused.
fn effective_exceptions(
    pod: &Pod,
    namespace: Option<&Namespace>,
    mode: Option<RedirectionMode>,
    settings: &CaptureSettings,
) -> (Vec<String>, Vec<String>) {
    let asked = InPodAnnotations::read_from(pod);
    let inherited =
        namespace.map(|namespace| RequestedExceptions::read_from(&namespace.metadata.annotations));
    match (mode, settings.capture.in_pod()) {
        (Some(RedirectionMode::InPod), Some(config)) => {
            let EffectiveOptions { options, refused } =
                asked.effective_options(inherited.as_ref(), &config.pods);
            (options.exceptions.kind_descriptions(), refused)
        }
        (Some(RedirectionMode::Node), _) => (Vec::new(), asked.refused_on_node(inherited.as_ref())),
        _ => Default::default(),
    }
}

/// Returns the mode in which a pod belongs to the mesh, and why.
fn pod_membership(
    pod: &Pod,
    namespace: Option<&Namespace>,
    mode: Option<RedirectionMode>,
    policy: &EnrolmentPolicy,
) -> (Option<RedirectionMode>, StateReason) {
    let standing = pod_standing(pod, namespace, policy);
    if !matches!(standing, AmbientStanding::Out(_)) {
        return (mode, reason_of(&standing));
    }
    match decide_sidecar(pod, namespace, policy) {
        SidecarDecision::Redirected(_) | SidecarDecision::Unreadable(_) => {
            (Some(RedirectionMode::Sidecar), SidecarDecision::state_reason())
        }
        SidecarDecision::Outside(reason) => (None, reason_of(&AmbientStanding::Out(reason))),
        SidecarDecision::Ambient => (None, reason_of(&standing)),
    }
}

/// Counts connections with other hosts: those within a pod never leave it.
fn count_connections(
    settings: &CaptureSettings,
    records: &[Arc<PodRecord>],
    joining: Vec<(&KnownPod, &mut SimulatedPod)>,
) {
    if joining.is_empty() {
        return;
    }
    let places = NetnsPaths { netns_directory: settings.netns_directory.clone(), proc: None };
    let Ok(all) = places.list_namespaces() else { return };
    let all = sidecar::by_address(all);
    let uids: BTreeSet<&PodUid> = joining.iter().map(|(known, _)| &known.pod.metadata.uid).collect();
    let recorded = recorded_namespaces(records, |uid| uids.contains(uid));
    let began = Instant::now();
    for (known, pod) in joining {
        if began.elapsed() > LIMIT {
            return;
        }
        let recorded = recorded.get(&known.pod.metadata.uid).copied();
        let netns = all.netns_of_pod(&known.pod.status.ips(), recorded);
        pod.connections = netns.and_then(|netns| open_connections(netns));
    }
}

/// `None`: the kernel does not say.
fn open_connections(netns: &Netns) -> Option<usize> {
    let sockets = netns.run_in(TcpSockets::of_this_netns).ok()?.ok()?;
    Some(sockets.connected.iter().filter(|socket| !socket.is_local()).count())
}
