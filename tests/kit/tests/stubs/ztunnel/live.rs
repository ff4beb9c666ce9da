//! Reports of long-lived connections; ends of ztunnels of every kind.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use kit::{Broken, Echo, FailureKind, Live, LiveConnections, Node, NodeOptions, connect};
use serde_json::json;

use super::fixture::{CAPTURED, DIRECT, fixture, outside};

const QUICK: Live = Live { every: Duration::from_millis(2), stall: Duration::from_secs(10) };

#[test]
fn three_hundred_connections_live_through_the_stub() {
    let fixture = fixture();
    let _echo = Echo::tcp(fixture.node.outside(), CAPTURED);
    let mut live = LiveConnections::start(&fixture.pod.netns, Live::default());
    for v6 in [false, true] {
        let opened = live.open(outside(&fixture, v6, CAPTURED), 150);
        assert!(opened.iter().all(|one| one.seen.peer.ip() == fixture.pod.ip(v6)));
    }
    live.wait_round();
    live.wait_round();
    let report = live.finish();
    report.assert_unbroken();
    assert_eq!(report.connections, 300);
    assert!(report.fewest >= 4 && report.exchanges >= 1200 && report.slowest > Duration::ZERO, "{report:?}");
    assert_eq!(fixture.ztunnel.wait_seen_count(300).len(), 300);
}

#[test]
fn connections_break_with_their_server_and_the_others_do_not() {
    let fixture = fixture();
    let (dying, staying) =
        (Echo::tcp(fixture.node.outside(), CAPTURED), Echo::tcp(fixture.node.outside(), CAPTURED + 1));
    let mut live = LiveConnections::start(&fixture.pod.netns, QUICK);
    let doomed: Vec<_> = live.open(outside(&fixture, false, CAPTURED), 3).iter().map(|one| one.id).collect();
    live.open(outside(&fixture, true, CAPTURED + 1), 2);
    live.wait_round();
    assert_eq!(live.broken(), []);
    drop(dying);
    let mut broken: Vec<_> = live.wait_broken(3).iter().map(|one| (one.id, one.exchanges > 0)).collect();
    broken.sort_unstable();
    assert_eq!(broken, doomed.iter().map(|id| (*id, true)).collect::<Vec<_>>());
    let refused = live.begin(outside(&fixture, false, DIRECT), 1, Duration::from_secs(5));
    assert_eq!(live.outcome(refused[0]).unwrap_err().kind, FailureKind::Refused);
    live.open(outside(&fixture, false, CAPTURED + 1), 1);
    let report = live.finish();
    assert_eq!((report.connections, report.broken.len()), (6, 3), "{report:?}");
    drop(staying);
}

/// A server of one connection, which sends the first line; `serve` does the rest. Returns the broken connection.
fn broken_by(serve: fn(&mut TcpStream) -> io::Result<()>) -> Broken {
    let node = Node::new(NodeOptions::default());
    let listener = node.outside().run(|| TcpListener::bind("10.10.0.1:80").unwrap());
    let server = thread::spawn(move || {
        let (mut stream, peer) = listener.accept()?;
        writeln!(stream, "{}", json!({"server": "odd", "listener": 1, "peer": peer, "local": peer}))?;
        serve(&mut stream)?;
        io::copy(&mut stream, &mut io::sink())
    });
    let mut live = LiveConnections::start(node.netns(), QUICK);
    live.open((node.outside_ip(false), CAPTURED).into(), 1);
    let broken = live.wait_broken(1).remove(0);
    drop(live);
    let _ = server.join().unwrap(); // it ends in either case
    broken
}

/// Echoes messages, with these bits of one byte changed.
fn give_back(stream: &mut TcpStream, changes: &[u8]) -> io::Result<()> {
    let mut message = [0; 16];
    changes.iter().try_for_each(|bits| {
        stream.read_exact(&mut message)?;
        message[3] ^= bits;
        stream.write_all(&message)
    })
}

#[test]
fn a_wrong_echo_breaks_a_connection() {
    let broken = broken_by(|stream| give_back(stream, &[0, 0, 1]));
    assert_eq!((broken.exchanges, broken.error.as_str()), (2, "another echo than was sent"));
}

#[test]
fn a_server_that_says_its_last_word_breaks_a_connection() {
    let broken = broken_by(|stream| {
        give_back(stream, &[0])?;
        stream.shutdown(Shutdown::Write)
    });
    assert_eq!((broken.exchanges, broken.error.as_str()), (1, "closed by the other end"));
}

#[test]
fn an_echo_that_never_comes_breaks_a_connection_in_the_end() {
    let fixture = fixture();
    let _echo = Echo::tcp(fixture.node.outside(), DIRECT);
    let live = Live { every: Duration::from_millis(2), stall: Duration::from_millis(300) };
    let mut live = LiveConnections::start(&fixture.pod.netns, live);
    live.open(outside(&fixture, false, DIRECT), 1);
    fixture.node.netns().sh("iptables -A FORWARD -p tcp -j DROP");
    let broken = live.wait_broken(1);
    assert_eq!(broken[0].error, "timed out", "{broken:?}");
    let late = live.begin(outside(&fixture, false, DIRECT), 1, Duration::from_millis(100));
    assert_eq!(live.outcome(late[0]).unwrap_err().kind, FailureKind::Timeout);
    assert!(live.finish().slowest >= Duration::from_millis(300));
}

#[test]
fn connections_end_with_a_killed_ztunnel_whose_pod_stays_until_it_is_deleted() {
    let mut fixture = fixture();
    let _echo = Echo::tcp(fixture.node.outside(), CAPTURED);
    let target = outside(&fixture, false, CAPTURED);
    let mut live = LiveConnections::start(&fixture.pod.netns, QUICK);
    live.open(target, 2);
    fixture.ztunnel.kill();
    assert_eq!(live.wait_broken(2).len(), 2);
    let refused = connect(&fixture.pod.netns, kit::Proto::Tcp, target);
    assert!(refused.is_err(), "nobody relays: {refused:?}");
    fixture.ztunnel.restart();
    live.open(target, 1);
    assert_eq!(fixture.ztunnel.wait_seen_count(3).len(), 3, "{:?}", fixture.ztunnel.seen());
    let (path, link) =
        (fixture.ztunnel.pod().netns.path(), super::fixture::link_of(fixture.ztunnel.pod()).to_owned());
    fixture.ztunnel.delete();
    assert!(!path.exists());
    assert!(!fixture.node.netns().sh("ip -brief link").contains(&link), "the link is gone");
}
