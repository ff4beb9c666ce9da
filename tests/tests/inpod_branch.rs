//! Probes of pods to which AWS's CNI plugin gave a branch network interface: its policy rules lead what node and pod send each
//! other through the VPC.

use std::net::SocketAddr;

use kit::{InpodOptions, NodeOptions, Proto};

use crate::ambient_stage::{Ambient, MESH, PORT, Peer};
use crate::inpod_stage::InPod;

/// The table of AWS's plugin for this interface.
const TABLE: u32 = 101;

fn rules(stage: &Ambient) -> Vec<String> {
    let shown = stage.node.netns().sh("ip rule show");
    shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

/// A node on which pods may have such interfaces.
fn stopped(env: &[(&str, &str)]) -> InPod {
    let stage = InPod::stopped(NodeOptions::default(), env);
    stage.node.netns().sysctl("net/ipv4/tcp_early_demux", "0");
    stage
}

/// Does what AWS's plugin does: it is not the main table that leads to the pod, and what comes from its link meets a table
/// of its own before the local one. Answers with the link.
fn lead_through_the_vpc(stage: &InPod, peer: &Peer) -> String {
    let (netns, ip) = (stage.node.netns(), peer.ip(false));
    let route = netns.sh(&format!("ip route show {ip}"));
    let link = route.split_whitespace().skip_while(|word| *word != "dev").nth(1).unwrap().to_owned();
    for line in [
        format!("ip route add {ip} dev {link} table {TABLE}"),
        format!("ip route add default via {} table {TABLE}", stage.node.outside_ip(false)),
        format!("ip rule add iif {link} priority 10 lookup {TABLE}"),
        "ip rule add priority 20 lookup local".to_owned(),
        "ip rule delete priority 0 lookup local".to_owned(),
        format!("ip route delete {ip}"),
    ] {
        netns.sh(&line);
    }
    link
}

fn is_probed(stage: &Ambient, peer: &Peer) -> bool {
    kit::connect(stage.node.netns(), Proto::Tcp, SocketAddr::new(peer.ip(false), PORT)).is_ok()
}

#[test]
fn probes_of_a_pod_with_a_branch_interface_take_its_link() {
    let mut stage = stopped(&[("CLEANUP_ON_EXIT", "always")]);
    stage.start();
    let _ztunnel = stage.ztunnel("ztunnel-a", InpodOptions::default());
    let (peer, _other) = (stage.mesh_pod("branch"), stage.mesh_pod("other"));
    let before = rules(&stage);
    assert!(is_probed(&stage, &peer));
    let link = lead_through_the_vpc(&stage, &peer);
    // The agent sees the pod once more with its next change.
    stage.manifests.put_pod(&peer.sandbox.manifest());
    let ours = [
        format!("9: from all iif {link} lookup local proto 109"),
        format!("512: from all to {} lookup {TABLE} proto 109", peer.ip(false)),
    ];
    let _third = stage.mesh_pod("third");
    stage.eventually("its rules are there", |stage| ours.iter().all(|rule| rules(stage).contains(rule)));
    assert!(is_probed(&stage, &peer), "{:?}", rules(&stage));
    assert_eq!(rules(&stage).iter().filter(|rule| rule.contains("proto 109")).count(), 2, "only of that pod");
    let (status, log) = stage.daemon.take().unwrap().terminate();
    assert!(status.success(), "{log}");
    let left: Vec<_> = rules(&stage).into_iter().filter(|rule| !before.contains(rule)).collect();
    let aws = [format!("10: from all iif {link} lookup {TABLE}"), "20: from all lookup local".to_owned()];
    assert_eq!(left, aws, "{log}");
}

#[test]
fn the_rules_go_with_the_pod_also_when_the_agent_was_unavailable() {
    let mut stage = stopped(&[]);
    stage.start();
    let _ztunnel = stage.ztunnel("ztunnel-a", InpodOptions::default());
    let peer = stage.mesh_pod("branch");
    let _link = lead_through_the_vpc(&stage, &peer);
    let _other = stage.mesh_pod("other");
    let are_there = |stage: &Ambient| rules(stage).iter().any(|rule| rule.contains("proto 109"));
    stage.eventually("its rules are there", are_there);
    let (status, log) = stage.daemon.take().unwrap().terminate();
    assert!(status.success() && are_there(&stage), "{log}");
    stage.manifests.remove_pod(MESH, "branch");
    drop(peer);
    stage.start();
    stage.eventually("its rules are gone", |stage| !are_there(stage));
}

#[test]
fn who_does_not_want_the_rules_or_has_no_such_interfaces_gets_none() {
    for (env, early_demux) in [(&[("AMBIENT_ENABLE_AWS_BRANCH_ENI_PROBE", "false")][..], "0"), (&[][..], "1")]
    {
        let mut stage = InPod::stopped(NodeOptions::default(), env);
        stage.node.netns().sysctl("net/ipv4/tcp_early_demux", early_demux);
        stage.start();
        let _ztunnel = stage.ztunnel("ztunnel-a", InpodOptions::default());
        let peer = stage.mesh_pod("branch");
        let _link = lead_through_the_vpc(&stage, &peer);
        let other = stage.mesh_pod("other");
        stage.wait_captured(&other);
        assert!(!is_probed(&stage, &peer), "else the tests above prove nothing");
        assert!(!rules(&stage).iter().any(|rule| rule.contains("proto 109")), "{:?}", rules(&stage));
    }
}
