//! Faults of the node, and their consequences for a pod.

use super::{NodeCase, asked, explain_pod, node};
use crate::{
    CaptureState, Comparison, DifferenceKind, InstalledFile, Observer, PartHealth, PodVerdict,
    RedirectionMode, StateDifference, StatePart, StateReport, Unobserved, ZtunnelView,
};

fn file(kind: &str) -> InstalledFile {
    InstalledFile { kind: kind.into(), path: "/f".into(), correct: false, message: "it is stale".into() }
}

#[test]
fn faults_of_the_node_are_told_with_the_pod() {
    let cases: &[NodeCase] = &[
        (
            RedirectionMode::Node,
            no_ztunnel,
            "no-ztunnel-hold",
            PodVerdict::Unhealthy,
            "connections are held back until one is",
        ),
        (
            RedirectionMode::Node,
            |state| {
                no_ztunnel(state);
                state.node.no_ztunnel_policy = Some("reject".into());
            },
            "no-ztunnel-reject",
            PodVerdict::Unhealthy,
            "connections are refused",
        ),
        (
            RedirectionMode::Node,
            |state| {
                no_ztunnel(state);
                state.node.no_ztunnel_policy = Some("open".into());
                state.pods[0].capture = CaptureState::Bypassing;
            },
            "no-ztunnel-open",
            PodVerdict::Unhealthy,
            "its traffic bypasses the mesh until one is",
        ),
        (
            RedirectionMode::InPod,
            |state| {
                state.ztunnels[0].connected = Some(false);
                state.pods[0].capture = CaptureState::Held;
                state.pods[0].ztunnel = Some(ZtunnelView::default());
            },
            "ztunnel-not-connected",
            PodVerdict::Unhealthy,
            "No ztunnel is connected to the agent, so ztunnel does not serve the pod shop/web.",
        ),
        (
            RedirectionMode::InPod,
            |state| {
                state.ztunnels.clear();
                state.pods[0].capture = CaptureState::Pending;
                state.pods[0].ztunnel = Some(ZtunnelView::default());
            },
            "ztunnel-not-connected",
            PodVerdict::Unhealthy,
            "There is no ztunnel on this node",
        ),
        (
            RedirectionMode::Node,
            |state| {
                out_of_set(state);
                state.pods[0].capture = CaptureState::Bypassing;
            },
            "address-not-in-set",
            PodVerdict::Unhealthy,
            "The address 10.0.0.7 of the pod shop/web is missing in the set",
        ),
        (
            RedirectionMode::InPod,
            out_of_set,
            "probe-address-missing",
            PodVerdict::Unhealthy,
            "probes of it may fail",
        ),
        (
            RedirectionMode::Node,
            |state| state.network.rules.differences = vec![missing("ip -4 rule priority 100")],
            "node-drift",
            PodVerdict::Unhealthy,
            "differs from the desired state in 1 place (rules, missing: ip -4 rule priority 100).",
        ),
        (
            RedirectionMode::Sidecar,
            |state| state.network.rules.differences = vec![missing("x")],
            "captured-sidecar",
            PodVerdict::Healthy,
            "is captured",
        ),
        (
            RedirectionMode::Node,
            |state| state.node.synced = false,
            "not-synced",
            PodVerdict::Unhealthy,
            "list of pods and namespaces",
        ),
        (
            RedirectionMode::Node,
            |state| state.observation.unobserved = vec![Unobserved::new(StatePart::ApiObjects, "403")],
            "watch-failed",
            PodVerdict::Unknown,
            "may not know the node's pods and their namespaces as they are: 403",
        ),
        (
            RedirectionMode::Node,
            |state| {
                state.observation.unobserved = vec![Unobserved::new(StatePart::ApiObjects, "403")];
                state.pods[0].capture = CaptureState::Pending;
            },
            "watch-failed",
            PodVerdict::Unhealthy,
            "is being captured. But the agent may not know",
        ),
        (
            RedirectionMode::Node,
            |state| state.node.problem = Some("ipset is not in this kernel".into()),
            "node-degraded",
            PodVerdict::Unhealthy,
            "ipset is not in this kernel",
        ),
        (
            RedirectionMode::Node,
            |state| state.network.foreign = vec!["table 100 has routes of others".into()],
            "foreign",
            PodVerdict::Unhealthy,
            "Another program is in conflict with the agent: table 100 has routes of others.",
        ),
        (
            RedirectionMode::Node,
            |state| state.observation.observer = Observer::Command,
            "agent-down",
            PodVerdict::Unhealthy,
            "agent does not run",
        ),
        (
            RedirectionMode::Node,
            |state| {
                state.observation.observer = Observer::Command;
                state.pods[0].capture = CaptureState::Unknown;
            },
            "agent-down",
            PodVerdict::Unknown,
            "is unknown",
        ),
        (
            RedirectionMode::Sidecar,
            |state| state.installation = vec![file("kubeconfig")],
            "kubeconfig",
            PodVerdict::Unhealthy,
            "missing or stale",
        ),
        (
            RedirectionMode::Node,
            |state| state.installation = vec![file("entry")],
            "entry",
            PodVerdict::Unhealthy,
            "outside of the mesh",
        ),
        (
            RedirectionMode::InPod,
            |state| state.installation = vec![file("plugin")],
            "plugin",
            PodVerdict::Unhealthy,
            "new pods will not start (/f: it is stale).",
        ),
        (
            RedirectionMode::Node,
            |state| state.installation = vec![file("shared-config")],
            "shared-config",
            PodVerdict::Unhealthy,
            "share",
        ),
        (
            RedirectionMode::Node,
            |state| {
                state.health = vec![PartHealth {
                    component: "installer".into(),
                    healthy: false,
                    message: "the disk is full".into(),
                }];
            },
            "installer-unhealthy",
            PodVerdict::Unhealthy,
            "The pod shop/web is captured: rules of the node redirect its traffic to ztunnel. But the installer is unhealthy: the disk is full.",
        ),
    ];
    for (way, change, code, verdict, words) in cases {
        let mut state = node(*way);
        change(&mut state);
        let answer = asked(&state);
        assert_eq!((answer.code.as_str(), answer.verdict), (*code, *verdict), "{answer}");
        assert!(answer.message.contains(words), "{words}: {answer}");
    }
}

fn no_ztunnel(state: &mut StateReport) {
    (state.node.active_slot, state.ztunnels[0].active, state.ztunnels[0].ready) = (None, false, false);
    state.pods[0].capture = CaptureState::Held;
}

fn out_of_set(state: &mut StateReport) {
    let desired = state.network.ipsets.desired.clone();
    state.network.ipsets = Comparison::compare_sets(desired, Vec::new());
}

fn missing(what: &str) -> StateDifference {
    StateDifference { kind: DifferenceKind::Missing, family: None, object: what.into() }
}

/// Advice to use the container in which the command runs is useless.
#[test]
fn the_agents_container_is_advised_only_from_elsewhere() {
    let mut state = node(RedirectionMode::Node);
    state.observation.observer = Observer::Command;
    state.pods[0].capture = CaptureState::Unknown;
    state.pods[0].kernel.unobserved = Some("Operation not permitted".into());
    let advised = |state: &StateReport| {
        let answer = explain_pod(state, &state.pods[0].namespace, &state.pods[0].name);
        answer.advice.iter().any(|advice| advice == "Run the command as root in the agent's container.")
    };
    assert!(!advised(&state));
    let blind = Unobserved::new(StatePart::Installation, "no such directory");
    state.observation.unobserved.push(blind);
    assert!(advised(&state));
}
