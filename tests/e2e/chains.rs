//! Plugins of other networks before ours: their effects on a pod are the same if it is captured.

use serde_json::Value;

use crate::agent::Agent;
use crate::control::Places;
use crate::fixture::Fixture;
use crate::footprint;
use crate::kinds::{self, Expected};
use crate::network::{LIST, Network};
use crate::pods::{annotated, injected, plain, probed, with_host_port};
use crate::runs::{Entry, MESH, SHOP, end, renew};
use crate::runtime::Runtime;
use crate::scenarios::{self, Pods};
use crate::ztunnel::{self, CaptureState};

pub(crate) fn entries() -> Vec<Entry> {
    let ours = || Agent::manifest("istio-cni-in-pod.yaml");
    let with_tools = Agent::ours(&["profile=ambient", "millrace.image.variant=ambient"]);
    let by_name = Agent::ours(&["profile=ambient", &format!("cniConfFileName={LIST}")]);
    vec![
        Entry::behind(Network::Bridge, Runtime::Containerd2, ours(), behind),
        Entry::behind(Network::Ptp, Runtime::Containerd2, ours(), behind),
        Entry::behind(Network::Macvlan, Runtime::Containerd2, ours(), behind),
        Entry::behind(Network::BridgeLegacy, Runtime::Containerd2, with_tools, behind).extra(),
        Entry::behind(Network::BridgeUnlimited, Runtime::Crio, ours(), behind).extra(),
        Entry::behind(Network::PtpByName, Runtime::Crio, by_name, behind).extra(),
    ]
}

fn behind(fixture: &mut Fixture, places: &Places, agent: &Agent) {
    let network = fixture.machine.network;
    fixture.checks.chapter(format!("{}: behind {}", agent.name, network.name()));
    // The network's plugins create some objects once, with the first pod, and leave them.
    let first = (of(network, plain(SHOP, "first"), FIRST_PORT), Expected::Direct);
    let first = kinds::check(fixture, &[first]);
    scenarios::delete_all(fixture, &first);
    let before = scenarios::install(fixture, agent);
    ztunnel::deploy(fixture, CaptureState::InPod);
    let clear = footprint::of_pods(&fixture.machine);
    let pods = kinds::check(fixture, &made(network));
    if network.maps_ports() {
        map_ports(fixture, &pods);
    }
    if network.is_bridge() {
        limits(fixture, &pods);
    }
    if network.has_legacy_tables() {
        shares_tables(fixture);
    }
    scenarios::delete(fixture, &pods, &clear);
    let last = [(injected(SHOP, "last"), Expected::Sidecar), (plain(MESH, "last"), Expected::Ztunnel)];
    let last = kinds::check(fixture, &last);
    let clean = end(fixture, agent, &before, last.clone());
    scenarios::check_ends(fixture, &last);
    ztunnel::remove(fixture);
    renew(fixture, places, clean);
}

/// First port of the node that is mapped to a pod.
const FIRST_PORT: u16 = 18080;

fn made(network: Network) -> Pods {
    // The kubelet's probes of an ambient pod have a source to which a pod behind `macvlan` cannot reply.
    let mesh = if network == Network::Macvlan { plain(MESH, "mesh") } else { probed(plain(MESH, "mesh")) };
    let pods = [
        (probed(injected(SHOP, "sidecar")), Expected::Sidecar),
        (mesh, Expected::Ztunnel),
        (plain(SHOP, "plain"), Expected::Direct),
    ];
    let numbered = pods.into_iter().zip(FIRST_PORT..);
    numbered.map(|((pod, expected), port)| (of(network, pod, port), expected)).collect()
}

/// Adds all features of the network's plugins that a pod can request.
fn of(network: Network, mut pod: Value, port: u16) -> Value {
    if network.maps_ports() {
        pod = with_host_port(pod, port);
    }
    let limited = |pod, direction| annotated(pod, &format!("kubernetes.io/{direction}-bandwidth"), "50M");
    limited(limited(pod, "ingress"), "egress")
}

fn map_ports(fixture: &mut Fixture, pods: &Pods) {
    for ((pod, expected), port) in pods.iter().zip(FIRST_PORT..) {
        kinds::inbound(
            fixture,
            pod,
            &format!("10.99.0.1:{port}"),
            *expected,
            "a connection to a port of the node",
        );
    }
}

/// Checks that the node's rules are in the legacy tables that its other components use, and none in those of nf_tables.
fn shares_tables(fixture: &mut Fixture) {
    let network = count_rules(fixture, "legacy", "^-A CNI-");
    let ours = count_rules(fixture, "legacy", "istio-inpod-probes");
    let elsewhere = count_rules(fixture, "nft", "^-A");
    fixture.checks.check(
        network > 0 && ours > 0 && elsewhere == 0,
        format!(
            "legacy tables have {network} rules of the network and {ours} of ours, nf_tables {elsewhere}"
        ),
    );
}

/// Number of the node's IPv4 rules that match a pattern, in the tables of this kind.
fn count_rules(fixture: &Fixture, kind: &str, pattern: &str) -> usize {
    let count = fixture.machine.sh(&format!("iptables-{kind}-save | grep -c -e '{pattern}' || true"));
    count.trim().parse().expect("grep counts")
}

/// Checks the traffic limits of `bandwidth` and the sysctl of `tuning`.
fn limits(fixture: &mut Fixture, pods: &Pods) {
    if fixture.machine.network.limits_bandwidth() {
        let queues = fixture.machine.sh("tc qdisc show").matches("qdisc tbf").count();
        // One connection for each direction.
        let message = format!("bandwidth limits {queues} queues of {} pods", pods.len());
        fixture.checks.check(queues == 2 * pods.len(), message);
    }
    for (pod, _) in pods {
        let backlog = fixture.setting(pod, "net/core/somaxconn");
        fixture.checks.check(
            backlog == "512",
            format!("{}: tuning has set somaxconn: {backlog}", pod["metadata"]["name"]),
        );
    }
}
