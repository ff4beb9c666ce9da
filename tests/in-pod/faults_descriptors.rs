//! The agent has no file descriptor left, as with a low limit and many pods, or a leak: callers get an error in time, no thread
//! spins or exits, and when descriptors are available again all pending work is done. Deleted pods leave no descriptor open.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use kit::{Daemon, Pod};

use crate::fixtures::ambient::{MESH, starting};
use crate::fixtures::inpod::{IPTABLES, InPod};

/// Without an answer, the plugin would wait for 10 s.
const ANSWER: Duration = Duration::from_secs(10);
const MINUTE: Duration = Duration::from_secs(60);

fn open_files(daemon: &Daemon) -> usize {
    fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().count()
}

/// The minimum within a second: the agent opens more while it observes a pod.
fn open_files_at_rest(daemon: &Daemon) -> usize {
    let looks = (0..20).map(|_| {
        std::thread::sleep(Duration::from_millis(50)); // between two samples of another process
        open_files(daemon)
    });
    looks.min().unwrap()
}

/// Sets the soft limit; descriptors above it stay open.
fn limit_files(daemon: &Daemon, most: usize) {
    let mut command = Command::new("prlimit");
    command.args(["--pid", &daemon.pid().to_string(), &format!("--nofile={most}:")]);
    assert!(command.status().unwrap().success());
}

#[test]
fn an_agent_without_descriptors_answers_lives_and_catches_up() {
    let (mut fixture, ztunnel) = InPod::with_ztunnel(&[]);
    // Without a process the second one cannot be found again after its DEL.
    let (first, mut ended) = (fixture.mesh_pod("first"), fixture.pod(MESH, "ended"));
    for peer in [&first, &ended] {
        fixture.wait_captured(peer);
    }
    let daemon = fixture.daemon.as_ref().unwrap();
    let usual = open_files_at_rest(daemon);
    limit_files(daemon, usual);
    // A pod that joins without an ADD, and several whose ADDs must fail, because no descriptor of their namespaces can be received.
    let sandbox = fixture.node.pod(Pod::new(MESH, "joining"), &[]);
    fixture.manifests.put_pod(&sandbox.manifest());
    let chain = fixture.node.conflist(&[fixture.plugin()]);
    let mut refusals = Vec::new();
    for number in 0..4 {
        let refused = fixture.add(Pod::new(MESH, &format!("refused-{number}")), &chain);
        let output = refused.expect_err("nothing of it was captured").failed.output;
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.wall < ANSWER, "{:?}: {printed}", output.wall);
        assert!(!printed.contains("another version"), "{printed}");
        refusals.push((output.wall, printed));
    }
    // A DEL ends its pod without the descriptor of its namespace. One is free for its connection: another thread may have taken the
    // agent's reserve.
    limit_files(fixture.daemon.as_ref().unwrap(), usual + 1);
    let _ = ended.sandbox.delete().unwrap();
    let _ = ztunnel.wait_for_state(&ended.sandbox.pod.uid, kit::WorkloadState::Gone);
    let daemon = fixture.daemon.as_ref().unwrap();
    let (before, began) = (daemon.cpu_time(), Instant::now());
    let connecting = kit::HalfOpen::start(fixture.node.netns(), ([127, 0, 0, 1], 8000).into(), 8);
    std::thread::sleep(Duration::from_secs(2)); // the measurement itself
    let busy = (daemon.cpu_time() - before).as_secs_f64() / began.elapsed().as_secs_f64();
    assert!(busy < 0.5, "it spins: {busy:.2} of a processor\n{}", daemon.log());
    assert!(daemon.log().contains("Too many open files"), "{}", daemon.log());
    let is_repair = |line: &&str| line.split('\t').nth(3) == Some("probe rules of the node restored");
    assert_eq!(
        daemon.log().lines().find(is_repair),
        None,
        "a rule whose set cannot be read is not a foreign one"
    );
    drop(connecting);
    limit_files(daemon, usual + 4096);
    let probe = daemon.get(8000, "/readyz").unwrap();
    let words = "no file descriptors left";
    assert!(probe.0 == 503 && probe.1.contains(words), "{probe:?}\n{refusals:#?}\n{}", daemon.log());
    fixture.processes.add(&sandbox.pod.uid, &sandbox.netns);
    let mut number = 0;
    fixture.within(MINUTE, "an ADD succeeds again", |fixture| {
        number += 1;
        fixture.add(Pod::new(MESH, &format!("again-{number}")), &chain).is_ok()
    });
    let late = crate::fixtures::ambient::Peer::new(sandbox);
    fixture.within(MINUTE, "the late one is captured", |fixture| fixture.is_ruled(&late));
    let _ = ztunnel.wait_for_workload(&late.sandbox.pod.uid);
    assert_eq!(ztunnel.protocol_error(), None);
    assert!(fixture.is_ruled(&first));
    // The agent reports this for half a minute, so that several probes fail.
    fixture.within(MINUTE, "it is ready again", |fixture| fixture.daemon().is_ready());
}

