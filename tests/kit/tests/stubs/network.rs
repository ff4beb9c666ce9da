//! The kit's nodes, pods and traffic behave as the tests require.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use kit::{Echo, FailureKind, Families, Node, NodeOptions, Pod, Proto, Serve, TrafficClient, connect};

const ONE_USER: &str = "the sandbox of a user other than root has no second user for a proxy";

fn pod_and_outside_talk(node: &Node, v6: bool) {
    let pod = node.pod(Pod::new("default", "talker"), &[]);
    let at_pod = [Echo::tcp(&pod.netns, 8080), Echo::udp(&pod.netns, 8080)];
    let at_outside = [Echo::tcp(node.outside(), 80), Echo::udp(node.outside(), 80)];
    for proto in [Proto::Tcp, Proto::Udp] {
        let out = connect(&pod.netns, proto, (node.outside_ip(v6), 80).into()).expect("outside answers");
        assert_eq!((out.listener, out.peer.ip()), (80, pod.ip(v6)));
        let back = connect(node.outside(), proto, (pod.ip(v6), 8080).into()).expect("the pod answers");
        assert_eq!((back.listener, back.peer.ip()), (8080, node.outside_ip(v6)));
        let near = connect(node.netns(), proto, (pod.ip(v6), 8080).into()).expect("the pod answers its node");
        assert_eq!(near.listener, 8080);
    }
    drop((at_pod, at_outside));
}

#[test]
fn a_dual_stack_pod_and_the_outside_talk_in_both_families() {
    let node = Node::new(NodeOptions::default());
    pod_and_outside_talk(&node, false);
    pod_and_outside_talk(&node, true);
}

#[test]
fn a_pod_of_one_family_has_no_address_of_the_other() {
    for (families, v6) in [(Families::V4, false), (Families::V6, true)] {
        let node = Node::new(NodeOptions { families });
        pod_and_outside_talk(&node, v6);
        let pod = node.pod(Pod::new("default", "one"), &[]);
        assert!(pod.ips().iter().all(|ip| ip.is_ipv6() == v6), "{:?}", pod.ips());
    }
}

#[test]
fn two_pods_of_a_node_reach_each_other() {
    let node = Node::new(NodeOptions::default());
    let (one, two) = (node.pod(Pod::new("default", "one"), &[]), node.pod(Pod::new("default", "two"), &[]));
    let _echo = Echo::tcp(&two.netns, 80);
    for v6 in [false, true] {
        let seen = connect(&one.netns, Proto::Tcp, (two.ip(v6), 80).into()).expect("the other pod answers");
        assert_eq!(seen.peer.ip(), one.ip(v6));
    }
}

#[test]
fn a_redirect_shows_in_the_listener_and_in_the_original_destination() {
    if !kit::has_other_users() {
        return kit::skip(ONE_USER);
    }
    let node = Node::new(NodeOptions::default());
    let pod = node.pod(Pod::new("default", "redirected"), &[]);
    let _proxy = Echo::start(&pod.netns, &Serve::new(Proto::Tcp, 15001).owned_by(1337, 1337).named("proxy"));
    for (v6, iptables) in [(false, "iptables"), (true, "ip6tables")] {
        pod.netns.sh(&format!(
            "{iptables} -t nat -A OUTPUT -p tcp --dport 80 -m owner ! --uid-owner 1337 -j REDIRECT --to-ports 15001"
        ));
        let target = SocketAddr::from((node.outside_ip(v6), 80));
        let seen = connect(&pod.netns, Proto::Tcp, target).expect("the proxy answers");
        assert_eq!((seen.server.as_str(), seen.listener), ("proxy", 15001));
        assert_eq!(seen.original_dst, Some(target));
    }
}

#[test]
fn firewall_rules_tell_the_owners_of_sockets_apart() {
    if !kit::has_other_users() {
        return kit::skip(ONE_USER);
    }
    let node = Node::new(NodeOptions::default());
    let _echo = Echo::tcp(node.outside(), 80);
    let pod = node.pod(Pod::new("default", "owners"), &[]);
    pod.netns.sh("iptables -A OUTPUT -p tcp -m owner --uid-owner 1337 -j REJECT --reject-with tcp-reset");
    pod.netns.sh("iptables -A OUTPUT -p tcp -m owner --gid-owner 1338 -j DROP");
    let target = (node.outside_ip(false), 80).into();
    let client = TrafficClient::new(Proto::Tcp);
    assert!(client.connect(&pod.netns, target).is_ok());
    assert!(client.clone().owned_by(1000, 1000).connect(&pod.netns, target).is_ok());
    let rejected = client.clone().owned_by(1337, 1000).connect(&pod.netns, target).unwrap_err();
    assert_eq!(rejected.kind, FailureKind::Refused);
    let dropped = client.within(Duration::from_millis(300)).owned_by(1000, 1338);
    let dropped = dropped.connect(&pod.netns, target).unwrap_err();
    assert_eq!(dropped.kind, FailureKind::Timeout);
}

