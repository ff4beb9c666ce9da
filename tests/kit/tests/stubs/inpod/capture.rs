//! Handling of connections that the pod's rules redirect to the stub.

use kit::{Echo, FailureKind, Proto, Relayed, TrafficClient, UplinkWatch, Via, WorkloadState, connect};

use super::fixture::{Fixture, INBOUND, OUTBOUND, fixture, outside};

fn told(fixture: &Fixture, via: Via, one: &Relayed) {
    assert_eq!((one.via, &one.error, one.uid.as_ref()), (via, &None, Some(&fixture.pod.pod.uid)), "{one:?}");
}

#[test]
fn outbound_connections_are_relayed_from_within_the_pod() {
    let fixture = fixture();
    let _echo = Echo::tcp(fixture.node.outside(), OUTBOUND);
    let uplink = UplinkWatch::start(&fixture.node, &fixture.pod.ips());
    for v6 in [false, true] {
        let target = outside(&fixture, v6, OUTBOUND);
        let answer = connect(&fixture.pod.netns, Proto::Tcp, target).expect("outside answers");
        assert_eq!(answer.peer.ip(), fixture.pod.ip(v6));
        let one = fixture.ztunnel.wait_seen(|one| one.dst == target);
        told(&fixture, Via::Outbound, &one);
        assert_eq!(one.src.ip(), fixture.pod.ip(v6));
        assert_ne!(one.src.port(), answer.peer.port(), "another connection");
        let counts = uplink.counts(fixture.pod.ip(v6));
        assert!(counts.relayed >= 3 && counts.direct == 0, "nothing passes by: {counts:?}");
    }
    assert_eq!(fixture.ztunnel.seen().len(), 2, "{:?}", fixture.ztunnel.seen());
}

#[test]
fn inbound_connections_come_to_the_pod_from_their_client() {
    let mut fixture = fixture();
    let _echo = Echo::tcp(&fixture.pod.netns, INBOUND);
    for v6 in [false, true] {
        let target = (fixture.pod.ip(v6), INBOUND).into();
        // More than one, as ports of clients and of the stub must not collide.
        for _ in 0..3 {
            let answer = connect(fixture.node.outside(), Proto::Tcp, target).expect("the pod answers");
            assert_eq!(answer.peer.ip(), fixture.node.outside_ip(v6));
            assert!((16000..30000).contains(&answer.peer.port()), "the stub's connection: {answer:?}");
        }
        let one = fixture.ztunnel.wait_seen(|one| one.dst == target);
        told(&fixture, Via::Inbound, &one);
        assert_eq!(one.src.ip(), fixture.node.outside_ip(v6));
    }
    assert_eq!(fixture.ztunnel.wait_seen_count(6).len(), 6, "{:?}", fixture.ztunnel.seen());
    fixture.ztunnel.forget();
    assert_eq!(fixture.ztunnel.seen(), []);
    connect(fixture.node.outside(), Proto::Tcp, (fixture.pod.ip(false), INBOUND).into())
        .expect("the pod answers");
    assert_eq!(fixture.ztunnel.wait_seen_count(1).len(), 1);
}

#[test]
fn what_nobody_serves_is_told_and_its_client_is_reset() {
    let fixture = fixture();
    for v6 in [false, true] {
        let (out, within) = (outside(&fixture, v6, OUTBOUND), (fixture.pod.ip(v6), INBOUND).into());
        for (from, target) in [(&fixture.pod.netns, out), (fixture.node.outside(), within)] {
            let failure = connect(from, Proto::Tcp, target).unwrap_err();
            assert_eq!(failure.kind, FailureKind::Reset, "{failure}");
            let one = fixture.ztunnel.wait_seen(|one| one.dst == target);
            assert_eq!(one.error.as_deref(), Some("Connection refused (os error 111)"), "{one:?}");
        }
    }
}

