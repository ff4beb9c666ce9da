//! With a ztunnel written byte by byte from the protocol's description, over a real socket and with real network namespaces.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::indexing_slicing,
    reason = "tests"
)]

#[path = "zds/changes.rs"]
mod changes;
#[path = "zds/hostile.rs"]
mod hostile;
#[path = "zds/identity.rs"]
mod identity;
#[path = "zds/leaks.rs"]
mod leaks;
#[path = "zds/messages.rs"]
mod messages;
#[path = "zds/property.rs"]
mod property;
#[path = "zds/refusals.rs"]
mod refusals;
#[path = "zds/rollout.rs"]
mod rollout;
#[path = "zds/server.rs"]
mod server;
#[path = "zds/snapshot.rs"]
mod snapshot;
#[path = "zds/ztunnel.rs"]
mod ztunnel;

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use netns::{Netns, NetnsId};
use tempfile::TempDir;
use zds::{Hub, PeerLocator, Workload, ZdsDeadlines, ZdsEvent, ZdsServer, ZtunnelPod};

use ztunnel::{Asked, Ztunnel};

/// Longer than any successful operation.
const PATIENCE: Duration = Duration::from_secs(20);

/// Deadlines that no test reaches, however long something else stops this process.
fn patient_deadlines() -> ZdsDeadlines {
    let long = 10 * PATIENCE;
    ZdsDeadlines {
        hello: long,
        unknown_peer_hello: long,
        answer: long,
        first_retry: long,
        last_retry: long,
        ..ZdsDeadlines::default()
    }
}

/// An agent: its hub, its socket, and its events.
struct Agent {
    hub: Hub,
    events: Receiver<ZdsEvent>,
    /// Address of the ztunnel that connects next; `None` means that it has none.
    next: Arc<Mutex<Option<IpAddr>>>,
    directory: TempDir,
}

impl Agent {
    /// Not open, and without a limit on the rate of connections.
    fn closed() -> Agent {
        Agent::with(ZdsDeadlines { unknown_peer_delay: Duration::ZERO, ..patient_deadlines() })
    }

    fn open() -> Agent {
        let agent = Agent::closed();
        agent.hub.start_snapshots();
        agent
    }

    /// Open, with the workload `a` in the first namespace.
    fn with_workload() -> Agent {
        let agent = Agent::open();
        agent.hub.set_workload(workload("a", 0));
        agent
    }

    fn with(deadlines: ZdsDeadlines) -> Agent {
        let (tell, events) = channel();
        let next = Arc::new(Mutex::new(None));
        let taken = Arc::clone(&next);
        let locate: PeerLocator = Box::new(move |_| Ok(taken.lock().unwrap().take().into_iter().collect()));
        let hub = Hub::new(deadlines, Box::new(move |event| drop(tell.send(event))), locate);
        let agent = Agent { hub, events, next, directory: tempfile::tempdir().unwrap() };
        ZdsServer::bind(&agent.socket()).unwrap().serve(agent.hub.clone()).unwrap();
        agent
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("ztunnel.sock")
    }

    /// Connects and sends the hello; returns when the agent has received it.
    fn ztunnel(&self) -> Ztunnel {
        let before = self.hub.list_connections().len();
        let ztunnel = Ztunnel::dial(&self.socket());
        ztunnel.hello();
        eventually(|| self.hub.list_connections().len() == before + 1);
        ztunnel
    }

    /// Connects, and receives the snapshot of these workloads in any order.
    fn ztunnel_with(&self, uids: &[&str]) -> Ztunnel {
        let ztunnel = self.ztunnel();
        let mut told: Vec<String> = uids.iter().map(|_| ztunnel.acks_add().0).collect();
        told.sort();
        assert_eq!(told, uids);
        ztunnel.acks(&Asked::SnapshotSent);
        self.wait_synced();
        ztunnel
    }

    /// Waits until the agent has recorded that the last connection has its snapshot.
    fn wait_synced(&self) {
        eventually(|| self.hub.list_connections().last().is_some_and(|last| last.in_sync));
    }

    /// A ztunnel that connects from the pod with this address.
    fn ztunnel_at(&self, last: u8) -> Ztunnel {
        *self.next.lock().unwrap() = Some(address(last));
        self.ztunnel()
    }

    fn is_served(&self, uid: &str) -> bool {
        self.hub.is_served(&uid.into())
    }

    /// Number of connections from outside the node's ztunnel pods, by the last event about it.
    fn unknown(&self) -> usize {
        let told = self.events.try_iter().filter_map(|event| match event {
            ZdsEvent::Connections { unknown, .. } => Some(unknown),
            _ => None,
        });
        told.last().unwrap()
    }

    /// The next event other than those about connections.
    fn event(&self) -> ZdsEvent {
        loop {
            let event = self.events.recv_timeout(PATIENCE).unwrap();
            if !matches!(event, ZdsEvent::Connections { .. }) {
                return event;
            }
        }
    }
}

/// Waits for an imminent action of another thread.
#[track_caller]
fn eventually(holds: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "it never came to that");
        thread::sleep(Duration::from_millis(1)); // between two polls
    }
}

/// Runs a test in a process of its own and returns true; in that process, returns false.
fn has_run_alone(test: &str) -> bool {
    const ALONE: &str = "ZDS_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return false;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command.args(["--exact", test, "--nocapture"]).env(ALONE, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let has_passed = text.lines().any(|line| line.starts_with("test result: ok. 1 passed;"));
    assert!(output.status.success() && has_passed, "{text}{output:?}");
    true
}

/// One of several network namespaces, which all tests share.
fn netns(number: usize) -> Arc<Netns> {
    static ALL: OnceLock<Vec<Arc<Netns>>> = OnceLock::new();
    let all = ALL.get_or_init(|| (0..4).map(|_| Arc::new(Netns::create().unwrap())).collect());
    Arc::clone(&all[number])
}

fn id(number: usize) -> NetnsId {
    netns(number).id()
}

fn address(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

/// A ztunnel pod created on this day.
fn pod(last: u8, day: u8) -> ZtunnelPod {
    ZtunnelPod {
        uid: format!("ztunnel-{last}").into(),
        created: format!("2026-01-{day:02}T00:00:00Z"),
        terminating: false,
        ips: vec![address(last)],
        netns: None,
    }
}

/// A workload in this network namespace.
fn workload(uid: &str, number: impl Into<Option<usize>>) -> Workload {
    Workload {
        uid: uid.into(),
        name: format!("pod-{uid}"),
        namespace: "ns".to_owned(),
        service_account: "sa".to_owned(),
        netns: number.into().map(netns),
    }
}

fn add(uid: &str, number: usize) -> Asked {
    let who = [format!("pod-{uid}"), "ns".to_owned(), "sa".to_owned()];
    Asked::Add { uid: uid.to_owned(), who, netns: id(number) }
}

fn del(uid: &str) -> Asked {
    Asked::Del(uid.to_owned())
}

fn keep(uid: &str) -> Asked {
    Asked::Keep(uid.to_owned())
}

fn accepted(uid: &str, number: usize) -> ZdsEvent {
    ZdsEvent::Accepted { uid: uid.into(), netns: id(number) }
}

fn refused(uid: &str, number: usize, error: &str) -> ZdsEvent {
    ZdsEvent::Refused { uid: uid.into(), netns: id(number), error: error.to_owned() }
}
