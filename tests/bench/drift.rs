//! Duration of drift: from a change of our objects by another component to the moment when the kernel has the previous state again,
//! at random moments, for each kind.

use std::{
    net::UdpSocket,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use kit::{Netns, Pod, PodSandbox};

use crate::{ambient::fixture as node_level, base::BenchNode, inpod, results, sidecar_node::SidecarNode};

/// Parts that can be selected.
pub(crate) const PARTS: [&str; 4] = ["drift-sidecar", "drift-in-pod", "drift-node", "drift-legacy"];

const BOUNDS: &str = "bounds, but of legacy tables: half of them within 100 ms, 99 of 100 within 1000 ms";
/// Time limit of drift: if it lasts longer than the slowest regular observation, it is not repaired.
const LIMIT: Duration = Duration::from_secs(60);
/// Maximum number of changes for one agent: it attributes more within a minute to a conflicting writer.
const AGENT: usize = 40;
/// Changes of legacy tables are found by polling.
const LEGACY_ROUNDS: usize = 10;
const PODS: usize = 5;
/// An unreachable address outside every network of the benchmark, and the interval of packets to it.
const TARGET: &str = "192.0.2.1:9";
const PACKETS: Duration = Duration::from_millis(5);

/// One kind: a command that causes drift, and one whose output shows the repair.
struct Kind {
    name: &'static str,
    damage: &'static str,
    shown: &'static str,
}

const fn kind(name: &'static str, damage: &'static str, shown: &'static str) -> Kind {
    Kind { name, damage, shown }
}

/// The tables with our rules, of both families.
const RULES: &str = "nft -s list table ip nat; nft -s list table ip6 nat";
const NATIVE_RULES: &str = "nft -s list table inet istio-ambient-nat";
const NODE_RULES: &str = "nft -s list table ip mangle; nft -s list table ip6 mangle";
const SETS: &str = "ipset -sorted save";
const POLICY_RULES: &str = "ip rule";
const POLICY_RULES_V6: &str = "ip -6 rule";

const IN_POD: [Kind; 7] = [
    kind("chain flushed", "nft flush chain ip nat ISTIO_OUTPUT", RULES),
    kind("IPv6 jump removed", "ip6tables-nft -t nat -D OUTPUT -j ISTIO_OUTPUT", RULES),
    kind("ruleset flushed", "nft flush ruleset", RULES),
    kind("policy rule removed", "ip rule del pref 32764", POLICY_RULES),
    kind("IPv6 policy rule removed", "ip -6 rule del pref 32764", POLICY_RULES_V6),
    kind("route removed", "ip route flush table 100", "ip route show table 100"),
    kind("IPv6 route removed", "ip -6 route flush table 100", "ip -6 route show table 100"),
];
const SIDECAR: [Kind; 4] = [
    kind("chain flushed", "nft flush chain ip nat ISTIO_OUTPUT", RULES),
    kind("rule removed", "iptables-nft -t nat -D ISTIO_REDIRECT 1", RULES),
    kind("IPv6 jump removed", "ip6tables-nft -t nat -D PREROUTING -p tcp -j ISTIO_INBOUND", RULES),
    kind("ruleset flushed", "nft flush ruleset", RULES),
];
const IN_POD_NATIVE: [Kind; 2] = [
    kind("native chain flushed", "nft flush chain inet istio-ambient-nat istio-output", NATIVE_RULES),
    kind("native ruleset flushed", "nft flush ruleset", NATIVE_RULES),
];
const IN_POD_LEGACY: [Kind; 1] =
    [kind("legacy chain flushed", "iptables-legacy -t nat -F ISTIO_OUTPUT", "iptables-legacy -t nat -S")];
const PROBES: [Kind; 3] = [
    kind("node: chain for probes flushed", "nft flush chain ip nat ISTIO_POSTRT", RULES),
    kind("node: set of probes emptied", "ipset flush istio-inpod-probes-v4", SETS),
    kind("node: IPv6 set of probes emptied", "ipset flush istio-inpod-probes-v6", SETS),
];
const NODE: [Kind; 6] = [
    kind("chain flushed", "nft flush chain ip mangle ztunnel-PREROUTING", NODE_RULES),
    kind("ruleset flushed", "nft flush ruleset", NODE_RULES),
    kind("policy rule removed", "ip rule del pref 100", POLICY_RULES),
    kind("set emptied", "ipset flush ztunnel-pods-ips", SETS),
    kind("route removed", "ip route flush table 101", "ip route show table 101"),
    kind("link removed", "ip link del istioout0", "ip route show table 101"),
];
const NODE_LEGACY: [Kind; 1] = [kind(
    "legacy chain flushed",
    "iptables-legacy -t mangle -F ztunnel-PREROUTING",
    "iptables-legacy -t mangle -S",
)];

/// Measures each kind `rounds` times, while the pods or the node send packets. `base` has the API server, without which no sidecar
/// is known.
pub(crate) fn run(base: &BenchNode, rounds: usize, wanted: impl Fn(&str) -> bool) {
    let mut rows = Vec::new();
    println!("Time until drift is repaired, {rounds} times of each kind, under traffic; {BOUNDS}.");
    for kind in SIDECAR.iter().filter(|_| wanted("drift-sidecar")) {
        let durations = agents(rounds, |rounds| {
            let node = SidecarNode::start(base, PODS);
            let netns: Vec<&Netns> = node.pods.iter().map(|pod| &pod.netns).collect();
            durations(kind, &netns, rounds)
        });
        rows.push(row("sidecar", kind, &durations));
    }
    let in_pod_wanted = wanted("drift-in-pod");
    for kind in IN_POD.iter().filter(|_| in_pod_wanted) {
        rows.push(in_pod(kind, &[], rounds));
    }
    for kind in IN_POD_NATIVE.iter().filter(|_| in_pod_wanted) {
        rows.push(in_pod(kind, &[("NATIVE_NFTABLES", "true")], rounds));
    }
    for kind in PROBES.iter().filter(|_| wanted("drift-node")) {
        let durations = agents(rounds, |rounds| {
            let mut fixture = inpod::Fixture::start(&[]);
            let _pods = captured_pods(&mut fixture);
            durations(kind, &[fixture.node.netns()], rounds)
        });
        rows.push(row("in-pod", kind, &durations));
    }
    for kind in NODE.iter().filter(|_| wanted("drift-node")) {
        rows.push(on_node(kind, "nft", rounds));
    }
    if wanted("drift-legacy") {
        let rounds = rounds.min(LEGACY_ROUNDS);
        println!("In legacy tables, {rounds} times of each kind:");
        let env = [("FORCE_IPTABLES_BINARY", "legacy")];
        rows.extend(IN_POD_LEGACY.iter().map(|kind| in_pod(kind, &env, rounds)));
        rows.extend(NODE_LEGACY.iter().map(|kind| on_node(kind, "legacy", rounds)));
    }
    println!();
    results::write("drift", ["ms"], rows);
}

/// Name and samples of a kind.
type Row = (String, Vec<[f64; 1]>);

fn in_pod(kind: &Kind, env: &[(&str, &str)], rounds: usize) -> Row {
    let durations = agents(rounds, |rounds| {
        let mut fixture = inpod::Fixture::start(env);
        let pods = captured_pods(&mut fixture);
        let netns: Vec<&Netns> = pods.iter().map(|pod| &pod.netns).collect();
        durations(kind, &netns, rounds)
    });
    row("in-pod", kind, &durations)
}

fn on_node(kind: &Kind, tool: &str, rounds: usize) -> Row {
    let durations = agents(rounds, |rounds| {
        let mut fixture = node_level::Fixture::start(&[("FORCE_IPTABLES_BINARY", tool)]);
        let _ztunnel = fixture.ztunnel("ztunnel");
        let _pods: Vec<PodSandbox> =
            (0..PODS).map(|at| fixture.pod(node_level::MESH, &format!("pod-{at}"))).collect();
        fixture.wait_members(PODS);
        durations(kind, &[fixture.node.netns()], rounds)
    });
    row("node-level", kind, &durations)
}

/// All rounds, split among agents so that none attributes them to a conflicting writer.
fn agents(rounds: usize, mut measure: impl FnMut(usize) -> Vec<Duration>) -> Vec<Duration> {
    let mut all = Vec::new();
    while all.len() < rounds {
        all.extend(measure(AGENT.min(rounds - all.len())));
    }
    all
}

fn captured_pods(fixture: &mut inpod::Fixture) -> Vec<PodSandbox> {
    let start = |at: usize| {
        let sandbox = fixture.node.pod(Pod::new(inpod::MESH, &format!("pod-{at}")), &[]);
        fixture.processes.add_in_slice(1000 + at, &sandbox.pod.uid, &sandbox.netns);
        fixture.manifests.put_pod(&sandbox.manifest());
        sandbox
    };
    let pods = (0..PODS).map(start).collect();
    fixture.label(true);
    let captured = "istio_cni_mesh_pods{redirection=\"ambient\",state=\"captured\"}";
    fixture.daemon.wait_for("all are captured", |daemon| daemon.metric(captured) == Some(PODS as f64));
    pods
}

fn durations(kind: &Kind, places: &[&Netns], rounds: usize) -> Vec<Duration> {
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    thread::sleep(Duration::from_secs(2)); // until all work after a start is complete
    let baselines: Vec<String> = places.iter().map(|netns| output(netns, kind.shown)).collect();
    let _traffic = Traffic::start(places);
    let mut durations = Vec::new();
    for (netns, baseline) in places.iter().zip(&baselines).cycle().take(rounds) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        thread::sleep(Duration::from_millis(700 + random % 1000)); // the random moment
        let _ = netns.sh(kind.damage);
        let began = Instant::now();
        while output(netns, kind.shown) != *baseline {
            let now = output(netns, kind.shown);
            assert!(began.elapsed() < LIMIT, "not repaired: {}\n{now}\n{baseline}", kind.name);
        }
        durations.push(began.elapsed());
    }
    durations
}

