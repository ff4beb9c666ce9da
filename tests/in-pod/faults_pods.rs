//! Pods with unusual network namespaces: captured like any other by in-pod capture.

use std::path::Path;
use std::time::Duration;

use kit::{Netns, Pod, UserNetns};
use report::{Proof, ProofResult};

use crate::fixtures::ambient::MESH;
use crate::fixtures::inpod::{InPod, jumps};

const MINUTE: Duration = Duration::from_secs(60);

/// Waits until all rules of both families exist: jumps to our two chains, and policy routes.
fn wait_ruled(fixture: &mut InPod, inside: impl Fn(&str) -> String) {
    fixture.within(MINUTE, "all its rules are there", |fixture| {
        let routes = inside("ip -4 rule") + &inside("ip -6 rule");
        let routes = routes.matches("fwmark 0x111/0xfff lookup 100").count();
        (jumps(fixture.tables, &inside), routes) == (8, 2)
    });
}

/// A device of its own, such as an SR-IOV virtual function, or one on another's network: none of its links leads to the node. Here
/// a veth pair to an external machine, because a virtual function needs hardware.
#[test]
fn a_pod_whose_link_leads_past_the_node_is_found_and_captured() {
    let (mut fixture, ztunnel) = InPod::with_ztunnel(&[]);
    let (netns, pod) = (Netns::new("vf"), Pod::new(MESH, "vf"));
    let (own, far) = (netns.name().to_owned(), fixture.node.outside().name().to_owned());
    fixture.node.netns().sh(&format!("ip link add eth0 netns {own} type veth peer name vf0 netns {far}"));
    netns.pipe(
        "ip -batch -",
        "address add 10.77.0.2/24 dev eth0\naddress add fd00:77::2/64 dev eth0 nodad\nlink set eth0 up\n",
    );
    fixture.node.outside().sh("ip link set vf0 up");
    let _ = fixture.processes.add(&pod.uid, &netns);
    fixture.manifests.put_pod(&pod.manifest(&["10.77.0.2".parse().unwrap(), "fd00:77::2".parse().unwrap()]));
    wait_ruled(&mut fixture, |command| netns.sh(command));
    let _ = ztunnel.wait_for_workload(&pod.uid);
    assert_eq!(ztunnel.protocol_error(), None);
}

/// A pod with `hostUsers: false`.
#[test]
fn a_pod_with_users_of_its_own_is_captured_from_within() {
    let (mut fixture, ztunnel) = InPod::with_ztunnel(&[]);
    let (inside, pod) = (UserNetns::new("users"), Pod::new(MESH, "users"));
    let (own, node) = (inside.name(), fixture.node.netns().name().to_owned());
    let _ = inside.ip(&format!("link add eth0 netns {own} type veth peer name users0 netns {node}"));
    for line in ["link set lo up", "address add 10.77.0.2/24 dev eth0", "link set eth0 up"] {
        let _ = inside.ip(&format!("-n {own} {line}"));
    }
    let _ = inside.ip(&format!("-n {own} address add fd00:77::2/64 dev eth0 nodad"));
    fixture.node.netns().sh("ip link set users0 up");
    fixture.processes.add_named(&pod.uid, Path::new(own));
    fixture.manifests.put_pod(&pod.manifest(&["10.77.0.2".parse().unwrap(), "fd00:77::2".parse().unwrap()]));
    wait_ruled(&mut fixture, |command| inside.ip(&format!("netns exec {own} {command}")));
    let _ = ztunnel.wait_for_workload(&pod.uid);
    for family in ["-4", "-6"] {
        let _ = inside.ip(&format!("{family} -n {own} route add default dev eth0"));
    }
    let name = format!("{MESH}/users");
    fixture.within(MINUTE, "it is proven", |fixture| {
        let output = fixture.container.exec(&["prove", &name, "-o", "json"]);
        let proof: Proof = serde_json::from_slice(&output.stdout).unwrap();
        !proof.paths.is_empty() && proof.paths.iter().all(|path| path.result == ProofResult::Proven)
    });
    assert_eq!(ztunnel.protocol_error(), None);
}
