//! A node with many pods of the mesh: time until a ztunnel has them all again, and their cost at rest.

use std::{
    fs,
    net::IpAddr,
    thread,
    time::{Duration, Instant, SystemTime},
};

use kit::{Netns, Pod, WorkloadState};
use netlink::{MessageFlags, NetlinkProtocol, NetlinkRequest, Socket};

use super::fixture::{Fixture, MESH};
use crate::ambient::{self, spread};

const PODS: usize = 250;
/// The measurement itself: longer than the observation interval of a watched pod, so each is observed once.
const REST: Duration = Duration::from_secs(250);
/// Percentage of one core.
const REST_BOUND: f64 = 0.5;
/// Time limit until all are captured, on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);
/// Maximum number of restarts.
const RESTARTS: usize = 10;

/// Pods that are a network namespace with an address, and an entry in the process list.
pub(super) struct Crowd {
    pub(super) fixture: Fixture,
    pub(super) pods: Vec<(Pod, Netns)>,
}

pub(crate) fn run(rounds: usize, announce: bool, rest: bool) {
    let mut crowd = Crowd::start(PODS);
    let bare = rest.then(|| crowd.rest(REST / 5));
    crowd.join();
    if rest {
        crowd.print_rest(bare.unwrap_or_default());
    }
    if announce {
        crowd.announce(rounds.min(RESTARTS));
    }
}

/// `NFNL_SUBSYS_NFTABLES` and `NFT_MSG_GETGEN`.
const GET_GENERATION: u16 = 0x0a10;

/// Requests the generation of nf_tables' rules.
fn ask_generation(socket: &mut Socket) {
    let request = NetlinkRequest::new(GET_GENERATION, MessageFlags::NONE, &[0; 4]);
    let _ = socket.get_first(request).unwrap();
}

/// CPU time of a thread that wakes up ten times a second, and does nothing else or this, as a percentage of one core: the minimum
/// on this machine.
fn waking(period: Duration, mut also: impl FnMut()) -> f64 {
    let used = || {
        let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
    };
    let (before, began) = (used(), Instant::now());
    while began.elapsed() < period {
        thread::sleep(Duration::from_millis(100)); // the measurement itself
        also();
    }
    (used() - before).as_secs_f64() / began.elapsed().as_secs_f64() * 100.0
}

impl Crowd {
    /// Starts pods that run outside the mesh.
    pub(super) fn start(count: usize) -> Crowd {
        let fixture = Fixture::start(&[]);
        let mut pods = Vec::new();
        for number in 0..count {
            let ip = address(number);
            let (pod, netns) = (Pod::new(MESH, &format!("pod-{number}")), create_netns("crowd", ip));
            fixture.processes.add_in_slice(number + 100, &pod.uid, &netns);
            fixture.manifests.put_pod(&pod.manifest(&[ip]));
            pods.push((pod, netns));
        }
        Crowd { fixture, pods }
    }

    fn served(&self) -> usize {
        let states = self.fixture.ztunnel.workloads();
        states.values().filter(|state| **state == WorkloadState::Up).count()
    }

    /// Labels their namespace.
    pub(super) fn join(&mut self) {
        let count = self.pods.len();
        let began = Instant::now();
        self.fixture.label(true);
        let captured = "istio_cni_mesh_pods{redirection=\"ambient\",state=\"captured\"}";
        let daemon = &self.fixture.daemon;
        let what = std::fmt::from_fn(|f| write!(f, "all are captured:\n{}", daemon.log()));
        kit::until_within(LIMIT, what, || daemon.metric(captured) == Some(count as f64));
        assert_eq!(self.served(), count);
        println!(
            "{count} running pods join by their namespace's label: captured, looked at again and served after {:.1?}",
            began.elapsed()
        );
        // Updates the objects as the API would have them. A directory is only read.
        for (number, (pod, _)) in self.pods.iter().enumerate() {
            let marked = pod.clone().annotation("ambient.istio.io/redirection", "enabled");
            self.fixture.manifests.put_pod(&marked.manifest(&[address(number)]));
        }
        thread::sleep(Duration::from_secs(3)); // until all subsequent work is complete
    }