/// A few are left: enough for one pod at a time, not for many.
#[test]
fn an_agent_that_fails_adds_for_lack_of_descriptors_is_not_ready() {
    let (mut fixture, _ztunnel) = InPod::with_ztunnel(&[]);
    let _first = fixture.captured_pod("first");
    let daemon = fixture.daemon.as_ref().unwrap();
    assert!(daemon.is_ready());
    limit_files(daemon, open_files(daemon) + 24);
    let chain = fixture.node.conflist(&[fixture.plugin()]);
    let pods: Vec<_> = (0..40).map(|number| Pod::new(MESH, &format!("burst-{number}"))).collect();
    pods.iter().for_each(|pod| fixture.manifests.put_pod(&starting(pod)));
    let failed = std::thread::scope(|scope| {
        let (node, chain) = (&fixture.node, &chain);
        let add = |pod| scope.spawn(move || node.add_pod(&node.runtime(), chain, pod).is_err());
        let adds: Vec<_> = pods.into_iter().map(add).collect();
        adds.into_iter().filter_map(|add| add.join().unwrap().then_some(())).count()
    });
    let daemon = fixture.daemon.as_ref().unwrap();
    println!("{failed} of 40 failed\n{}", daemon.log());
    assert!(failed > 0, "the limit is too high for this test");
    limit_files(daemon, 4096); // the started pods may have used the last ones, and then no probe is answered
    let (status, body) = daemon.get(8000, "/readyz").unwrap();
    let mut reasons = body.trim_end().split("; ");
    let no_descriptors = "an ADD failed less than 30 s ago: the agent has no file descriptors left";
    assert!(status == 503 && reasons.any(|reason| reason == no_descriptors), "{status} {body}");
}

/// Number of pods that start at the same time, and of repetitions, after those to warm up: on a busy machine, the pods of the first
/// burst alone hardly overlap.
const BURST: usize = 30;
const BURSTS: usize = 4;
const WARM_UPS: usize = 3;
/// The allocator keeps part of the memory of the largest burst.
const MOST_MEMORY_KIB: u64 = 1024;

/// Starts pods of the mesh at the same time, and ends each one once it runs.
fn churn(fixture: &InPod, chain: &serde_json::Value, burst: usize) {
    let pods: Vec<_> = (0..BURST).map(|at| Pod::new(MESH, &format!("churn-{burst}-{at}"))).collect();
    pods.iter().for_each(|pod| fixture.manifests.put_pod(&starting(pod)));
    std::thread::scope(|scope| {
        for pod in &pods {
            let start = || {
                let mut sandbox = fixture.node.add_pod(&fixture.node.runtime(), chain, pod.clone()).unwrap();
                sandbox.delete().unwrap();
            };
            scope.spawn(start);
        }
    });
    pods.iter().for_each(|pod| fixture.manifests.remove_pod(MESH, &pod.name));
}

#[test]
fn pods_that_come_and_go_leave_nothing_in_the_agent() {
    let (mut fixture, ztunnel) = InPod::with_ztunnel(&[]);
    let chain = fixture.node.conflist(&[fixture.plugin()]);
    let threads = |daemon: &Daemon| fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap().count();
    (BURSTS..BURSTS + WARM_UPS).for_each(|burst| churn(&fixture, &chain, burst));
    let daemon = fixture.daemon();
    let before = (open_files_at_rest(daemon), threads(daemon), daemon.anonymous_kib());
    (0..BURSTS).for_each(|burst| churn(&fixture, &chain, burst));
    let daemon = fixture.daemon();
    let what = std::fmt::from_fn(|f| write!(f, "{before:?}: {} open\n{}", open_files(daemon), daemon.log()));
    kit::until_within(MINUTE, what, || open_files_at_rest(daemon) <= before.0 && threads(daemon) <= before.1);
    let grown = daemon.anonymous_kib().saturating_sub(before.2);
    assert!(grown < MOST_MEMORY_KIB, "{grown} KiB more");
    kit::until("ztunnel serves none", || {
        ztunnel.workloads().values().all(|state| *state == kit::WorkloadState::Gone)
    });
    assert_eq!(ztunnel.protocol_error(), None);
}

/// Nothing can be observed meanwhile; the next successful observation detects all changes since the last one.
#[test]
fn a_change_on_the_node_while_there_are_no_descriptors_is_repaired_when_there_are_again() {
    let (mut fixture, _ztunnel) = InPod::with_ztunnel(&[IPTABLES]);
    let _peer = fixture.captured_pod("app");
    std::thread::sleep(Duration::from_secs(12)); // passes that follow an ADD have ended
    let rules = || fixture.node.netns().sh("iptables-nft -t nat -S ISTIO_POSTRT");
    let before = rules();
    let daemon = fixture.daemon.as_ref().unwrap();
    limit_files(daemon, 3);
    fixture.node.netns().sh("iptables-nft -t nat -F ISTIO_POSTRT");
    // Several observations fail.
    kit::holds_for(Duration::from_secs(1), "it cannot be observed", || rules() != before);
    limit_files(daemon, 4096);
    let began = Instant::now();
    kit::until(std::fmt::from_fn(|f| write!(f, "{}", daemon.log())), || rules() == before);
    println!("repaired after {:?}\n{}", began.elapsed(), daemon.log());
}
