//! Handling of connections by the stub.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use kit::{Echo, FailureKind, Proto, Via, ZtunnelOptions, connect};

use super::fixture::{CAPTURED, INBOUND, fixture, fixture_with, outside};

#[test]
fn an_outbound_connection_is_relayed_as_its_source_and_told_with_its_true_ends() {
    let fixture = fixture();
    let _echo = Echo::tcp(fixture.node.outside(), CAPTURED);
    for v6 in [false, true] {
        let target = outside(&fixture, v6, CAPTURED);
        let answer = connect(&fixture.pod.netns, Proto::Tcp, target).expect("outside answers");
        let relayed = fixture.ztunnel.wait_seen(|one| one.dst == target);
        assert_eq!((relayed.via, &relayed.error), (Via::Outbound, &None));
        assert_eq!((relayed.src.ip(), answer.peer.ip()), (fixture.pod.ip(v6), fixture.pod.ip(v6)));
        assert!((16000..30000).contains(&answer.peer.port()), "a port of ztunnel's own: {answer:?}");
    }
    assert_eq!(fixture.ztunnel.seen().len(), 2, "{:?}", fixture.ztunnel.seen());
}

#[test]
fn an_inbound_connection_is_relayed_as_its_source() {
    let fixture = fixture();
    let _echo = Echo::tcp(&fixture.pod.netns, INBOUND);
    for v6 in [false, true] {
        let target = (fixture.pod.ip(v6), INBOUND).into();
        let answer = connect(fixture.node.outside(), Proto::Tcp, target).expect("the pod answers");
        let relayed = fixture.ztunnel.wait_seen(|one| one.dst == target);
        assert_eq!((relayed.via, &relayed.error), (Via::Inbound, &None));
        assert_eq!(relayed.src.ip(), fixture.node.outside_ip(v6));
        assert_eq!(answer.peer.ip(), fixture.node.outside_ip(v6));
    }
}

/// Sends `bytes`, shuts down its side, and returns everything received until the server does, too.
fn round_trip(target: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(target).expect("it is captured");
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut greeting = String::new();
    reader.read_line(&mut greeting).unwrap();
    let mut back = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            stream.write_all(bytes).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
        });
        reader.read_to_end(&mut back).unwrap();
    });
    back
}

#[test]
fn what_was_sent_before_a_half_close_comes_back_whole() {
    let fixture = fixture();
    let _echo = Echo::tcp(fixture.node.outside(), CAPTURED);
    // More than all buffers on the path.
    let bytes: Vec<u8> = (0..12_000_000_u32).map(|number| (number % 251) as u8).collect();
    for v6 in [false, true] {
        let target = outside(&fixture, v6, CAPTURED);
        assert_eq!(fixture.pod.netns.run(|| round_trip(target, b"")), b"");
        assert!(fixture.pod.netns.run(|| round_trip(target, &bytes)) == bytes, "other bytes came back");
    }
    assert_eq!(fixture.ztunnel.wait_seen_count(4).len(), 4);
}

#[test]
fn a_refused_destination_is_told_and_its_client_is_reset() {
    let fixture = fixture();
    for v6 in [false, true] {
        let target = outside(&fixture, v6, CAPTURED + 1);
        let failure = connect(&fixture.pod.netns, Proto::Tcp, target).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Reset, "{failure}");
        let relayed = fixture.ztunnel.wait_seen(|one| one.dst == target);
        assert_eq!(relayed.error.as_deref(), Some("Connection refused (os error 111)"), "{relayed:?}");
    }
}

#[test]
fn a_destination_that_says_nothing_is_given_up() {
    let connect_limit = Duration::from_secs(1);
    let fixture = fixture_with(ZtunnelOptions { connect_limit, ..ZtunnelOptions::default() });
    let _echo = Echo::tcp(fixture.node.outside(), CAPTURED);
    fixture.node.outside().sh("iptables -A INPUT -p tcp -j DROP");
    let target = outside(&fixture, false, CAPTURED);
    let failure = connect(&fixture.pod.netns, Proto::Tcp, target).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Reset, "{failure}");
    let relayed = fixture.ztunnel.wait_seen(|one| one.dst == target);
    assert_eq!(relayed.error.as_deref(), Some("timed out"));
    connect(&fixture.pod.netns, Proto::Tcp, outside(&fixture, true, CAPTURED)).expect("the others go on");
}

#[test]
fn dns_is_answered_with_ztunnels_name() {
    let fixture = fixture();
    for v6 in [false, true] {
        for proto in [Proto::Udp, Proto::Tcp] {
            let target = (fixture.ztunnel.ip(v6), 15053).into();
            let answer = connect(&fixture.pod.netns, proto, target).expect("ztunnel answers");
            assert_eq!((answer.server.as_str(), answer.peer.ip()), ("ztunnel-a", fixture.pod.ip(v6)));
            fixture.ztunnel.wait_seen(|one| (one.via, one.src) == (Via::Dns, answer.peer));
        }
    }
}
