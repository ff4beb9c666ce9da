use std::collections::BTreeSet;

use node_plan::{NodeConfig, ZtunnelInstance};
use pod_status::{CaptureState, Evidence};
use report::{PodState, RedirectionMode};

use super::*;
use crate::pods::{NodeNetwork, judge_on_node};

/// The network of a node with a ztunnel and an enrolled pod, without findings, of which these parts could not be observed.
fn network_without(parts: &[StatePart]) -> NetworkState {
    let ztunnel = ZtunnelInstance {
        uid: "ztunnel".into(),
        veth: "veth0".to_owned(),
        uplink: "eth0".to_owned(),
        ips: vec!["10.0.0.9".parse().unwrap()],
        dns: false,
    };
    let desired = DesiredState {
        slots: [Some(ztunnel), None],
        active: Some(ZtunnelSlot::BOTH[0]),
        members: [("10.0.0.1".parse().unwrap(), "uid-web".into())].into(),
        ..DesiredState::default()
    };
    let (config, observed) = (NodeConfig::default(), ObservedState::default());
    let want = desired_node(&config, &desired, &observed);
    let unobserved: Vec<Unobserved> = parts.iter().map(|part| Unobserved::new(*part, "refused")).collect();
    compare_network(&want, &desired, &observed, &unobserved, |family| config.set_name(family).to_owned())
}

#[test]
fn parts_that_could_not_be_observed_are_not_missing() {
    let all = network_without(&[]);
    let places = |network: &NetworkState| -> BTreeSet<String> {
        let rules = network.rules.desired.iter().map(|rule| rule.netns.clone());
        rules.chain(network.routes.desired.iter().map(|route| route.netns.clone())).collect()
    };
    assert_eq!((all.firewall.differences.is_empty(), places(&all).len()), (false, 2));
    let network = network_without(&[StatePart::ZtunnelNamespace]);
    assert_eq!(places(&network), BTreeSet::from(["node".to_owned()]));
    assert!(!network.rules.differences.is_empty(), "the node's own are missing");
    let firewall = network_without(&[StatePart::Firewall]).firewall;
    assert_eq!(firewall, Comparison::without_observation(all.firewall.desired));
}

#[test]
fn a_pod_is_neither_captured_nor_bypassing_while_the_firewall_cannot_be_observed() {
    let judge = |is_member: bool| {
        let mut network = NetworkState::nothing_desired();
        let found = network_without(&[StatePart::Firewall]);
        network.firewall = found.firewall;
        let members = if is_member { found.ipsets.desired.clone() } else { Vec::new() };
        network.ipsets = Comparison::compare_sets(found.ipsets.desired, members);
        let mut view = NodeNetwork::from_state(&network);
        view.served = Family::BOTH.to_vec();
        let mut pod = PodState {
            uid: "uid-web".into(),
            ips: vec!["10.0.0.1".parse().unwrap()],
            mode: Some(RedirectionMode::Node),
            ..PodState::default()
        };
        let mut evidence = Evidence::OUTSIDE;
        judge_on_node(&view, false, &mut pod, &mut evidence);
        evidence.classify().state
    };
    assert_eq!([judge(true), judge(false)], [CaptureState::Unknown, CaptureState::Bypassing]);
}
