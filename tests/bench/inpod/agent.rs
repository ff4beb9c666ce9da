//! The agent with ambient mode and repair on a node of a cluster, whose pods are all captured: time until it is ready after a
//! restart, and its memory; ours alternating with Istio's.

use std::{
    thread,
    time::{Duration, Instant, SystemTime},
};

use kit::Netns;

use super::{
    cluster::ClusterNode,
    crowd::{address, create_netns},
};
use crate::{
    ambient::spread,
    base::BenchNode,
    peer::{ISTIO, Peer},
    results,
};

const PODS: usize = 250;
/// Time limit until all are captured, or an agent is ready, on a busy machine.
const LIMIT: Duration = Duration::from_secs(300);
/// Time until all work after a start is complete.
const AFTER: Duration = Duration::from_secs(3);
/// Maximum number of restarts.
const RESTARTS: usize = 10;
/// Whether Istio's agent compares the rules of all pods before it is ready, which is its default. Ours ignores it.
const RECONCILES: &str = "AMBIENT_RECONCILE_POD_RULES_ON_STARTUP";

/// A node with its captured pods. No agent runs between two restarts.
struct Crowd<'a> {
    place: ClusterNode<'a>,
    _pods: Vec<Netns>,
}

/// An agent, its node's place, and its costs: milliseconds until it was ready, resident memory, and the anonymous part of it, in
/// KiB.
struct Row {
    name: String,
    node: usize,
    reconciles: &'static str,
    samples: Vec<[f64; 3]>,
}

pub(crate) fn run(base: &BenchNode, peer: Option<&Peer>, rounds: usize) {
    let rounds = rounds.min(RESTARTS);
    let row = |name: &str, node, reconciles| Row { name: name.to_owned(), node, reconciles, samples: vec![] };
    let mut nodes = vec![Crowd::start(base, "agent-millrace", None)];
    let mut rows = vec![row("install-cni", 0, "true")];
    if peer.is_some() {
        nodes.push(Crowd::start(base, "agent-istio", peer));
        rows.push(row(&format!("{ISTIO}install-cni"), 1, "true"));
        rows.push(row(&format!("{ISTIO}install-cni, comparing no rules"), 1, "false"));
    }
    for _ in 0..rounds {
        for row in &mut rows {
            row.samples.push(nodes[row.node].restart(row.reconciles));
        }
    }
    println!(
        "The agent with ambient mode and repair is killed and started again with {PODS} captured pods, {rounds} times; medians (least)."
    );
    let ours = rows[0].medians();
    for row in &rows {
        let [ready, resident, anonymous] = row.medians();
        println!(
            "  {:<40} ready after {:>8.1} ms ({:.1}), resident {:>6.2} MiB, of it anonymous {:>6.2}; {:.1}, {:.1} and {:.1} times ours",
            row.name,
            ready.0,
            ready.1,
            resident.0 / 1024.0,
            anonymous.0 / 1024.0,
            ready.0 / ours[0].0,
            resident.0 / ours[1].0,
            anonymous.0 / ours[2].0
        );
    }
    println!();
    let rows = rows.into_iter().map(|row| (row.name, row.samples));
    results::write("in-pod-agent", ["ready_ms", "resident_kib", "anonymous_kib"], rows);
}

impl Row {
    /// Median and minimum of each sample.
    fn medians(&self) -> [(f64, f64); 3] {
        [0, 1, 2].map(|at| {
            let values: Vec<f64> = self.samples.iter().map(|sample| sample[at]).collect();
            let (median, least, _) = spread(&values);
            (median, least)
        })
    }
}

impl<'a> Crowd<'a> {
    /// Starts an agent, waits until it has captured all pods, and kills it.
    fn start(base: &'a BenchNode, node: &'static str, peer: Option<&Peer>) -> Crowd<'a> {
        let mut place = ClusterNode::start(base, node, peer);
        let pods = (0..PODS).map(|number| {
            let ip = address(number);
            let (pod, netns) = (place.create_pod(&format!("pod-{number}")), create_netns("agent", ip));
            let cgroup = format!("kubepods/burstable/pod{}/0123", pod.uid);
            place.processes.add(u32::try_from(number).unwrap() + 100, &cgroup, &netns);
            base.api.admin().patch_status(&place.path(&pod.name), &pod.manifest(&[ip])["status"]);
            netns
        });
        let pods = pods.collect();
        let began = Instant::now();
        while place.captured() != PODS {
            assert!(began.elapsed() < LIMIT, "{} are captured:\n{}", place.captured(), place.daemon.log());
            thread::sleep(Duration::from_millis(500)); // between two requests to the API server
        }
        place.daemon.end();
        Crowd { place, _pods: pods }
    }

    /// Starts the agent once more, measures, and ends it.
    fn restart(&mut self, reconciles: &str) -> [f64; 3] {
        let snapshots = self.place.ztunnel.snapshots();
        self.place.container.set_env(RECONCILES, reconciles);
        self.place.daemon = self.place.container.start();
        let began = Instant::now();
        while !self.place.daemon.is_ready() {
            assert!(began.elapsed() < LIMIT, "it does not get ready:\n{}", self.place.daemon.log());
            thread::sleep(Duration::from_millis(2)); // between two probes
        }
        let started = self.place.daemon.started().unwrap();
        let ready = SystemTime::now().duration_since(started).unwrap().as_secs_f64() * 1000.0;
        self.place.ztunnel.wait_for_snapshots(snapshots + 1);
        thread::sleep(AFTER);
        let daemon = &mut self.place.daemon;
        let memory = [daemon.resident_kib(), daemon.anonymous_kib()].map(|kib| kib as f64);
        daemon.end();
        [ready, memory[0], memory[1]]
    }
}
