//! An unprivileged process of a pod that locks every file that it can open: no operation on legacy tables waits for it.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use kit::{LockHolder, Netns};

use crate::fixtures::ambient::PLAIN;
use crate::fixtures::inpod::{InPod, ours};

/// A process of a pod that holds the lock of its namespace's file until drop.
fn hold(netns: &Netns) -> LockHolder {
    let mut command = Command::new("setpriv");
    command.args([
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "--bounding-set=-all",
        "--no-new-privs",
        "flock",
    ]);
    LockHolder::start(netns, command, "/proc/self/ns/net")
}

/// Less than a tool waits for the lock: 10 s.
const PROMPT: Duration = Duration::from_secs(9);

#[test]
fn a_process_of_a_pod_that_holds_its_namespaces_lock_keeps_nobody_waiting() {
    let (mut fixture, _ztunnel) = InPod::with_ztunnel(&[("FORCE_IPTABLES_BINARY", "legacy")]);
    let pods: Vec<_> = (0..4).map(|at| fixture.running_pod(PLAIN, &format!("holder-{at}"))).collect();
    let held: Vec<_> = pods.iter().map(|pod| hold(&pod.sandbox.netns)).collect();
    let began = Instant::now();
    fixture.manifests.put_namespace(PLAIN, &[("istio.io/dataplane-mode", "ambient")]);
    let one = Instant::now();
    let _ = fixture.mesh_pod("another");
    assert!(one.elapsed() < PROMPT, "{:?}", one.elapsed());
    for pod in &pods {
        fixture.wait_captured(pod);
        assert!(fixture.is_ruled(pod));
    }
    assert!(began.elapsed() < PROMPT, "{:?}\n{}", began.elapsed(), fixture.log());

    let began = Instant::now();
    fixture.manifests.put_namespace(PLAIN, &[]);
    fixture.eventually("all are released", |_| pods.iter().all(|pod| ours(pod) == [0, 0, 0]));
    assert!(began.elapsed() < PROMPT, "{:?}\n{}", began.elapsed(), fixture.log());
    drop(held);
}
