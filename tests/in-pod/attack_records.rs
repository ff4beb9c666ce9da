//! Records of ADDs that pod authors made as long and as many as possible: neither memory nor CPU time nor disk usage of the agent
//! grow, and pods start as before.

use std::fs;
use std::time::{Duration, Instant};

use kit::Pod;
use serde_json::json;

use crate::fixtures::ambient::MESH;
use crate::fixtures::inpod::InPod;

const FILES: usize = 2000;
/// Limit of the agent's peak memory for them, in KiB.
const MEMORY: u64 = 12 * 1024;
/// Limit of the records' size, in bytes.
const DISK: u64 = 4 << 20;

/// A record of a failed ADD as the previous version wrote it, without a limit.
fn former(number: usize) -> (String, String) {
    let words = "\u{1}".repeat(10_000);
    let pod =
        json!({"metadata": {"name": "x", "namespace": "evil", "uid": "u", "annotations": {"a": words}}});
    let record = json!({"namespace": "evil", "name": format!("x-{number}"), "uid": "u", "container": "c",
        "netns": "/var/run/netns/gone", "at": "2026-01-01T00:00:00Z", "decision": "", "words": words,
        "error": "no", "pod": pod});
    (format!("failed_evil_x-{number}"), record.to_string())
}

/// A record of a container without a DEL, of the maximum length of this version.
fn lost(number: usize) -> (String, String) {
    let record = agent_protocol::PodRecord {
        namespace: MESH.to_owned(),
        name: format!("lost-{number}"),
        uid: "u".into(),
        container: format!("c{number}").as_str().into(),
        netns: format!("/var/run/netns/lost-{number}"),
        netns_file: Some(agent_protocol::NetnsFile { dev: 4, ino: 1 }),
        rules: [("nat ISTIO_OUTPUT".to_owned(), "r".repeat(3000))].into(),
        at: "2026-01-01T00:00:00Z".to_owned(),
        decision: "namespace-label".to_owned(),
        ..agent_protocol::PodRecord::default()
    };
    (format!("c{number}"), String::from_utf8(record.encode().unwrap()).unwrap())
}

fn bytes_of(directory: &std::path::Path) -> u64 {
    let files = fs::read_dir(directory).into_iter().flatten().flatten();
    files.map(|file| file.metadata().map_or(0, |found| found.len())).sum()
}

fn attack(record: impl Fn(usize) -> (String, String)) {
    let (mut fixture, ztunnel) = InPod::with_ztunnel(&[]);
    let calm = fixture.mesh_pod("calm");
    fixture.manifests.put_pod(&calm.sandbox.manifest());
    fixture.wait_captured(&calm);
    // Most of it is pages of the program, whose number depends on the build.
    let usual = fixture.daemon().peak_kib();
    let directory = fixture.node.run_dir().join(agent_protocol::RECORDS);
    for (name, text) in (0..FILES).map(record) {
        fs::write(directory.join(name), text).unwrap();
    }
    fixture.restart();
    ztunnel.wait_for_snapshots(2);
    // While it has no process, only records could identify its namespace.
    let waiting = fixture.node.pod(Pod::new(MESH, "waiting"), &[]);
    fixture.manifests.put_pod(&waiting.manifest());
    let daemon = fixture.daemon();
    let (before, began) = (daemon.cpu_time(), Instant::now());
    std::thread::sleep(Duration::from_secs(8)); // the measurement itself
    let busy = (daemon.cpu_time() - before).as_secs_f64() / began.elapsed().as_secs_f64();
    let peak = daemon.peak_kib();
    println!("{:.1} % of a processor, at most {peak} KiB instead of {usual}", busy * 100.0);
    let mut took = ["one", "two", "three"].map(|name| {
        let began = Instant::now();
        let victim = fixture.mesh_pod(name);
        let took = began.elapsed();
        fixture.wait_served(&ztunnel, &victim);
        took
    });
    took.sort();
    // The median: the machine may have stalled in one.
    assert!(took[1] < Duration::from_secs(4), "{took:?}");
    assert!(busy < 0.25, "{busy:.2} of a processor: {}", fixture.log());
    assert!(peak < usual + MEMORY, "{peak} KiB, {usual} without them");
    fixture.eventually("what no one needs is removed", |_| bytes_of(&directory) < DISK);
    fixture.processes.add(&waiting.pod.uid, &waiting.netns);
    let _ = ztunnel.wait_for_workload(&waiting.pod.uid);
}

#[test]
fn long_records_of_an_earlier_version_are_neither_read_nor_kept() {
    attack(former);
}

#[test]
fn records_of_lost_containers_cost_next_to_nothing() {
    attack(lost);
}
