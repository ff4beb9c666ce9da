//! Pods that impersonate another one: with nested control groups, annotations or addresses. ztunnel must never receive the
//! attacker's network namespace as the victim's, nor the reverse.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use kit::{Echo, InpodZtunnel, Pod, WorkloadState};
use serde_json::json;

use crate::fixtures::ambient::{MESH, PLAIN, PORT, Peer, starting};
use crate::fixtures::inpod::{InPod, relayed};

const MINUTE: Duration = Duration::from_secs(60);

/// A running pod without a process.
fn quiet_pod(fixture: &InPod, pod: Pod) -> Peer {
    Peer::new(fixture.node.pod(pod, &[]))
}

/// Assigns the address of one pod to another one.
fn give_addresses(victim: &Peer, attacker: &Peer) {
    for (family, length, rest) in [(false, 32, ""), (true, 128, " nodad")] {
        let ip = victim.ip(family);
        let _ = attacker.sandbox.netns.sh(&format!("ip address add {ip}/{length} dev lo{rest}"));
    }
}

/// Control group that a container of one pod created below its own, with the name of the victim's.
fn nested(attacker: &Pod, victim: &Pod) -> String {
    format!("0::/kubepods/burstable/pod{}/ctr/pod{}/x\n", attacker.uid, victim.uid)
}

/// Checks that connections of the victim go through ztunnel, and those of the attacker do not.
fn assert_apart(fixture: &mut InPod, ztunnel: &mut InpodZtunnel, victim: &Peer, attacker: &Peer) {
    fixture.wait_captured(victim);
    fixture.wait_served(ztunnel, victim);
    assert!(fixture.is_ruled(victim) && fixture.is_bare(attacker), "{}", fixture.log());
    ztunnel.forget();
    let outside = (fixture.node.outside_ip(false), PORT).into();
    for _ in 0..10 {
        let _ = victim.tcp(outside).unwrap();
        let _ = ztunnel.wait_seen(|seen| seen.src.ip() == victim.ip(false) && seen.dst == outside);
        let _ = attacker.tcp(outside).unwrap();
    }
    assert!(!relayed(ztunnel, attacker.ip(false), outside));
    assert_eq!(ztunnel.protocol_error(), None);
}

/// A container that may create control groups names one after the victim. It runs longer than the victim, which joins meanwhile,
/// and then the agent is restarted.
#[test]
fn a_control_group_inside_of_a_pod_gives_nobody_another_pods_identity() {
    let (mut fixture, mut ztunnel) = InPod::with_ztunnel(&[]);
    let _echo = Echo::tcp(fixture.node.outside(), PORT);
    let attacker = fixture.running_pod(PLAIN, "attacker");
    let pod = Pod::new(MESH, "victim");
    let cgroup = nested(&attacker.sandbox.pod, &pod);
    fixture.processes.write(20, &cgroup, &attacker.sandbox.netns);
    let victim = quiet_pod(&fixture, pod);
    give_addresses(&victim, &attacker);
    fixture.manifests.put_pod(&victim.sandbox.manifest());
    let process = fixture.processes.add(&victim.sandbox.pod.uid, &victim.sandbox.netns);
    assert_apart(&mut fixture, &mut ztunnel, &victim, &attacker);
    // No process of the victim, as between two starts of a container without a pause process.
    fixture.processes.remove(process);
    for round in 2..4 {
        fixture.restart();
        ztunnel.wait_for_snapshots(round);
        let now = ztunnel.workload(&victim.sandbox.pod.uid).map(|workload| workload.state);
        assert!(now != Some(WorkloadState::Up) || fixture.is_bare(&attacker), "{}", fixture.log());
        assert!(fixture.is_bare(&attacker), "{}", fixture.log());
        let _ = fixture.processes.add(&victim.sandbox.pod.uid, &victim.sandbox.netns);
        assert_apart(&mut fixture, &mut ztunnel, &victim, &attacker);
    }
}