/// Output of a command as sorted lines: restored objects may be in another order.
fn output(netns: &Netns, command: &str) -> String {
    let made = netns.run(|| Command::new("sh").args(["-c", command]).output().unwrap());
    let text = String::from_utf8_lossy(&made.stdout);
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines.join("\n")
}

/// Sends packets from all places until drop.
struct Traffic {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Traffic {
    fn start(places: &[&Netns]) -> Traffic {
        let socket = |netns: &&Netns| netns.run(|| UdpSocket::bind("0.0.0.0:0").unwrap());
        let sockets: Vec<UdpSocket> = places.iter().map(socket).collect();
        let ended = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&ended);
        let thread = thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                for socket in &sockets {
                    let _ = socket.send_to(&[0; 64], TARGET); // the node has no route to it
                }
                thread::sleep(PACKETS);
            }
        });
        Traffic { ended, thread: Some(thread) }
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Prints a kind, and returns its row of the samples.
fn row(capture: &str, kind: &Kind, durations: &[Duration]) -> Row {
    let samples: Vec<f64> = durations.iter().map(|duration| duration.as_secs_f64() * 1e3).collect();
    let mut sorted = samples.clone();
    sorted.sort_by(f64::total_cmp);
    let millis = |part: usize| {
        let at = (sorted.len() * part).div_ceil(100).saturating_sub(1);
        sorted.get(at).copied().unwrap_or_default()
    };
    println!(
        "  {capture:<11} {:<34} median {:>7.1} ms, 99th of 100 {:>7.1} ms, most {:>7.1} ms",
        kind.name,
        millis(50),
        millis(99),
        millis(100)
    );
    (format!("{capture}: {}", kind.name), samples.into_iter().map(|sample| [sample]).collect())
}