    /// CPU time of the agent and of its tools, as a percentage of one core.
    pub(super) fn rest(&self, period: Duration) -> f64 {
        let used = || self.fixture.daemon.cpu_time() + self.fixture.daemon.tools_cpu_time();
        let (before, began) = (used(), Instant::now());
        thread::sleep(period); // the measurement itself
        (used() - before).as_secs_f64() / began.elapsed().as_secs_f64() * 100.0
    }

    fn print_rest(&self, bare: f64) {
        let wakes = thread::spawn(|| waking(REST, || {}));
        let asks = thread::spawn(|| {
            let mut socket = Socket::open(NetlinkProtocol::Netfilter).unwrap();
            waking(REST, || ask_generation(&mut socket))
        });
        let captured = self.rest(REST);
        let (wakes, asks) = (wakes.join().unwrap(), asks.join().unwrap());
        println!(
            "install-cni with the agent, {PODS} pods from manifests, {REST:?} at rest, its tools included:"
        );
        println!(
            "  CPU {captured:.3} % of one core (bound {REST_BOUND}); while none of them was in the mesh: {bare:.3} %; resident {:.2} MiB",
            self.fixture.daemon.resident_kib() as f64 / 1024.0
        );
        println!(
            "  for comparison, in the same time: a thread that only wakes as often as the agent's does: {wakes:.3} %; one that asks for the generation of rules then: {asks:.3} %"
        );
        println!();
    }

    /// Kills the agent, and starts the next one after its end: it would otherwise wait for the lock of the node.
    pub(super) fn restart(&mut self) {
        self.fixture.daemon.end();
        self.fixture.daemon = self.fixture.container.start();
    }

    /// Kills the agent, and measures until the next one has sent all pods to ztunnel.
    fn announce(&mut self, restarts: usize) {
        let (mut whole, mut telling) = (Vec::new(), Vec::new());
        for _ in 0..restarts {
            let (told, snapshots) = (self.fixture.ztunnel.messages().len(), self.fixture.ztunnel.snapshots());
            self.restart();
            self.fixture.ztunnel.wait_for("the first message", |messages| messages.len() > told);
            let began = Instant::now();
            self.fixture.ztunnel.wait_for_snapshots(snapshots + 1);
            telling.push(began.elapsed().as_secs_f64() * 1000.0);
            let started = self.fixture.daemon.started().unwrap();
            whole.push(SystemTime::now().duration_since(started).unwrap().as_secs_f64() * 1000.0);
            let new = self.fixture.ztunnel.messages().len() - told;
            assert!(new > PODS && self.served() == PODS, "{new} messages, {} pods", self.served());
            self.fixture.daemon.wait_until_ready();
        }
        let mut ready = Vec::new();
        for _ in 0..restarts {
            let snapshots = self.fixture.ztunnel.snapshots();
            self.restart();
            self.fixture.daemon.wait_until_ready();
            let started = self.fixture.daemon.started().unwrap();
            ready.push(SystemTime::now().duration_since(started).unwrap().as_secs_f64() * 1000.0);
            self.fixture.ztunnel.wait_for_snapshots(snapshots + 1);
        }
        println!(
            "The agent is killed and started again with {PODS} pods, {restarts} times; median (least, greatest)."
        );
        for (name, values) in [
            ("from its start until it is ready (bound 60)", ready),
            ("from its start until ztunnel has them all (bound 1000)", whole),
            ("  of it from the first request to the last answer", telling),
        ] {
            let (median, least, most) = spread(&values);
            println!("  {name:<56} {median:>8.1} ms ({least:.1}, {most:.1})");
        }
        println!();
    }
}

/// Creates the network namespace of a pod with this address.
pub(super) fn create_netns(name: &str, ip: IpAddr) -> Netns {
    let netns = Netns::new(name);
    let batch =
        format!("link add eth0 up type veth peer name peer0\naddress add {ip}/32 dev eth0\nlink set lo up\n");
    netns.pipe("ip -batch -", &batch);
    netns
}

pub(super) fn address(number: usize) -> IpAddr {
    IpAddr::V4(ambient::fake_ip(u32::try_from(number).unwrap()))
}
