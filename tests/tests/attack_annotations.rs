//! Pod authors who write as much into their pods' annotations and labels as the API allows: others' pods start as before, and
//! neither memory nor the log of the agent grows by it.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use kit::{InpodOptions, Pod};

use crate::ambient_stage::MESH;
use crate::inpod_stage::InPod;

const REROUTE: &str = "istio.io/reroute-virtual-interfaces";
/// The API allows 256 KiB for all annotations of a pod.
const BYTES: usize = 250_000;
/// What the agent may use, whatever pod authors write, in KiB.
const MEMORY: u64 = 64 * 1024;

/// Memory of a process and its children, in KiB.
fn resident(pid: u32) -> u64 {
    let of = |pid: u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children = tasks.flat_map(|task| {
        let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()).collect::<Vec<_>>()
    });
    of(pid) + children.map(of).sum::<u64>()
}

fn hostile(name: &str, value: &str) -> Pod {
    let mut pod = Pod::new(MESH, name);
    pod.annotations = BTreeMap::from([(REROUTE.to_owned(), value.repeat(BYTES / value.len()))]);
    pod
}

/// Eight such pods run, and are changed all the time; meanwhile five others start, one after the other.
fn attack(value: &str) {
    let mut stage = InPod::new(&[]);
    let ztunnel = stage.ztunnel("ztunnel-a", InpodOptions::default());
    let calm = stage.mesh_pod("calm");
    stage.wait_captured(&calm);
    let pid = stage.daemon().pid();
    let lines = stage.log().lines().count();
    let mut hostile: Vec<_> = (0..8)
        .map(|number| {
            let sandbox = stage.node.pod(hostile(&format!("hostile-{number}"), value), &[]);
            stage.processes.add(&sandbox.pod.uid, &sandbox.netns);
            sandbox
        })
        .collect();
    let mut peak = 0;
    for round in 0..5 {
        for sandbox in &mut hostile {
            let length = (BYTES / value.len() - round) * value.len();
            sandbox.pod.annotations.get_mut(REROUTE).unwrap().truncate(length);
            stage.manifests.put_pod(&sandbox.manifest());
        }
        let began = Instant::now();
        let victim = stage.mesh_pod(&format!("victim-{round}"));
        let took = began.elapsed();
        assert!(took < Duration::from_secs(4), "{took:?}: {}", tail(&stage.log()));
        stage.wait_served(&ztunnel, &victim);
        peak = peak.max(resident(pid));
    }
    for sandbox in &hostile {
        let _ = ztunnel.wait_for_workload(&sandbox.pod.uid);
        peak = peak.max(resident(pid));
    }
    assert!(peak < MEMORY, "{peak} KiB");
    let log = stage.log();
    let of_hostile = log.lines().skip(lines).filter(|line| line.contains("hostile-"));
    let (number, bytes) = of_hostile.fold((0, 0), |(number, bytes), line| (number + 1, bytes + line.len()));
    assert!(number < 8 * 20 && bytes < 64 * 1024, "{number} lines, {bytes} bytes: {}", tail(&log));
    println!("{number} lines, {bytes} bytes, {peak} KiB");
}

fn tail(log: &str) -> String {
    log.chars().rev().take(4000).collect::<Vec<_>>().into_iter().rev().collect()
}

#[test]
fn names_without_end_stop_nobody_else() {
    attack("a,");
}

#[test]
fn different_names_without_end_stop_nobody_else() {
    let names: String = (0..125).map(|number| format!("v{number:03},")).collect();
    attack(&names);
}

#[test]
fn what_is_no_name_is_told_once() {
    attack("!,");
}
