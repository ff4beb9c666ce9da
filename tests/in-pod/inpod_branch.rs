//! Probes of pods with a branch network interface of AWS's CNI plugin, whose policy rules route traffic between node and pod
//! through the VPC.

use std::net::SocketAddr;

use kit::{InpodOptions, NodeOptions, Proto};

use crate::fixtures::ambient::{Ambient, MESH, PORT, Peer};
use crate::fixtures::inpod::InPod;

/// The table of AWS's plugin for this interface.
const TABLE: u32 = 101;

fn rules(fixture: &Ambient) -> Vec<String> {
    let shown = fixture.node.netns().sh("ip rule show");
    shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

/// A node on which pods may have such interfaces.
fn stopped(env: &[(&str, &str)]) -> InPod {
    let fixture = InPod::stopped(NodeOptions::default(), env);
    fixture.node.netns().sysctl("net/ipv4/tcp_early_demux", "0");
    fixture
}

/// Does what AWS's plugin does: the main table has no route to the pod, and packets from its link are looked up in a separate table
/// before the local one. Returns the link.
fn lead_through_the_vpc(fixture: &InPod, peer: &Peer) -> String {
    let (netns, ip) = (fixture.node.netns(), peer.ip(false));
    let route = netns.sh(&format!("ip route show {ip}"));
    let link = route.split_whitespace().skip_while(|word| *word != "dev").nth(1).unwrap().to_owned();
    for line in [
        format!("ip route add {ip} dev {link} table {TABLE}"),
        format!("ip route add default via {} table {TABLE}", fixture.node.outside_ip(false)),
        format!("ip rule add iif {link} priority 10 lookup {TABLE}"),
        "ip rule add priority 20 lookup local".to_owned(),
        "ip rule delete priority 0 lookup local".to_owned(),
        format!("ip route delete {ip}"),
    ] {
        netns.sh(&line);
    }
    link
}

fn is_probed(fixture: &Ambient, peer: &Peer) -> bool {
    kit::connect(fixture.node.netns(), Proto::Tcp, SocketAddr::new(peer.ip(false), PORT)).is_ok()
}

/// Whether the agent created a policy rule, by its protocol.
fn is_ours(rule: &str) -> bool {
    let words: Vec<&str> = rule.split_whitespace().collect();
    words.windows(2).any(|pair| pair == ["proto", "109"])
}

#[test]
fn probes_of_a_pod_with_a_branch_interface_take_its_link() {
    let mut fixture = stopped(&[("CLEANUP_ON_EXIT", "always")]);
    fixture.start();
    let _ztunnel = fixture.ztunnel("ztunnel-a", InpodOptions::default());
    let (peer, _other) = (fixture.mesh_pod("branch"), fixture.mesh_pod("other"));
    let before = rules(&fixture);
    assert!(is_probed(&fixture, &peer));
    let link = lead_through_the_vpc(&fixture, &peer);
    // The agent observes the pod again after its next change.
    fixture.manifests.put_pod(&peer.sandbox.manifest());
    let ours = [
        format!("9: from all iif {link} lookup local proto 109"),
        format!("512: from all to {} lookup {TABLE} proto 109", peer.ip(false)),
    ];
    let _third = fixture.mesh_pod("third");
    fixture
        .eventually("its rules are there", |fixture| ours.iter().all(|rule| rules(fixture).contains(rule)));
    assert!(is_probed(&fixture, &peer), "{:?}", rules(&fixture));
    assert_eq!(rules(&fixture).iter().filter(|rule| is_ours(rule)).count(), 2, "only of that pod");
    let (status, log) = fixture.daemon.take().unwrap().terminate();
    assert!(status.success(), "{log}");
    let left: Vec<_> = rules(&fixture).into_iter().filter(|rule| !before.contains(rule)).collect();
    let aws = [format!("10: from all iif {link} lookup {TABLE}"), "20: from all lookup local".to_owned()];
    assert_eq!(left, aws, "{log}");
}

#[test]
fn the_rules_go_with_the_pod_also_when_the_agent_was_unavailable() {
    let mut fixture = stopped(&[]);
    fixture.start();
    let _ztunnel = fixture.ztunnel("ztunnel-a", InpodOptions::default());
    let peer = fixture.mesh_pod("branch");
    let _link = lead_through_the_vpc(&fixture, &peer);
    let _other = fixture.mesh_pod("other");
    let are_there = |fixture: &Ambient| rules(fixture).iter().any(|rule| is_ours(rule));
    fixture.eventually("its rules are there", are_there);
    let (status, log) = fixture.daemon.take().unwrap().terminate();
    assert!(status.success() && are_there(&fixture), "{log}");
    fixture.manifests.remove_pod(MESH, "branch");
    drop(peer);
    fixture.start();
    fixture.eventually("its rules are gone", |fixture| !are_there(fixture));
}

#[test]
fn who_does_not_want_the_rules_or_has_no_such_interfaces_gets_none() {
    for (env, early_demux) in [(&[("AMBIENT_ENABLE_AWS_BRANCH_ENI_PROBE", "false")][..], "0"), (&[][..], "1")]
    {
        let mut fixture = InPod::stopped(NodeOptions::default(), env);
        fixture.node.netns().sysctl("net/ipv4/tcp_early_demux", early_demux);
        // An earlier agent left it.
        fixture.node.netns().sh("ip rule add pref 512 to 192.0.2.9 lookup 200 protocol 109");
        fixture.start();
        let _ztunnel = fixture.ztunnel("ztunnel-a", InpodOptions::default());
        let peer = fixture.mesh_pod("branch");
        let _link = lead_through_the_vpc(&fixture, &peer);
        let _other = fixture.captured_pod("other");
        assert!(!is_probed(&fixture, &peer), "else the tests above prove nothing");
        assert!(!rules(&fixture).iter().any(|rule| is_ours(rule)), "{:?}", rules(&fixture));
    }
}
