//! Peers that violate the protocol: each loses its connection, and the next one is served normally.

use std::os::fd::AsFd as _;
use std::sync::Mutex;
use std::time::Duration;

use rustix::net::Shutdown;

use std::collections::BTreeSet;

use super::*;

const SHORT: Duration = Duration::from_millis(200);

fn start_with_deadlines(deadlines: ZdsDeadlines) -> Agent {
    let agent = Agent::with(ZdsDeadlines { unknown_peer_delay: Duration::ZERO, ..deadlines });
    agent.hub.start_snapshots();
    agent.hub.set_workload(workload("a", 0));
    agent
}

/// As [`serves`], of an agent whose deadline may end a connection although this process goes on.
fn serves_in_the_end(agent: &Agent) {
    eventually(|| {
        let ztunnel = Ztunnel::dial(&agent.socket());
        let _ = ztunnel.try_send(ztunnel::HELLO, &[]);
        let is_asked = ztunnel.try_asked() == Some(add("a", 0));
        is_asked
            && ztunnel.try_send(ztunnel::ACK, &[]).is_ok()
            && ztunnel.try_asked() == Some(Asked::SnapshotSent)
    });
}

/// Asserts that the agent still serves.
fn serves(agent: &Agent) {
    eventually(|| agent.hub.list_connections().is_empty());
    drop(agent.ztunnel_with(&["a"]));
}

#[test]
fn hellos_that_are_none() {
    let agent = Agent::with_workload();
    let long = [0x12, 0x80, 0x08].into_iter().chain([b'x'; 1024]).collect::<Vec<u8>>();
    for bad in
        [&b"\xff\xff\xff"[..], b"", b"\x08", b"\x08\x00", b"GET / HTTP/1.1\r\n\r\n", ztunnel::ACK, &long]
    {
        let ztunnel = Ztunnel::dial(&agent.socket());
        ztunnel.send(bad);
        ztunnel.is_closed();
    }
    let ztunnel = Ztunnel::dial(&agent.socket());
    // Valid wherever it is cut off.
    ztunnel.send(&[0x08, 0x01].repeat(10_000));
    ztunnel.is_closed();
    assert!(agent.events.try_recv().is_err(), "none of them counts");
    serves(&agent);
}

#[test]
fn no_hello() {
    let agent =
        start_with_deadlines(ZdsDeadlines { hello: SHORT, unknown_peer_hello: SHORT, ..patient_deadlines() });
    let began = Instant::now();
    let ztunnel = Ztunnel::dial(&agent.socket());
    ztunnel.is_closed();
    assert!(began.elapsed() > SHORT.mul_f64(0.5));
    assert!(agent.events.try_recv().is_err(), "it does not count");
    serves_in_the_end(&agent);
}

#[test]
fn a_later_version_is_fine() {
    let agent = Agent::with_workload();
    let ztunnel = Ztunnel::dial(&agent.socket());
    ztunnel.send(b"\x08\x02\x12\x01x");
    ztunnel.acks(&add("a", 0));
    ztunnel.acks(&Asked::SnapshotSent);
    assert_eq!(agent.hub.list_connections()[0].version, 2);
}

#[test]
fn no_answer_in_time() {
    let agent = start_with_deadlines(ZdsDeadlines { answer: SHORT, ..patient_deadlines() });
    let began = Instant::now();
    let ztunnel = Ztunnel::dial(&agent.socket());
    ztunnel.hello();
    assert_eq!(ztunnel.asked(), add("a", 0));
    ztunnel.is_closed();
    assert!(began.elapsed() > SHORT.mul_f64(0.5));
    serves_in_the_end(&agent);
}

#[test]
fn answers_that_are_none() {
    let agent = Agent::with_workload();
    let nothing = [0x12, 0x00];
    for bad in [&b"\xff"[..], b"", ztunnel::HELLO, &nothing, b"\x0a\x02\x0a\x05", b"\x0a\x03\x0a\x01\xff"] {
        let ztunnel = agent.ztunnel();
        assert_eq!(ztunnel.asked(), add("a", 0));
        ztunnel.send(bad);
        ztunnel.is_closed();
        eventually(|| agent.hub.list_connections().is_empty());
    }
    serves(&agent);
}

