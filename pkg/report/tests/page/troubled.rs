//! Nodes with one fault common to many pods.

use report::{
    CaptureState, Comparison, KernelView, NetworkState, PodState, RedirectionMode, StatePart, StateReport,
    Unobserved, ZtunnelView,
};

use super::well;

/// Node-level capture, no ztunnel is ready, and connections wait for one.
pub(crate) fn no_ztunnel_hold() -> StateReport {
    let mut state = well();
    state.ztunnels[0].ready = false;
    state.ztunnels[0].active = false;
    state.node.active_slot = None;
    members(&mut state).for_each(|pod| pod.capture = CaptureState::Held);
    state
}

/// As [`no_ztunnel_hold`], but connections bypass the mesh.
pub(crate) fn no_ztunnel_open() -> StateReport {
    let mut state = no_ztunnel_hold();
    state.node.no_ztunnel_policy = Some("open".into());
    members(&mut state).for_each(|pod| pod.capture = CaptureState::Bypassing);
    state
}

/// In-pod capture, and there is no ztunnel: pods have no rules yet. One has a sidecar, and does not need it.
pub(crate) fn no_ztunnel_in_pod() -> StateReport {
    let mut state = well();
    state.node.mode = Some(RedirectionMode::InPod);
    state.node.no_ztunnel_policy = None;
    state.node.active_slot = None;
    state.network = NetworkState::default();
    state.ztunnels.clear();
    for pod in members(&mut state) {
        pod.capture = CaptureState::Bypassing;
        pod.mode = Some(RedirectionMode::InPod);
        pod.redirection_annotation = None;
        pod.last_transition_time = None;
        pod.kernel = KernelView { netns: pod.kernel.netns, ..KernelView::default() };
        pod.ztunnel = Some(ZtunnelView::default());
    }
    let sidecar = &mut state.pods[7];
    sidecar.capture = CaptureState::Captured;
    sidecar.mode = Some(RedirectionMode::Sidecar);
    sidecar.ztunnel = None;
    sidecar.kernel.observed = vec!["its rules are in place".into()];
    state
}

/// Pods bypass the mesh for two causes: a set was flushed, and one pod cannot be captured at all.
pub(crate) fn two_causes() -> StateReport {
    let mut state = well();
    let desired = state.network.ipsets.desired.clone();
    state.network.ipsets = Comparison::compare_sets(desired.clone(), desired[4..].to_vec());
    for pod in &mut state.pods[..4] {
        pod.capture = CaptureState::Bypassing;
        pod.kernel.differences = vec![format!("{} is not in the set of enrolled addresses", pod.ips[0])];
    }
    let refused = &mut state.pods[10];
    refused.capture = CaptureState::Bypassing;
    refused.kernel.observed.clear();
    refused.problem = Some("its link is a bridge's, not a veth of its own".into());
    state
}

/// The kernel cannot be queried.
pub(crate) fn unknown() -> StateReport {
    let mut state = well();
    let why = "iptables-save: Operation not permitted";
    state.observation.unobserved = vec![Unobserved::new(StatePart::Network, why)];
    state.network.firewall.observed = None;
    state.network.ipsets.observed = None;
    for pod in members(&mut state) {
        pod.capture = CaptureState::Unknown;
        pod.last_transition_time = None;
        pod.kernel = KernelView { unobserved: Some(why.into()), ..KernelView::default() };
    }
    state
}

fn members(state: &mut StateReport) -> impl Iterator<Item = &mut PodState> {
    state.pods.iter_mut().filter(|pod| pod.mode.is_some())
}
