//! The agent: time until it is ready, and its cost when idle.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant, SystemTime},
};

use kit::{Container, Daemon, Node, NodeOptions};

use crate::{
    base::BenchNode,
    peer::{ISTIO, Peer},
    results,
};

/// Costs of one agent.
struct Results {
    name: String,
    bytes: u64,
    /// Milliseconds from its start to `/readyz` 200, on a new node.
    first: Vec<f64>,
    /// Milliseconds where everything is already installed.
    again: Vec<f64>,
    resident_kib: u64,
    anonymous_kib: u64,
    /// Percentage of one core.
    idle_cpu: f64,
}

/// Measures our agent, alternating with others.
pub(crate) fn run(base: &BenchNode, other: Option<&Path>, peer: Option<&Peer>, rounds: usize) {
    let ours = kit::binary("install-cni");
    let named = [
        Some(("install-cni".to_owned(), ours.as_path())),
        other.map(|path| (path.display().to_string(), path)),
        peer.map(|peer| (format!("{ISTIO}install-cni"), peer.daemon.as_path())),
    ];
    let (names, programs): (Vec<String>, Vec<&Path>) = named.into_iter().flatten().unzip();
    let mut results: Vec<Results> =
        names.into_iter().zip(&programs).map(|(name, program)| Results::of(name, program)).collect();
    for _ in 0..rounds {
        for (program, result) in programs.iter().zip(&mut results) {
            let node = Node::new(NodeOptions::default());
            let container = container(base, &node, program);
            result.first.push(start(&container).1);
            result.again.push(start(&container).1);
        }
    }
    for (program, result) in programs.iter().zip(&mut results) {
        result.rest(base, program);
    }
    print(&results, rounds);
    keep(&results);
    if let (Some(ours), Some(theirs), true) = (results.first(), results.last(), peer.is_some()) {
        print_ratio(theirs, ours);
    }
}

/// Prints how many times as much one takes as the other: ratios of medians of the same run.
fn print_ratio(theirs: &Results, ours: &Results) {
    let ready = |of: fn(&Results) -> &[f64]| numbers(of(theirs)).0 / numbers(of(ours)).0;
    println!(
        "Istio's takes {:.1} times as long for a first installation, {:.1} times with nothing to do; \
         {:.1} times the memory ({:.1} anonymous); its program is {:.1} times as large\n",
        ready(|results| &results.first),
        ready(|results| &results.again),
        theirs.resident_kib as f64 / ours.resident_kib as f64,
        theirs.anonymous_kib as f64 / ours.anonymous_kib as f64,
        theirs.bytes as f64 / ours.bytes as f64
    );
}

fn container(base: &BenchNode, node: &Node, program: &Path) -> Container {
    node.write_conflist("10-kit.conflist", &node.conflist(&[]));
    let container = Container::new(node).with_env("CNI_CONFIG_MAP", "istio-cni-config").with_program(program);
    container.set_account(&base.token, base.api.ca_pem());
    container
}

/// Starts an agent, and waits until it is ready.
fn start(container: &Container) -> (Daemon, f64) {
    let mut daemon = container.start();
    daemon.wait_for("it has been started", |daemon| daemon.started().is_some());
    let started = daemon.started().unwrap();
    daemon.wait_until_ready();
    let took = SystemTime::now().duration_since(started).unwrap();
    (daemon, took.as_secs_f64() * 1000.0)
}

/// Idle time: two of the installer's regular observations.
const REST: Duration = Duration::from_secs(20);

impl Results {
    fn of(name: String, program: &Path) -> Results {
        let bytes = fs::metadata(program).unwrap().len();
        Results {
            name,
            bytes,
            first: vec![],
            again: vec![],
            resident_kib: 0,
            anonymous_kib: 0,
            idle_cpu: 0.0,
        }
    }

    fn rest(&mut self, base: &BenchNode, program: &Path) {
        let node = Node::new(NodeOptions::default());
        let container = container(base, &node, program);
        let (daemon, _) = start(&container);
        thread::sleep(Duration::from_secs(2)); // until it has connected to the API server
        let (before, began) = (daemon.cpu_time(), Instant::now());
        thread::sleep(REST); // the measurement itself
        let used = daemon.cpu_time() - before;
        self.idle_cpu = used.as_secs_f64() / began.elapsed().as_secs_f64() * 100.0;
        self.resident_kib = daemon.resident_kib();
        self.anonymous_kib = daemon.anonymous_kib();
    }
}

fn print(results: &[Results], rounds: usize) {
    println!(
        "The daemon, {rounds} rounds; medians (least). Ready: from its start (chroot included) to /readyz 200."
    );
    println!(
        "{:<40} {:>9} {:>18} {:>18} {:>14} {:>10} {:>9}",
        "", "MB", "first install, ms", "nothing to do, ms", "resident, MiB", "anonymous", "idle CPU"
    );
    for result in results {
        let (first, again) = (numbers(&result.first), numbers(&result.again));
        println!(
            "{:<40} {:>9.2} {:>10.1} ({:>5.1}) {:>10.1} ({:>5.1}) {:>14.2} {:>10.2} {:>7.3} %",
            result.name,
            result.bytes as f64 / 1e6,
            first.0,
            first.1,
            again.0,
            again.1,
            result.resident_kib as f64 / 1024.0,
            result.anonymous_kib as f64 / 1024.0,
            result.idle_cpu
        );
    }
    println!();
}

fn keep(all: &[Results]) {
    let starts =
        |of: &Results| of.first.iter().zip(&of.again).map(|(first, again)| [*first, *again]).collect();
    let rows = all.iter().map(|of| (of.name.clone(), starts(of)));
    results::write("daemon", ["first_install_ms", "nothing_to_do_ms"], rows);
    let rest = |of: &Results| [of.bytes as f64, of.resident_kib as f64, of.anonymous_kib as f64, of.idle_cpu];
    let rows = all.iter().map(|of| (of.name.clone(), vec![rest(of)]));
    results::write("daemon-rest", ["bytes", "resident_kib", "anonymous_kib", "idle_cpu_percent"], rows);
}

/// Median and minimum.
fn numbers(values: &[f64]) -> (f64, f64) {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[0])
}