/// The hash of a static pod's manifest is an annotation that every pod author can write. The attacker's pod is starting and has no
/// address.
#[test]
fn an_annotation_gives_nobody_another_pods_namespace() {
    let (mut fixture, ztunnel) = InPod::with_ztunnel(&[]);
    let victim = fixture.mesh_pod("victim");
    fixture.manifests.put_pod(&victim.sandbox.manifest());
    fixture.wait_captured(&victim);
    let uid = victim.sandbox.pod.uid.clone();
    let digits = uid.replace('-', "");
    let mut attackers = Vec::new();
    for (name, hash, mirror) in
        [("a", &uid, false), ("b", &uid, true), ("c", &digits, false), ("d", &digits, true)]
    {
        let mut pod = Pod::new(MESH, name).annotation("kubernetes.io/config.hash", hash);
        if mirror {
            pod = pod.annotation("kubernetes.io/config.mirror", hash);
        }
        fixture.manifests.put_pod(&starting(&pod));
        attackers.push(pod);
    }
    for round in 2..4 {
        fixture.restart();
        ztunnel.wait_for_snapshots(round);
        fixture.wait_captured(&victim);
        fixture.wait_served(&ztunnel, &victim);
        for attacker in &attackers {
            assert!(ztunnel.workload(&attacker.uid).is_none(), "{}: {}", attacker.name, fixture.log());
        }
        let served: Vec<String> = ztunnel.workloads().into_keys().collect();
        assert_eq!(served, [uid.as_str()]);
    }
    assert_eq!(ztunnel.protocol_error(), None);
}

/// The attack by a running pod: the victim joins meanwhile, and is found nevertheless.
#[test]
fn an_annotation_keeps_no_other_pod_out() {
    let (mut fixture, mut ztunnel) = InPod::with_ztunnel(&[]);
    let _echo = Echo::tcp(fixture.node.outside(), PORT);
    let victim = fixture.running_pod(PLAIN, "victim");
    let uid = victim.sandbox.pod.uid.clone();
    for (name, hash) in [("a", uid.clone()), ("b", uid.replace('-', ""))] {
        let pod = Pod::new(MESH, name)
            .annotation("kubernetes.io/config.hash", &hash)
            .annotation("kubernetes.io/config.mirror", &hash);
        let sandbox = fixture.node.pod(pod, &[]);
        let _ = fixture.processes.add(&sandbox.pod.uid, &sandbox.netns);
        fixture.manifests.put_pod(&sandbox.manifest());
        let peer = Peer::new(sandbox);
        fixture.wait_captured(&peer);
        drop(peer);
    }
    let attacker = fixture.running_pod(PLAIN, "other");
    let mut manifest = victim.sandbox.manifest();
    manifest["metadata"]["labels"] = json!({"istio.io/dataplane-mode": "ambient"});
    fixture.manifests.put_pod(&manifest);
    assert_apart(&mut fixture, &mut ztunnel, &victim, &attacker);
}

/// The victim's own process has entered another pod's namespace, which has the victim's address: the agent does not guess and
/// reports the pod, until its own namespace is found.
#[test]
fn a_namespace_that_cannot_be_attributed_is_left_alone_and_reported() {
    let (mut fixture, mut ztunnel) = InPod::with_ztunnel(&[]);
    let _echo = Echo::tcp(fixture.node.outside(), PORT);
    let other = fixture.running_pod(PLAIN, "other");
    let victim = quiet_pod(&fixture, Pod::new(MESH, "victim"));
    give_addresses(&victim, &other);
    let entered = fixture.processes.add(&victim.sandbox.pod.uid, &other.sandbox.netns);
    fixture.manifests.put_pod(&victim.sandbox.manifest());
    wait_ambiguous(&mut fixture, 1.0);
    let answer = fixture.explain("mesh/victim");
    let why = "its processes are in a network namespace that has its address, but the node's routes lead to another one";
    assert_eq!(answer.code, "netns-not-found", "{answer}");
    assert_eq!(
        answer.message,
        format!(
            "The network namespace of the pod mesh/victim was not found ({why}). All or some of its traffic bypasses the mesh."
        )
    );
    assert!(fixture.is_bare(&other) && fixture.is_bare(&victim), "{}", fixture.log());
    assert!(ztunnel.workload(&victim.sandbox.pod.uid).is_none());
    // Once that process has ended, nothing is ambiguous any more.
    fixture.processes.remove(entered);
    wait_ambiguous(&mut fixture, 0.0);
    let _ = fixture.processes.add(&victim.sandbox.pod.uid, &other.sandbox.netns);
    let _ = fixture.processes.add(&victim.sandbox.pod.uid, &victim.sandbox.netns);
    assert_apart(&mut fixture, &mut ztunnel, &victim, &other);
    wait_ambiguous(&mut fixture, 0.0);
    let answer = fixture.explain("mesh/victim");
    let inode = fs::metadata(victim.sandbox.netns.path()).unwrap().ino();
    let witness = "the node routes the pod's address into it";
    let netns = format!("Its network namespace is net:[{inode}]: {witness}.");
    assert!(answer.details.contains(&netns), "{netns}: {answer}");
}

fn wait_ambiguous(fixture: &mut InPod, pods: f64) {
    fixture.within(MINUTE, "that many are ambiguous", |fixture| {
        fixture.daemon().metric("istio_cni_ambient_ambiguous_pods") == Some(pods)
    });
}
