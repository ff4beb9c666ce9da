//! In-pod capture: effects of annotations and settings.

use std::net::{IpAddr, SocketAddr};

use kit::{Echo, InpodOptions, NodeOptions, Pod, Proto, TrafficClient, Via};

use crate::fixtures::ambient::{MESH, PORT, Peer, ping};
use crate::fixtures::inpod::{InPod, RELAYED, relayed, wait_relayed};

const FAMILIES: [bool; 2] = [false, true];

/// Starts a pod of the mesh with annotations through the plugin.
fn annotated(fixture: &InPod, name: &str, annotations: &[(&str, &str)]) -> Peer {
    let pod = annotations.iter().fold(Pod::new(MESH, name), |pod, (key, value)| pod.annotation(key, value));
    let peer = fixture.starting(pod);
    fixture.manifests.put_pod(&peer.sandbox.manifest());
    peer
}

/// Name of the server that answers a DNS query over this protocol; `None` means that no server received it.
fn asks(fixture: &InPod, peer: &Peer, proto: Proto, v6: bool) -> Option<String> {
    let server = SocketAddr::new(fixture.node.outside_ip(v6), 53);
    kit::connect(&peer.sandbox.netns, proto, server).ok().map(|seen| seen.server)
}

#[test]
fn dns_is_answered_by_ztunnel_where_it_is_wanted() {
    let mut fixture = InPod::new(&[("AMBIENT_DNS_CAPTURE", "true")]);
    let ztunnel = fixture.ztunnel("ztunnel-a", InpodOptions { dns_capture: true, ..InpodOptions::default() });
    let outside = fixture.node.outside();
    let _servers = [Echo::tcp(outside, 53), Echo::udp(outside, 53)];
    let with = annotated(&fixture, "with", &[]);
    let without = annotated(&fixture, "without", &[("ambient.istio.io/dns-capture", "false")]);
    for v6 in FAMILIES {
        for proto in [Proto::Udp, Proto::Tcp] {
            assert_eq!(asks(&fixture, &with, proto, v6).as_deref(), Some("ztunnel-a"), "{proto:?} {v6}");
            assert_ne!(asks(&fixture, &without, proto, v6).as_deref(), Some("ztunnel-a"), "{proto:?} {v6}");
        }
        // Over TCP it is traffic like any other.
        wait_relayed(&ztunnel, without.ip(v6), (fixture.node.outside_ip(v6), 53).into());
    }
    let _ = ztunnel.wait_seen(|one| one.via == Via::Dns);
    // The annotation takes effect while the pod runs.
    let mut manifest = without.sandbox.manifest();
    manifest["metadata"]["annotations"]["ambient.istio.io/dns-capture"] = "true".into();
    fixture.manifests.put_pod(&manifest);
    let tables = fixture.tables;
    let rules = || tables.rules(|command| without.sandbox.netns.sh(command));
    fixture.eventually("its DNS is captured", |_| rules().contains("15053"));
    let answers = || asks(&fixture, &without, Proto::Udp, false);
    fixture.eventually("also in IPv4", |_| answers().as_deref() == Some("ztunnel-a"));
    fixture.eventually("the history shows it", |fixture| {
        let changes = fixture.container.exec(&["history", "mesh/without", "-o", "json"]).stdout;
        let changes: Vec<serde_json::Value> = serde_json::from_slice(&changes).unwrap();
        changes.last().unwrap()["cause"] == "annotations changed"
    });
    let mut manifest = without.sandbox.manifest();
    manifest["metadata"]["annotations"]["ambient.istio.io/dns-capture"] = "false".into();
    fixture.manifests.put_pod(&manifest);
    fixture.eventually("nothing of it is left", |_| {
        let rules = rules();
        !["15053", "--zone", "zone set"].iter().any(|left| rules.contains(left))
    });
    let repairs = "istio_cni_ambient_repairs_total{place=\"pod\"}";
    assert_eq!(fixture.daemon().metric(repairs), Some(0.0), "no other component has changed anything");
}

