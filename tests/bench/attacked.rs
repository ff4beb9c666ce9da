//! ADDs of well-behaved pods on a node under attack, compared with the same node at rest: first a foreign firewall, then a flood of
//! the agent's port and eight hostile pods.

#[path = "../node-level/attack_together/attackers.rs"]
mod attackers;
#[path = "../node-level/attack_together/measure.rs"]
mod measure;

use std::time::Duration;

use kit::fill_with_services;

use self::{
    attackers::{Attack, NODE_RULES, POD_RULES, Target},
    measure::{Adds, Seen, Watch},
};
use crate::inpod::{Fixture, MESH, plugin};

/// Part that can be selected.
pub(crate) const PARTS: [&str; 1] = ["attacked"];

/// Number of ADDs for a 99th percentile.
const ADDS: usize = 100;
/// Time limit, within which fewer ADDs may complete.
const LIMIT: Duration = Duration::from_secs(120);
/// Bounds in the output: of the 99th percentile, and of memory.
const BOUNDS: &str = "bounds: 99th of 100 below 1000 ms, none failed, agent below 64 MiB";

/// Measures the attack. Rounds are not selectable: the 99th percentile needs a hundred.
pub(crate) fn run() {
    let fixture = Fixture::start(&[]);
    fixture.label(true);
    let kubeconfig = fixture.node.dir().join("no-kubeconfig"); // only the agent is available
    let conflist = fixture.node.conflist(&[plugin(&fixture.node, &kubeconfig)]);
    let target = Target { node: &fixture.node, manifests: &fixture.manifests, conflist, namespace: MESH };
    let watch = Watch::start(fixture.daemon.pid(), fixture.node.netns());
    println!("ADD of a pod of the mesh that is captured from within, on a node under attack; {BOUNDS}.");
    row("quiet", &target, &watch);
    fill_with_services(fixture.node.netns(), NODE_RULES);
    row(&format!("{NODE_RULES} rules of others on the node"), &target, &watch);
    let mut pid = 1000;
    let attack = Attack::begin(&target, |pod, netns| {
        pid += 1;
        fixture.processes.add_in_slice(pid, &pod.uid, netns);
    });
    let _ = watch.take(); // discards the time of their setup
    row("and all attacks together", &target, &watch);
    let (tries, connections) = attack.effort();
    drop((attack, watch));
    println!(
        "  8 hostile pods ({tries} starts of four of them; {POD_RULES} rules in each of two), {connections} half-open requests"
    );
    println!("  the agent's peak since its start: {:.1} MiB\n", fixture.daemon.peak_kib() as f64 / 1024.0);
}

fn row(name: &str, target: &Target<'_>, watch: &Watch) {
    let adds = Adds::measure(target, ADDS, LIMIT);
    let Seen { agent_kib, children_kib, probes, slowest_probe, failed_probes } = watch.take();
    let millis = |time: Duration| time.as_secs_f64() * 1e3;
    println!(
        "  {name:<34} {:>4} ADDs, {:>3} failed: median {:>7.1} ms, 99th of 100 {:>7.1} ms",
        adds.count(),
        adds.failed.len(),
        millis(adds.median()),
        millis(adds.p99())
    );
    println!(
        "  {:<34} memory {:.1} MiB, its tools {:.1} MiB; {failed_probes} of {probes} probes failed, slowest {:.1} ms",
        "",
        agent_kib as f64 / 1024.0,
        children_kib as f64 / 1024.0,
        millis(slowest_probe)
    );
}
