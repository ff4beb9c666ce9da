//! The debug state: cost of many requests for a starting pod, of an open page, and of one observation.

#[path = "../node-level/debug_load/clients.rs"]
#[allow(dead_code, reason = "shared with the tests")]
mod clients;

use std::{
    thread,
    time::{Duration, Instant, SystemTime},
};

use clients::{Crowd, get};
use kit::{Node, Pod};
use serde_json::{Value, json};

use crate::ambient::{
    fixture::{Fixture, MESH},
    spread,
};

/// Parts that can be selected.
pub(crate) const PARTS: [&str; 2] = ["debug-add", "debug-page"];

const PODS: u32 = 250;
/// Polling interval of the page.
const PAGE: Duration = Duration::from_secs(5);
const PAGES: u32 = 7;
/// More than can be answered while ADDs are measured.
const REQUESTS: usize = 1_000_000;

/// Measures the parts for which `wanted` holds.
pub(crate) fn run(rounds: usize, wanted: impl Fn(&str) -> bool) {
    let mut fixture = Fixture::start(&[]);
    let _ztunnels = [fixture.ztunnel("ztunnel-a"), fixture.ztunnel("ztunnel-b")];
    fixture.fill_with_links(MESH, PODS);
    fixture.wait_members(PODS as usize);
    println!("The debug state, {PODS} pods captured on the node, two ztunnels.\n");
    if wanted("debug-page") {
        page(&fixture);
    }
    if wanted("debug-add") {
        adds(&fixture, rounds);
    }
}

/// Measures an open page: cost of the agent and its children with and without it.
fn page(fixture: &Fixture) {
    let rest = cost(fixture, || thread::sleep(PAGE * PAGES)); // the measurement itself
    let mut took = Vec::new();
    let open = cost(fixture, || {
        for _ in 0..PAGES {
            let began = Instant::now();
            let (head, _) = fixture.node.netns().run(|| get("/debug/state")).unwrap();
            assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
            took.push(began.elapsed().as_secs_f64() * 1e3);
            thread::sleep(PAGE.saturating_sub(began.elapsed())); // as the page does
        }
    });
    let (answer, least, most) = spread(&took);
    println!(
        "  a page that asks every {PAGE:?}: {open:.2} % of a core, tools included; without it {rest:.2} %"
    );
    println!("  its answer {answer:.1} ms ({least:.1}, {most:.1}), the pause between two looks included");
    let looks: Vec<f64> = (0..30).map(|_| look(&fixture.node)).collect();
    let (median, least, most) = spread(&looks);
    println!("  an observation (observation.durationMs) {median:.1} ms ({least:.1}, {most:.1})");
    println!("  resident {:.2} MiB\n", fixture.daemon.resident_kib() as f64 / 1024.0);
}

/// CPU time of the agent and its tools during an action, as a percentage of a core.
fn cost(fixture: &Fixture, act: impl FnOnce()) -> f64 {
    let used = || fixture.daemon.cpu_time() + fixture.daemon.tools_cpu_time();
    let (before, began) = (used(), Instant::now());
    act();
    (used().saturating_sub(before)).as_secs_f64() / began.elapsed().as_secs_f64() * 100.0
}

fn look(node: &Node) -> f64 {
    let (_, body) = node.netns().run(|| get("/debug/state")).unwrap();
    let state: Value = serde_json::from_str(&body).unwrap();
    state["observation"]["durationMs"].as_f64().unwrap()
}

/// Measures ADDs without requests alternating with ADDs under the crowd of the tests.
fn adds(fixture: &Fixture, rounds: usize) {
    let mut number = 0;
    let mut some = || {
        (0..10)
            .map(|_| {
                number += 1;
                add(fixture, number)
            })
            .collect::<Vec<f64>>()
    };
    let (mut quiet, mut busy, mut ratios, mut answered) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for _ in 0..rounds.min(10) {
        let without = some();
        let crowd = Crowd::start(fixture.node.netns(), REQUESTS, no_check);
        kit::until("they are at work", || crowd.answered() > 0);
        let with = some();
        answered += crowd.answered();
        crowd.end();
        ratios.push(spread(&with).0 / spread(&without).0);
        quiet.extend(without);
        busy.extend(with);
    }
    println!(
        "ADD of a pod of the mesh, {} each, in turn; wall time of the plugin, median (least, greatest).",
        quiet.len()
    );
    for (name, values) in [("nobody asks", &quiet), ("18 clients ask, 10 of them badly", &busy)] {
        let (median, least, most) = spread(values);
        println!("  {name:<34} {median:>7.2} ms ({least:.2}, {most:.2})");
    }
    let (ratio, least, most) = spread(&ratios);
    println!("  ratio {ratio:.2} ({least:.2}, {most:.2}); {answered} states answered meanwhile");
    println!("  resident {:.2} MiB\n", fixture.daemon.resident_kib() as f64 / 1024.0);
}

/// Does nothing: a benchmark does not check the content.
fn no_check(_: SystemTime, _: &str) {}

fn add(fixture: &Fixture, number: usize) -> f64 {
    let pod = Pod::new(MESH, &format!("new-{number}"));
    let name = pod.name.clone();
    let mut manifest = pod.manifest(&[]);
    manifest["status"] = json!({"phase": "Pending"});
    fixture.manifests.put_pod(&manifest);
    let kubeconfig = fixture.node.dir().join("no-kubeconfig"); // only the agent is available
    let conflist = fixture.node.conflist(&[fixture.plugin(&kubeconfig, "agent.sock")]);
    let sandbox = fixture
        .node
        .add_pod(&fixture.node.runtime(), &conflist, pod)
        .unwrap_or_else(|error| panic!("{error}"));
    let call = sandbox.calls.iter().find(|call| call.plugin == "istio-cni").unwrap();
    let took = call.output.wall.as_secs_f64() * 1e3;
    drop(sandbox);
    fixture.manifests.remove_pod(MESH, &name);
    took
}