#[test]
fn who_comes_to_a_listener_uncaptured_is_sent_away() {
    let fixture = fixture();
    // Nothing is redirected on `lo`; the stub must not connect to itself.
    for port in [15001, 15006] {
        let target = (fixture.pod.ip(false), port).into();
        let failure = connect(&fixture.pod.netns, Proto::Tcp, target).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Reset, "{failure}");
        let one = fixture.ztunnel.wait_seen(|one| one.dst == target);
        assert_eq!(one.error.as_deref(), Some("it was not captured"));
    }
}

#[test]
fn dns_is_answered_with_ztunnels_name() {
    let fixture = fixture();
    for v6 in [false, true] {
        for proto in [Proto::Udp, Proto::Tcp] {
            // No server is there: the stub answers itself.
            let target = outside(&fixture, v6, 53);
            let answer = connect(&fixture.pod.netns, proto, target).expect("ztunnel answers");
            let captured = (answer.server.as_str(), answer.listener, answer.peer.ip());
            assert_eq!(captured, ("ztunnel-a", 15053, fixture.pod.ip(v6)));
            let one = fixture.ztunnel.wait_seen(|one| one.src == answer.peer);
            told(&fixture, Via::Dns, &one);
            assert_eq!(one.dst == target, proto == Proto::Tcp, "{one:?}");
        }
    }
}

#[test]
fn hbone_is_answered_with_ztunnels_name_and_mark() {
    let fixture = fixture();
    for (v6, iptables) in [(false, "iptables"), (true, "ip6tables")] {
        fixture.pod.netns.sh(&format!(
            "{iptables}-nft -A OUTPUT -p tcp --sport 15008 -m mark ! --mark 0x539/0xfff -j DROP"
        ));
        let target = (fixture.pod.ip(v6), 15008).into();
        let answer = connect(fixture.node.outside(), Proto::Tcp, target).expect("ztunnel answers");
        assert_eq!((answer.server.as_str(), answer.peer.ip()), ("ztunnel-a", fixture.node.outside_ip(v6)));
        told(&fixture, Via::Hbone, &fixture.ztunnel.wait_seen(|one| one.dst == target));
    }
}

#[test]
fn what_is_redirected_to_the_port_of_hbone_is_relayed() {
    let fixture = fixture();
    let _echo = Echo::tcp(&fixture.pod.netns, INBOUND);
    for (v6, iptables) in [(false, "iptables"), (true, "ip6tables")] {
        fixture.pod.netns.sh(&format!(
            "{iptables}-nft -t nat -I PREROUTING -p tcp --dport {INBOUND} -m mark ! --mark 0x539/0xfff \
             -j REDIRECT --to-ports 15008"
        ));
        let target = (fixture.pod.ip(v6), INBOUND).into();
        let answer = connect(fixture.node.outside(), Proto::Tcp, target).expect("the pod answers");
        assert_eq!((answer.server.as_str(), answer.peer.ip()), ("echo", fixture.node.outside_ip(v6)));
        told(&fixture, Via::Hbone, &fixture.ztunnel.wait_seen(|one| one.dst == target));
    }
}

#[test]
fn marked_traffic_and_a_pod_that_left_go_their_own_way() {
    let fixture = fixture();
    let _echo = Echo::tcp(fixture.node.outside(), OUTBOUND);
    let target = outside(&fixture, false, OUTBOUND);
    let client = TrafficClient::new(Proto::Tcp).from((fixture.pod.ip(false), 12345).into());
    let answer = client.marked(0x539).connect(&fixture.pod.netns, target).expect("outside answers");
    assert_eq!(answer.peer.port(), 12345, "nobody is in between");
    let answer = connect(&fixture.pod.netns, Proto::Tcp, target).expect("outside answers");
    assert_ne!(answer.peer.port(), 12345);
    assert_eq!(fixture.ztunnel.wait_seen_count(1).len(), 1);
    let uid = &fixture.pod.pod.uid;
    fixture.connection.ask(&super::agent::del(uid));
    fixture.ztunnel.wait_for_state(uid, WorkloadState::Gone);
    let failure = connect(&fixture.pod.netns, Proto::Tcp, target).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Refused, "rules without a ztunnel: {failure}");
}