#[test]
fn an_answer_before_anything_was_asked() {
    let agent = Agent::closed();
    agent.hub.set_workload(workload("a", 0));
    let ztunnel = agent.ztunnel();
    ztunnel.send(ztunnel::ACK);
    ztunnel.is_closed();
    agent.hub.start_snapshots();
    serves(&agent);
}

#[test]
fn an_answer_too_many() {
    let agent = Agent::with_workload();
    let ztunnel = agent.ztunnel_with(&["a"]);
    ztunnel.send(ztunnel::ACK);
    ztunnel.is_closed();
    serves(&agent);
}

/// The answer must not be attributed to the next request, which has not been sent yet.
#[test]
fn an_answer_too_many_before_the_next_request() {
    let (go_on, wait) = channel();
    let wait = Mutex::new(wait);
    let (tell, told) = channel();
    // The first acceptance delays the ztunnel's thread.
    let hub = Hub::new(
        patient_deadlines(),
        Box::new(move |event| {
            if matches!(event, ZdsEvent::Accepted { .. }) && tell.send(event).is_ok() {
                let _ = wait.lock().unwrap().recv();
            }
        }),
        Box::new(|_| Ok(BTreeSet::new())),
    );
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ztunnel.sock");
    ZdsServer::bind(&path).unwrap().serve(hub.clone()).unwrap();
    hub.start_snapshots();
    hub.set_workload(workload("a", 0));
    let ztunnel = Ztunnel::dial(&path);
    ztunnel.hello();
    ztunnel.acks(&add("a", 0));
    assert_eq!(told.recv_timeout(PATIENCE), Ok(accepted("a", 0)));
    ztunnel.send(ztunnel::ACK);
    go_on.send(()).unwrap();
    ztunnel.is_closed();
}

#[test]
fn ends_at_every_point() {
    let agent = Agent::with_workload();
    for (requests, how) in (0..3).flat_map(|n| [Shutdown::Write, Shutdown::Both].map(|how| (n, how))) {
        let ztunnel = agent.ztunnel();
        for _ in 0..requests {
            let _ = ztunnel.asked();
            ztunnel.send(ztunnel::ACK);
        }
        // Half-closed it could never answer, so it is as useless as a closed one.
        rustix::net::shutdown(&ztunnel.socket, how).unwrap();
        eventually(|| agent.hub.list_connections().is_empty());
    }
    drop(Ztunnel::dial(&agent.socket()));
    serves(&agent);
}

#[test]
fn file_descriptors() {
    let agent = Agent::with_workload();
    let fd = netns(3);
    let ztunnel = Ztunnel::dial(&agent.socket());
    ztunnel.try_send(ztunnel::HELLO, &[fd.as_fd()]).unwrap();
    ztunnel.is_closed();
    let ztunnel = agent.ztunnel();
    assert_eq!(ztunnel.asked(), add("a", 0));
    ztunnel.try_send(ztunnel::ACK, &[fd.as_fd(); 16]).unwrap();
    ztunnel.is_closed();
    serves(&agent);
}

#[test]
fn too_many() {
    let agent = Agent::open();
    let mut all: Vec<Ztunnel> = (0..zds::MAX_UNKNOWN_PEERS).map(|_| agent.ztunnel()).collect();
    Ztunnel::dial(&agent.socket()).is_closed();
    assert_eq!(agent.hub.list_connections().len(), zds::MAX_UNKNOWN_PEERS);
    drop(all.pop());
    agent.hub.set_workload(workload("a", 0));
    // A place is free when the thread of the closed connection has ended, a moment after its last event.
    eventually(|| {
        let ztunnel = Ztunnel::dial(&agent.socket());
        let _ = ztunnel.try_send(ztunnel::HELLO, &[]);
        ztunnel.try_asked() == Some(add("a", 0))
    });
}
