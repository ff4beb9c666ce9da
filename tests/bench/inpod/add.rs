//! ADD of a pod with in-pod capture: the plugin, the agent, its tools and ztunnel, compared with a bare restore.

use std::{fs, path::PathBuf, sync::Arc, thread, time::Duration};

use kit::{Auth, InpodZtunnel, Node, Pod, WorkloadState, istio};
use model::Family;
use rules::{ChainSet, SavedTables, inpod};
use serde_json::{Value, json};

use super::{
    cluster::ClusterNode,
    fixture::{self, Fixture, MESH},
};
use crate::{
    ambient::spread,
    base::{self, BenchNode},
    contest::Results,
    measure::{self, BESIDE, Cost},
    peer::Peer,
    table,
};

/// Rounds beside the timed ones: one that counts requests, one that counts children.
const UNTIMED: usize = 2;
/// CPU time in milliseconds of Istio 1.29.1's plugin for an ADD of an ambient pod, measured separately.
const UPSTREAM_CPU: f64 = 27.0;
/// Additional milliseconds allowed for an ADD compared with the restore.
const BOUND: f64 = 4.0;

/// A node with new pods each time.
struct Ground<'a> {
    base: &'a BenchNode,
    place: Place<'a>,
    plugin: PathBuf,
    conf: Value,
    pods: Vec<Pod>,
    families: usize,
}

/// Source of the agent's pods.
enum Place<'a> {
    Manifests(Fixture),
    Cluster(ClusterNode<'a>),
}

/// One row of the table.
enum Row<'a> {
    /// Commands, in a network namespace of their own.
    Commands(&'static str, Vec<String>),
    /// An ADD.
    Add(&'static str, Box<Ground<'a>>),
}

pub(crate) fn run(base: &BenchNode, peer: Option<&Peer>, rounds: usize) {
    let dual = Ground::new(base, &[], 2, rounds + UNTIMED);
    let single = Ground::new(base, &[("AMBIENT_IPV6", "false")], 1, rounds + UNTIMED);
    let v4 = restore(base, "iptables-nft-restore", Family::V4);
    let v6 = restore(base, "ip6tables-nft-restore", Family::V6);
    let side_by_side = [v4.clone(), vec![BESIDE.to_owned()], v6].concat();
    let empty = kit::binary("empty").to_string_lossy().into_owned();
    let mut rows = vec![
        Row::Commands("an empty static program", vec![empty]),
        Row::Commands("iptables-nft-restore of the pod's rules", v4),
        Row::Add("ADD, IPv4 only", Box::new(single)),
        Row::Commands("both restores, side by side", side_by_side),
        Row::Add("ADD, dual stack", Box::new(dual)),
    ];
    if peer.is_some() {
        let ground = |node, peer| Box::new(Ground::in_cluster(base, node, peer, rounds + UNTIMED));
        rows.push(Row::Add("ADD, ambient pod of the API server", ground("add-millrace", None)));
        rows.push(Row::Add("Istio's ADD, ambient pod of the API server", ground("add-istio", peer)));
    }
    let mut results: Vec<Results> = rows.iter_mut().map(|row| row.prepare(base)).collect();
    for _ in 0..rounds {
        for (row, result) in rows.iter_mut().zip(&mut results) {
            result.costs.push(row.once(base, &[]));
        }
    }
    println!(
        "ADD of a pod of the mesh, ztunnel connected. Wall: with all that the agent and ztunnel do for it."
    );
    table::print_rows("in-pod-add", &results, rounds);
    table::print_ratios(&results);
    differences(&results[1], &results[2]);
    differences(&results[3], &results[4]);
    let walls = |results: &Results| results.costs.iter().map(|cost| cost.wall).collect::<Vec<f64>>();
    let floor = spread(&walls(&results[0])).0;
    for (row, result) in rows.iter().zip(&results) {
        if let Row::Add(name, ground) = row
            && let Place::Manifests(fixture) = &ground.place
        {
            let (add, ztunnel) = (spread(&walls(result)).0, ztunnel_time(fixture));
            println!(
                "{name}: of its {add:.2} ms ztunnel takes {ztunnel:.2}; without these {:.2} times an empty program (bound 2.5)",
                (add - ztunnel) / floor
            );
            print_phases(fixture, name);
        }
    }
    println!();
}