#[test]
fn a_transparent_server_takes_what_tproxy_hands_over() {
    if !kit::has_other_users() {
        return kit::skip(ONE_USER);
    }
    let node = Node::new(NodeOptions::default());
    let pod = node.pod(Pod::new("default", "tproxy"), &[]);
    let serve = Serve::new(Proto::Tcp, 15006).owned_by(1337, 1337).transparent();
    let _proxy = Echo::start(&pod.netns, &serve);
    for (v6, iptables, ip) in [(false, "iptables", "ip -4"), (true, "ip6tables", "ip -6")] {
        let all = if v6 { "::/0" } else { "0.0.0.0/0" };
        pod.netns.sh(&format!("{ip} rule add fwmark 1337 lookup 133"));
        pod.netns.sh(&format!("{ip} route add local {all} dev lo table 133"));
        pod.netns.sh(&format!(
            "{iptables} -t mangle -A PREROUTING -p tcp --dport 80 -j TPROXY --tproxy-mark 1337 --on-port 15006"
        ));
        let target = SocketAddr::from((pod.ip(v6), 80));
        let seen = connect(node.outside(), Proto::Tcp, target).expect("the proxy answers");
        assert_eq!((seen.listener, seen.local, seen.peer.ip()), (15006, target, node.outside_ip(v6)));
    }
}

#[test]
fn failures_of_clients_have_kinds() {
    let node = Node::new(NodeOptions::default());
    let closed = connect(node.netns(), Proto::Tcp, (node.outside_ip(false), 9).into()).unwrap_err();
    assert_eq!(closed.kind, FailureKind::Refused);
    let nowhere: IpAddr = "192.0.2.1".parse().unwrap();
    let unreachable = connect(node.outside(), Proto::Tcp, (nowhere, 9).into()).unwrap_err();
    assert_eq!(unreachable.kind, FailureKind::Unreachable);
}

#[test]
fn marks_and_source_addresses_of_clients_reach_the_wire() {
    let node = Node::new(NodeOptions::default());
    let _echo = Echo::udp(node.outside(), 53);
    node.netns().sh("iptables -A OUTPUT -m mark --mark 7 -j DROP");
    let target = (node.outside_ip(false), 53).into();
    let client = TrafficClient::new(Proto::Udp);
    let source = SocketAddr::from((node.ip(false), 5353));
    assert_eq!(client.clone().from(source).connect(node.netns(), target).expect("an answer").peer, source);
    assert_eq!(client.marked(7).connect(node.netns(), target).unwrap_err().kind, FailureKind::Other);
}

#[test]
fn a_namespace_hands_over_values_and_panics_and_vanishes_on_drop() {
    let netns = kit::Netns::new("probe");
    let path = netns.path();
    assert_eq!(netns.run(|| 7), 7);
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| netns.run(|| panic!("inside"))));
    assert_eq!(panic.unwrap_err().downcast_ref::<&str>(), Some(&"inside"));
    assert_eq!(netns.sh("ip -brief link").lines().count(), 1, "only lo");
    drop(netns);
    assert!(!path.exists());
}

/// iptables lists them as rules of its own.
#[test]
fn a_crowd_of_rules_is_what_iptables_would_have_made() {
    let netns = kit::Netns::new("crowd");
    kit::fill_with_services(&netns, 30);
    let shown = netns.sh("iptables-nft -t nat -S");
    let own: String = shown.split_inclusive('\n').filter(|line| !line.starts_with("-P ")).collect();
    let chains = (0..3).map(|chain| format!("-N KUBE-SVC-{chain}\n"));
    assert_eq!(own, chains.chain((0..3).map(rules_of_service)).collect::<String>());
}

fn rules_of_service(chain: usize) -> String {
    let rule = |at: usize| {
        let matches = format!(
            "-d 10.97.1.2/32 -p tcp -m comment --comment \"shop/web:{at}\" -m tcp --dport {}",
            8000 + at
        );
        format!("-A KUBE-SVC-{chain} {matches} -j RETURN\n")
    };
    (0..10).map(rule).collect()
}