#[test]
fn dns_that_ztunnel_does_not_answer_is_reported() {
    let (fixture, _ztunnel) = InPod::with_ztunnel(&[]);
    let pod = annotated(&fixture, "web", &[("ambient.istio.io/dns-capture", "true")]);
    fixture.eventually("it is captured", |fixture| fixture.explain("mesh/web").code == "dns-unanswered");
    let state = fixture.container.exec(&["state", "-o", "json"]).stdout;
    let state: serde_json::Value = serde_json::from_slice(&state).unwrap();
    let web = state["pods"].as_array().unwrap().iter().find(|pod| pod["name"] == "web").unwrap();
    assert_eq!(web["kernel"]["dnsUnanswered"], true, "also for check, which asks about no single pod");
    assert_eq!(asks(&fixture, &pod, Proto::Udp, false), None);
}

#[test]
fn inbound_connections_go_straight_to_a_pod_that_asks_for_it() {
    let (fixture, ztunnel) = InPod::with_ztunnel(&[]);
    let _echo = Echo::tcp(fixture.node.outside(), PORT);
    let peer = annotated(&fixture, "gateway", &[("ambient.istio.io/bypass-inbound-capture", "true")]);
    for v6 in FAMILIES {
        let seen = kit::connect(fixture.node.outside(), Proto::Tcp, peer.at(v6)).unwrap();
        assert_eq!(seen.peer.ip(), fixture.node.outside_ip(v6));
        assert!(!ztunnel.seen().iter().any(|one| one.via == Via::Inbound), "{:?}", ztunnel.seen());
        let outside = SocketAddr::new(fixture.node.outside_ip(v6), PORT);
        let _ = peer.tcp(outside).unwrap();
        wait_relayed(&ztunnel, peer.ip(v6), outside);
    }
}

#[test]
fn udp_ping_and_loopback_are_undisturbed() {
    let (mut fixture, ztunnel) = InPod::with_ztunnel(&[]);
    let _echo = Echo::udp(fixture.node.outside(), PORT);
    let (one, two) = (fixture.mesh_pod("one"), fixture.mesh_pod("two"));
    for v6 in FAMILIES {
        let netns = &one.sandbox.netns;
        for target in [SocketAddr::new(fixture.node.outside_ip(v6), PORT), two.at(v6), one.at(v6)] {
            let seen = kit::connect(netns, Proto::Udp, target).unwrap();
            assert_eq!(seen.peer.ip(), one.ip(v6));
        }
        ping(netns, two.ip(v6));
        ping(netns, fixture.node.outside_ip(v6));
        let loopback: IpAddr = if v6 { "::1" } else { "127.0.0.1" }.parse().unwrap();
        let seen = one.tcp((loopback, PORT).into()).unwrap();
        assert_eq!(seen.peer.ip(), loopback);
        let seen = kit::connect(netns, Proto::Udp, (loopback, PORT).into()).unwrap();
        assert_eq!(seen.peer.ip(), loopback);
    }
    assert_eq!(ztunnel.seen(), []);
}

/// Traffic of a virtual machine inside a pod arrives on an interface of the pod.
#[test]
fn virtual_machines_inside_are_captured() {
    let (fixture, ztunnel) = InPod::with_ztunnel(&[]);
    let _echo = Echo::tcp(fixture.node.outside(), PORT);
    let peer = annotated(&fixture, "vm", &[("istio.io/reroute-virtual-interfaces", "k6t-eth0")]);
    let machine = kit::Netns::new("machine");
    let pod = &peer.sandbox.netns;
    pod.sh(&format!("ip link add k6t-eth0 type veth peer name eth0 netns {}", machine.name()));
    pod.sh("ip address add 10.123.0.1/24 dev k6t-eth0");
    pod.sh("ip link set k6t-eth0 up");
    pod.sysctl("net/ipv4/ip_forward", "1");
    machine.sh("ip address add 10.123.0.2/24 dev eth0");
    machine.sh("ip link set eth0 up");
    machine.sh("ip route add default via 10.123.0.1");
    let outside = SocketAddr::new(fixture.node.outside_ip(false), PORT);
    let connect = TrafficClient::new(Proto::Tcp).within(std::time::Duration::from_secs(5));
    // Whether it is answered depends on the machine's network; ztunnel receives it anyway.
    drop(connect.connect(&machine, outside));
    let seen = ztunnel.wait_seen(|one| one.src.ip().to_string() == "10.123.0.2");
    assert_eq!((seen.via, seen.dst), (Via::Outbound, outside));
}