/// A restore of exactly the rules that the agent applies in a pod.
fn restore(base: &BenchNode, tool: &str, family: Family) -> Vec<String> {
    let pod = inpod::PodOptions { dns: true, ..inpod::PodOptions::default() };
    let rules = inpod::pod_rules(&inpod::InPodRulesConfig::default(), &pod, family);
    let text = ChainSet::IN_POD.apply(&rules, &SavedTables::default()).restore_text();
    let path = base.node.dir().join(format!("rules-{tool}"));
    fs::write(&path, text).unwrap();
    vec![tool.to_owned(), "--noflush".to_owned(), path.to_string_lossy().into_owned()]
}

/// Prints the difference between the ADD's elapsed time and the restore's, and the plugin's own cost.
fn differences(restore: &Results, add: &Results) {
    let walls = |results: &Results| results.costs.iter().map(|cost| cost.wall).collect::<Vec<f64>>();
    let (restores, adds) = (walls(restore), walls(add));
    let rounds: Vec<f64> = adds.iter().zip(&restores).map(|(add, restore)| add - restore).collect();
    let least = spread(&adds).1 - spread(&restores).1;
    let cpus: Vec<f64> = add.costs.iter().map(|cost| cost.cpu).collect();
    let cpu = spread(&cpus).0;
    println!(
        "{}: {:.2} ms above the bare restore (median of the differences within each round; of the least times {least:.2}; bound {BOUND}), {:.2} times it",
        add.name,
        spread(&rounds).0,
        spread(&adds).0 / spread(&restores).0,
    );
    println!(
        "  the plugin's own processor time: {cpu:.2} ms, 1/{:.0} of Istio 1.29.1's {UPSTREAM_CPU} (bound 1/10)",
        UPSTREAM_CPU / cpu
    );
}

impl Row<'_> {
    /// Counts children and requests, in untimed runs.
    fn prepare(&mut self, base: &BenchNode) -> Results {
        let asked =
            || base.api.requests().iter().filter(|request| request.user.contains("istio-cni")).count();
        let before = asked();
        self.once(base, &[]);
        let requests = (asked() - before) as f64;
        let log = base.node.dir().join("strace");
        let trace = ["strace", "-f", "-qq", "-e", "trace=execve", "-o", &log.to_string_lossy()];
        let children = match self {
            Row::Commands(_, words) => words.split(|word| word == BESIDE).count() - 1,
            Row::Add(..) => {
                self.once(base, &trace.map(str::to_owned));
                let lines = fs::read_to_string(&log).unwrap();
                lines.lines().filter(|line| line.ends_with("= 0")).count().saturating_sub(1)
            }
        };
        let (Row::Commands(name, _) | Row::Add(name, _)) = self;
        Results { name: (*name).to_owned(), costs: Vec::new(), children, requests }
    }

    fn once(&mut self, base: &BenchNode, before: &[String]) -> Cost {
        match self {
            Row::Commands(_, words) => measure::run(&base.pod_netns(), words, &[], ""),
            Row::Add(_, ground) => ground.add(before),
        }
    }
}

