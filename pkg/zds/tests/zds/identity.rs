//! Places and precedence by the network namespace of the peer, with real namespaces: whatever foreign processes do, a ztunnel pod
//! of the node is served.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tracing::{Event, Metadata, Subscriber, span};
use zds::PeerStanding;

use super::*;

/// A ztunnel pod whose namespace is known.
fn known(last: u8, day: u8, number: usize) -> ZtunnelPod {
    ZtunnelPod { netns: Some(id(number)), ..pod(last, day) }
}

/// Connects from this namespace.
fn dial_from(agent: &Agent, number: usize) -> Ztunnel {
    let socket = agent.socket();
    netns(number).run_in(|| Ztunnel::dial(&socket)).unwrap()
}

/// Connects from this namespace, and asserts that it is served.
fn served_from(agent: &Agent, number: usize, uids: &[&str]) -> Ztunnel {
    let ztunnel = dial_from(agent, number);
    ztunnel.hello();
    uids.iter().for_each(|_| drop(ztunnel.acks_add()));
    ztunnel.acks(&Asked::SnapshotSent);
    let is_synced = || {
        let all = agent.hub.list_connections();
        all.iter().any(|one| one.standing == PeerStanding::Namespace && one.in_sync)
    };
    eventually(is_synced);
    ztunnel
}

/// Connects as a root process in another namespace, sends the hello and nothing more, and reconnects when it is closed.
fn mute(socket: &Path) -> io::Result<()> {
    let stranger =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::net::connect(&stranger, &SocketAddrUnix::new(socket)?)?;
    let _ = rustix::net::send(&stranger, ztunnel::HELLO, rustix::net::SendFlags::NOSIGNAL);
    let mut ready = [rustix::event::PollFd::new(&stranger, rustix::event::PollFlags::HUP)];
    let limit = rustix::event::Timespec::try_from(Duration::from_millis(200)).unwrap();
    rustix::event::poll(&mut ready, Some(&limit))?;
    Ok(())
}

/// Enough of them to fill all places permanently: the node's ztunnel connects, serves, and reconnects meanwhile.
#[test]
fn mute_strangers_keep_no_ztunnel_from_its_place() {
    // Log lines are counted, and the subscriber is global to the process.
    if has_run_alone("identity::mute_strangers_keep_no_ztunnel_from_its_place") {
        return;
    }
    tracing::subscriber::set_global_default(LineCount).unwrap();
    let unknown_peer_hello = ZdsDeadlines::default().unknown_peer_hello;
    let agent = Agent::with(ZdsDeadlines { unknown_peer_hello, ..patient_deadlines() });
    agent.hub.start_snapshots();
    agent.hub.set_ztunnels(vec![known(1, 1, 1)]);
    agent.hub.set_workload(workload("a", 0));
    let (over, dialled) = (AtomicBool::new(false), AtomicUsize::new(0));
    let socket = agent.socket();
    thread::scope(|scope| {
        for _ in 0..120 {
            let (over, dialled, socket) = (&over, &dialled, &socket);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    dialled.fetch_add(usize::from(mute(socket).is_ok()), Ordering::Relaxed);
                }
            });
        }
        let ends = Ends(&over);
        eventually(|| dialled.load(Ordering::Relaxed) > 500);
        let mut took = Vec::new();
        for _ in 0..5 {
            let began = Instant::now();
            let ztunnel = served_from(&agent, 1, &["a"]);
            took.push(began.elapsed());
            agent.hub.set_workload(workload("b", 2));
            ztunnel.acks(&add("b", 2));
            let of_ztunnels = |event: &ZdsEvent| *event == accepted("b", 2);
            eventually(|| agent.events.try_iter().any(|event| of_ztunnels(&event)));
            agent.hub.remove_workload(&"b".into());
            ztunnel.acks(&del("b"));
        }
        // At once, unless something else stops this process.
        took.sort_unstable();
        assert!(took[2] < Duration::from_secs(1), "{took:?}");
        drop(ends);
    });
    let lines = LINES.load(Ordering::Relaxed);
    println!("{} connections of strangers, {lines} lines", dialled.load(Ordering::Relaxed));
    assert!((1..40).contains(&lines), "{lines} lines");
}

/// Number of lines logged.
static LINES: AtomicUsize = AtomicUsize::new(0);