#[test]
fn without_ipv6_only_ipv4_is_captured_and_dual_stack_pods_start() {
    let mut fixture = InPod::new(&[("AMBIENT_IPV6", "false")]);
    let ztunnel = fixture.ztunnel("ztunnel-a", InpodOptions { ipv6: false, ..InpodOptions::default() });
    let _echo = Echo::tcp(fixture.node.outside(), PORT);
    let peer = fixture.mesh_pod("app");
    for v6 in FAMILIES {
        let outside = SocketAddr::new(fixture.node.outside_ip(v6), PORT);
        let _ = peer.tcp(outside).unwrap();
        if v6 {
            assert!(!relayed(&ztunnel, peer.ip(v6), outside));
        } else {
            wait_relayed(&ztunnel, peer.ip(v6), outside);
        }
    }
    assert!(fixture.is_probed(peer.ip(false)));
    let sets = fixture.node.netns().sh("ipset save");
    let names = sets.lines().filter_map(|line| line.strip_prefix("create ")?.split(' ').next());
    assert!(names.clone().all(|name| name != "istio-inpod-probes-v6"), "{sets}");
    let mut peer = peer;
    let _ = peer.sandbox.delete().unwrap();
    fixture.manifests.remove_pod(MESH, "app");
    fixture.eventually("it is released", |_| !fixture.is_probed(peer.ip(false)));
}

/// Legacy tables, on the node and in pods.
#[test]
fn the_older_backend_does_the_same() {
    let mut fixture = InPod::new(&[("FORCE_IPTABLES_BINARY", "legacy")]);
    let ztunnel = fixture.ztunnel("ztunnel-a", InpodOptions { dns_capture: true, ..InpodOptions::default() });
    let _servers = [Echo::tcp(fixture.node.outside(), PORT), Echo::udp(fixture.node.outside(), 53)];
    let one = annotated(&fixture, "one", &[("ambient.istio.io/dns-capture", "true")]);
    let two = fixture.mesh_pod("two");
    for v6 in FAMILIES {
        let outside = SocketAddr::new(fixture.node.outside_ip(v6), PORT);
        let _ = one.tcp(outside).unwrap();
        wait_relayed(&ztunnel, one.ip(v6), outside);
        assert!(RELAYED.contains(&one.tcp(two.at(v6)).unwrap().peer.port()));
        assert_eq!(asks(&fixture, &one, Proto::Udp, v6).as_deref(), Some("ztunnel-a"));
        let probe = kit::connect(fixture.node.netns(), Proto::Tcp, two.at(v6)).unwrap();
        assert!(!RELAYED.contains(&probe.peer.port()));
    }
    let rules = two.sandbox.netns.sh("iptables-legacy-save");
    assert!(kit::has_line(&rules, "-A OUTPUT -j ISTIO_OUTPUT"), "{rules}");
    let chains = two.sandbox.netns.sh("iptables-nft-save");
    assert!(!chains.lines().any(|line| line.starts_with(":ISTIO")), "{chains}");
    fixture.manifests.put_namespace(MESH, &[]);
    fixture.eventually("they are let go", |_| fixture.is_bare(&one) && fixture.is_bare(&two));
}

#[test]
fn a_pod_with_one_family_is_captured_in_it() {
    for v6 in FAMILIES {
        let families = if v6 { kit::Families::V6 } else { kit::Families::V4 };
        let mut fixture = InPod::stopped(NodeOptions { families }, &[]);
        fixture.start();
        let ztunnel = fixture.ztunnel("ztunnel-a", InpodOptions::default());
        let _echo = Echo::tcp(fixture.node.outside(), PORT);
        let peer = fixture.mesh_pod("app");
        let outside = SocketAddr::new(fixture.node.outside_ip(v6), PORT);
        let _ = peer.tcp(outside).unwrap();
        wait_relayed(&ztunnel, peer.ip(v6), outside);
    }
}