impl<'a> Ground<'a> {
    /// A fixture with `pods` pod objects, none of which has a network yet.
    fn new(base: &'a BenchNode, env: &[(&str, &str)], families: usize, pods: usize) -> Ground<'a> {
        let fixture = Fixture::start(env);
        fixture.label(true);
        // Not under the agent's name for its own.
        let text = base.api.kubeconfig(&Auth::Token(base.token.clone()));
        let kubeconfig = istio::write_file(&fixture.node, "kubeconfig-of-bench", &text);
        let conf = fixture::plugin(&fixture.node, &kubeconfig);
        let pods: Vec<Pod> = (0..pods).map(|number| Pod::new(MESH, &format!("new-{number}"))).collect();
        for pod in &pods {
            let mut manifest = pod.manifest(&[]);
            manifest["status"] = json!({"phase": "Pending"});
            fixture.manifests.put_pod(&manifest);
        }
        base::wait_known(&fixture.container, MESH, pods.len());
        let plugin = kit::binary("istio-cni");
        Ground { base, place: Place::Manifests(fixture), plugin, conf, pods, families }
    }

    /// A fixture on a node of this name, with pods of both families in the API server; with our agent unless there is a peer.
    fn in_cluster(base: &'a BenchNode, node: &'static str, peer: Option<&Peer>, pods: usize) -> Ground<'a> {
        let place = ClusterNode::start(base, node, peer);
        let pods: Vec<Pod> = (0..pods).map(|number| place.create_pod(&format!("new-{number}"))).collect();
        match peer {
            None => base::wait_known(&place.container, node, pods.len()),
            Some(_) => thread::sleep(Duration::from_secs(1)), // until it has seen them, which it does not show
        }
        let plugin = peer.map_or_else(|| kit::binary("istio-cni"), |peer| peer.plugin.clone());
        Ground { base, conf: place.plugin(), place: Place::Cluster(place), plugin, pods, families: 2 }
    }

    /// Runs ADD, and then DEL, which is not timed. `before` is a command that starts the plugin.
    fn add(&mut self, before: &[String]) -> Cost {
        let (netns, pod) = (self.base.pod_netns(), self.pods.pop().unwrap());
        let (mut env, _) = self.base.call(&pod, &netns, false, None);
        let mut stdin = self.conf.clone();
        let number = self.pods.len() + 1;
        let ips =
            [format!("10.201.{}.{}/24", number / 250, number % 250 + 1), format!("fd00:201::{number:x}/64")];
        let ips: Vec<Value> =
            ips.iter().take(self.families).map(|ip| json!({"address": ip, "interface": 0})).collect();
        stdin["prevResult"] = json!({
            "cniVersion": "1.0.0",
            "interfaces": [{"name": "eth0", "sandbox": netns.path()}],
            "ips": ips,
        });
        let plugin = self.plugin.to_string_lossy().into_owned();
        let node = self.place.node().netns();
        let cost =
            measure::run(node, &[before, std::slice::from_ref(&plugin)].concat(), &env, &stdin.to_string());
        self.place.ztunnel().wait_for_workload(&pod.uid);
        env.iter_mut()
            .filter(|(key, _)| key == "CNI_COMMAND")
            .for_each(|(_, value)| *value = "DEL".to_owned());
        let _ = measure::run(node, &[plugin], &env, &stdin.to_string());
        match &self.place {
            Place::Manifests(fixture) => fixture.manifests.remove_pod(MESH, &pod.name),
            Place::Cluster(node) => drop(self.base.api.admin().delete(&node.path(&pod.name))),
        }
        self.place.ztunnel().wait_for_state(&pod.uid, WorkloadState::Gone); // so that the next row has the machine alone
        cost
    }
}

/// Median time of ztunnel itself for a pod, in milliseconds.
fn ztunnel_time(fixture: &Fixture) -> f64 {
    let times = fixture.ztunnel.answer_times();
    spread(&times.iter().map(|time| time.as_secs_f64() * 1e3).collect::<Vec<f64>>()).0
}

fn print_phases(fixture: &Fixture, name: &str) {
    for phase in ["facts", "enrol", "total"] {
        let metric = |kind: &str| {
            let sample = format!("istio_cni_ambient_add_seconds_{kind}{{phase=\"{phase}\"}}");
            fixture.daemon.metric(&sample).unwrap_or(0.0)
        };
        let millis = metric("sum") / metric("count") * 1e3;
        println!("  within the agent, {name}, {phase:<6} {millis:>6.2} ms on average");
    }
}

impl Place<'_> {
    fn node(&self) -> &Arc<Node> {
        match self {
            Place::Manifests(fixture) => &fixture.node,
            Place::Cluster(node) => &node.node,
        }
    }

    fn ztunnel(&self) -> &InpodZtunnel {
        match self {
            Place::Manifests(fixture) => &fixture.ztunnel,
            Place::Cluster(node) => &node.ztunnel,
        }
    }
}