struct LineCount;

impl Subscriber for LineCount {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "zds" && *metadata.level() <= tracing::Level::INFO
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, _: &Event<'_>) {
        LINES.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// An address can be added to any namespace.
#[test]
fn the_address_of_a_ztunnel_pod_makes_no_ztunnel() {
    let agent = Agent::open();
    agent.hub.set_ztunnels(vec![known(1, 1, 1)]);
    let real = served_from(&agent, 1, &[]);
    *agent.next.lock().unwrap() = Some(address(1));
    let fake = dial_from(&agent, 2);
    fake.hello();
    fake.acks(&Asked::SnapshotSent);
    eventually(|| {
        agent.hub.list_connections().iter().all(|one| one.in_sync) && agent.hub.list_connections().len() == 2
    });
    agent.hub.set_workload(workload("a", 0));
    real.acks(&add("a", 0));
    fake.hears_nothing();
    let found: Vec<_> = agent.hub.list_connections().iter().map(|one| (one.standing, one.newest)).collect();
    assert_eq!(found, [(PeerStanding::Namespace, true), (PeerStanding::Unknown, false)]);
    assert_eq!(agent.unknown(), 1, "it is counted");
}

/// If the namespace of the pod is unknown, the address decides, with lower precedence than a known namespace.
#[test]
fn without_a_known_namespace_the_address_counts_least() {
    let agent = Agent::open();
    agent.hub.set_ztunnels(vec![pod(1, 1)]);
    *agent.next.lock().unwrap() = Some(address(1));
    let fake = dial_from(&agent, 2);
    fake.hello();
    fake.acks(&Asked::SnapshotSent);
    agent.wait_synced();
    assert_eq!(agent.hub.list_connections()[0].standing, PeerStanding::Address);
    *agent.next.lock().unwrap() = Some(address(1));
    let real = dial_from(&agent, 1);
    real.hello();
    real.acks(&Asked::SnapshotSent);
    eventually(|| agent.hub.list_connections().iter().filter(|one| one.in_sync).count() == 2);
    agent.hub.set_ztunnels(vec![known(1, 1, 1)]);
    agent.hub.set_workload(workload("a", 0));
    real.acks(&add("a", 0));
    fake.hears_nothing();
    let found: Vec<_> = agent.hub.list_connections().iter().map(|one| (one.standing, one.newest)).collect();
    assert_eq!(found, [(PeerStanding::Unknown, false), (PeerStanding::Namespace, true)]);
}

/// With hostNetwork ztunnel's namespace is the node's, in a rollout that of two pods.
#[test]
fn a_ztunnel_on_the_nodes_network_is_known_by_that() {
    let agent = Agent::open();
    agent.hub.set_ztunnels(vec![known(1, 1, 3)]);
    let old = served_from(&agent, 3, &[]);
    agent
        .hub
        .set_ztunnels(vec![known(1, 1, 3), known(1, 2, 3)].into_iter().zip(["a", "b"]).map(named).collect());
    agent.hub.set_workload(workload("a", 0));
    old.acks(&add("a", 0));
    let new = served_from(&agent, 3, &["a"]);
    assert_eq!(agent.unknown(), 0);
    new.hears_nothing();
}

fn named((pod, uid): (ZtunnelPod, &str)) -> ZtunnelPod {
    ZtunnelPod { uid: uid.into(), ..pod }
}

/// The maximum time for which a foreign process without a hello occupies a place.
#[test]
fn a_stranger_without_a_hello_is_closed_within_a_second() {
    let agent = Agent::open();
    agent.hub.set_ztunnels(vec![known(1, 1, 1)]);
    let _held: Vec<Ztunnel> = (0..zds::MAX_UNKNOWN_PEERS).map(|_| dial_from(&agent, 2)).collect();
    dial_from(&agent, 2).is_closed(); // no place is left
    drop(served_from(&agent, 1, &[]));
    let delay = Duration::ZERO;
    let agent = Agent::with(ZdsDeadlines { unknown_peer_delay: delay, ..ZdsDeadlines::default() });
    agent.hub.set_ztunnels(vec![known(1, 1, 1)]);
    let took = (0..3).map(|_| dial_from(&agent, 2).is_closed());
    assert!(took.min() < Some(Duration::from_secs(3)));
}
