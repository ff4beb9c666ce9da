//! The agent is killed right after an ADD: the API shows no address of the pod yet, and it has no process. Only the plugin's record
//! gives the next agent its network namespace.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kit::{Echo, InpodOptions, InpodZtunnel, Live, LiveConnections, Pod, Proto, UplinkWatch, WorkloadState};
use serde_json::{Value, json};

use crate::fixtures::ambient::{MESH, PLAIN, PORT, Peer, starting};
use crate::fixtures::inpod::{InPod, wait_relayed};

/// Corrupts a record.
type Change<'a> = &'a dyn Fn(&mut Value);

/// A node with one running pod and one starting pod.
struct Fixture {
    base: InPod,
    ztunnel: InpodZtunnel,
    one: Peer,
    late: Peer,
    snapshots: usize,
}

impl Fixture {
    fn new() -> Self {
        let mut base = InPod::new(&[]);
        let ztunnel = base.ztunnel("ztunnel-a", InpodOptions::default());
        let one = base.mesh_pod("one");
        let late = base.starting(Pod::new(MESH, "late"));
        Self { base, ztunnel, one, late, snapshots: 1 }
    }

    fn state(&self) -> Option<WorkloadState> {
        self.ztunnel.workload(&self.late.sandbox.pod.uid).map(|workload| workload.state)
    }

    /// Kills the agent, runs `meanwhile`, starts another agent, and waits for its snapshot.
    fn restart(&mut self, meanwhile: impl FnOnce(&Fixture)) {
        drop(self.base.daemon.take());
        meanwhile(self);
        self.base.start();
        self.snapshots += 1;
        self.ztunnel.wait_for_snapshots(self.snapshots);
    }

    /// The only record of the starting pod.
    fn record(&self) -> PathBuf {
        let directory = self.base.node.run_dir().join("pods");
        let files = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path());
        let uid = json!(self.late.sandbox.pod.uid);
        let of_late = |file: &PathBuf| read(file)["uid"] == uid;
        let [file] = files.filter(of_late).collect::<Vec<_>>().try_into().unwrap();
        file
    }

    /// Asserts capture in both directions, by new connections that ztunnel reports.
    fn assert_captured(&mut self) {
        assert!(self.base.is_ruled(&self.late) && self.base.is_probed(self.late.ip(false)));
        self.ztunnel.forget();
        for v6 in [false, true] {
            let outside = self.base.node.outside_ip(v6);
            let _ = self.late.tcp(SocketAddr::new(outside, PORT)).unwrap();
            wait_relayed(&self.ztunnel, self.late.ip(v6), SocketAddr::new(outside, PORT));
            let _ = kit::connect(self.base.node.outside(), Proto::Tcp, self.late.at(v6)).unwrap();
            wait_relayed(&self.ztunnel, outside, self.late.at(v6));
        }
    }
}

fn read(file: &PathBuf) -> Value {
    serde_json::from_slice(&fs::read(file).unwrap()).unwrap()
}

#[test]
fn of_ambient_mode_only_pods_of_the_mesh_leave_a_record() {
    let fixture = Fixture::new();
    let plain = fixture.base.starting(Pod::new(PLAIN, "plain"));
    let files = || fs::read_dir(fixture.base.node.run_dir().join("pods")).unwrap().count();
    assert_eq!(files(), 2, "nothing of {}", plain.sandbox.pod.name);
    let record = read(&fixture.record());
    let netns = fs::metadata(record["netns"].as_str().unwrap()).unwrap();
    assert_eq!(record["netnsFile"], json!({"dev": netns.dev(), "ino": netns.ino()}));
    assert_eq!(record["ips"], json!(fixture.late.sandbox.ips()));
}

#[test]
fn a_pod_that_has_just_been_added_is_in_the_next_agents_snapshot() {
    let mut fixture = Fixture::new();
    let node = Arc::clone(&fixture.base.node);
    let _outside = Echo::tcp(node.outside(), PORT);
    let live = Live { stall: Duration::from_secs(10), ..Live::default() };
    let mut crowd = LiveConnections::start(&fixture.late.sandbox.netns, live);
    for v6 in [false, true] {
        let _ = crowd.open(fixture.one.at(v6), 2);
        let _ = crowd.open(SocketAddr::new(node.outside_ip(v6), PORT), 2);
    }
    let watch = UplinkWatch::start(&node, &fixture.late.sandbox.ips());
    for _ in 0..3 {
        fixture.restart(|_| {});
        assert_eq!(
            fixture.state(),
            Some(WorkloadState::Up),
            "{:?}\n{}",
            fixture.ztunnel.messages(),
            fixture.base.log()
        );
        fixture.assert_captured();
        crowd.wait_round();
    }
    // As soon as the API knows its address, and it has a process, it is a pod like any other.
    fixture.base.processes.add(&fixture.late.sandbox.pod.uid, &fixture.late.sandbox.netns);
    fixture.base.manifests.put_pod(&fixture.late.sandbox.manifest());
    fixture.base.wait_captured(&fixture.late);
    crowd.wait_round();
    crowd.finish().assert_unbroken();
    assert_eq!(watch.total().direct, 0, "{:?}", watch.total());
    assert_eq!(fixture.ztunnel.protocol_error(), None, "{:?}", fixture.ztunnel.messages());
}

#[test]
fn the_del_of_such_a_pod_is_the_end_of_it() {
    let mut fixture = Fixture::new();
    fixture.restart(|_| {});
    assert_eq!(fixture.state(), Some(WorkloadState::Up), "{:?}", fixture.ztunnel.messages());
    let file = fixture.record();
    let _ = fixture.late.sandbox.delete().unwrap();
    let _ = fixture.ztunnel.wait_for_state(&fixture.late.sandbox.pod.uid, WorkloadState::Gone);
    fixture.base.eventually("nothing of it is exempt", |_| !fixture.base.is_probed(fixture.late.ip(false)));
    assert!(!file.exists());
    // Its object stays for a while, without an address.
    fixture.restart(|_| {});
    assert_eq!(fixture.state(), Some(WorkloadState::Gone), "{:?}", fixture.ztunnel.messages());
}

/// The pod has no record, as after the ADD of Istio's own plugin, and no process until its container is started again.
#[test]
fn a_pod_that_left_the_mesh_between_two_agents_is_released_once_it_has_a_process() {
    for (annotation, state) in [("", WorkloadState::Gone), ("enabled", WorkloadState::Up)] {
        let mut fixture = Fixture::new();
        let file = fixture.record();
        fixture.restart(|fixture| {
            fs::remove_file(&file).unwrap();
            let mut manifest = fixture.late.sandbox.manifest();
            manifest["metadata"]["labels"] = json!({"istio.io/dataplane-mode": "none"});
            manifest["metadata"]["annotations"] = json!({"ambient.istio.io/redirection": annotation});
            fixture.base.manifests.put_pod(&manifest);
        });
        assert_eq!(fixture.state(), Some(state), "{annotation}: {:?}", fixture.ztunnel.messages());
        assert!(fixture.base.is_ruled(&fixture.late), "its namespace is not known");
        // The annotation of an earlier agent shows that there may be rules, so everything else stays until they are removed.
        let is_exempt = || fixture.base.is_probed(fixture.late.ip(false));
        fixture.base.eventually("its probes are as then", |_| is_exempt() == (state == WorkloadState::Up));
        fixture.base.processes.add(&fixture.late.sandbox.pod.uid, &fixture.late.sandbox.netns);
        fixture.base.eventually("it has no rules", |_| fixture.base.is_bare(&fixture.late));
        let _ = fixture.ztunnel.wait_for_state(&fixture.late.sandbox.pod.uid, WorkloadState::Gone);
        fixture
            .base
            .eventually("nothing of it is exempt", |_| !fixture.base.is_probed(fixture.late.ip(false)));
    }
}

/// Chains of a sidecar have the names of ours.
#[test]
fn a_pod_with_a_sidecar_keeps_its_rules_whatever_its_annotation_says() {
    let mut fixture = Fixture::new();
    fixture.base.processes.add(&fixture.late.sandbox.pod.uid, &fixture.late.sandbox.netns);
    let file = fixture.record();
    fixture.restart(|fixture| {
        fs::remove_file(&file).unwrap();
        let mut manifest = fixture.late.sandbox.manifest();
        manifest["metadata"]["labels"] = json!({"istio.io/dataplane-mode": "none"});
        manifest["metadata"]["annotations"] =
            json!({"ambient.istio.io/redirection": "enabled", "sidecar.istio.io/status": "{}"});
        manifest["spec"]["containers"] = json!([{"name": "istio-proxy"}]);
        fixture.base.manifests.put_pod(&manifest);
    });
    assert_eq!(fixture.state(), Some(WorkloadState::Gone), "{:?}", fixture.ztunnel.messages());
    assert!(fixture.base.is_ruled(&fixture.late));
}

/// The agent is killed after its answer; the next one reads records before the plugin has written this one.
#[test]
fn a_record_that_comes_after_the_snapshot_counts_too() {
    let mut fixture = Fixture::new();
    let node = Arc::clone(&fixture.base.node);
    let _outside = Echo::tcp(node.outside(), PORT);
    let (file, hidden) = (fixture.record(), fixture.base.node.run_dir().join("hidden"));
    fixture.restart(|_| fs::rename(&file, &hidden).unwrap());
    assert_eq!(fixture.state(), Some(WorkloadState::Gone), "{:?}", fixture.ztunnel.messages());
    assert!(fixture.base.is_ruled(&fixture.late), "its rules hold its traffic");
    fs::rename(&hidden, &file).unwrap();
    let _ = fixture.ztunnel.wait_for_workload(&fixture.late.sandbox.pod.uid);
    fixture.assert_captured();
}

#[test]
fn a_record_that_does_not_fit_is_not_believed() {
    let mut fixture = Fixture::new();
    let file = fixture.record();
    let right = read(&file);
    let other = fixture.one.sandbox.netns.name().to_owned();
    let wrongs: [(&str, Change<'_>); 7] = [
        ("another namespace was there", &|record| record["netnsFile"]["ino"] = json!(1)),
        ("none is known to have been there", &|record| record["netnsFile"] = Value::Null),
        ("nothing is there", &|record| record["netns"] = json!("/var/run/netns/nobody")),
        ("another one is there", &|record| record["netns"] = json!(format!("/var/run/netns/{other}"))),
        ("it has another address", &|record| record["ips"] = json!(["10.9.9.9"])),
        ("another pod of the name", &|record| {
            record["uid"] = json!("gone");
            record["podUid"] = json!("gone");
        }),
        ("the ADD failed", &|record| record["error"] = json!("no")),
    ];
    for (what, change) in wrongs {
        let mut wrong = right.clone();
        change(&mut wrong);
        assert_ne!(wrong, right, "{what}");
        fixture.restart(|_| fs::write(&file, wrong.to_string()).unwrap());
        assert_eq!(fixture.state(), Some(WorkloadState::Gone), "{what}: {:?}", fixture.ztunnel.messages());
    }
    fixture.restart(|_| fs::write(&file, &right.to_string().as_bytes()[..40]).unwrap());
    assert_eq!(fixture.state(), Some(WorkloadState::Gone), "half of a record");
    fixture.restart(|_| fs::write(&file, right.to_string()).unwrap());
    assert_eq!(fixture.state(), Some(WorkloadState::Up), "{:?}", fixture.ztunnel.messages());
}

#[test]
fn a_record_overrules_neither_facts_nor_other_pods() {
    let mut fixture = Fixture::new();
    let (late, file) = (fixture.late.sandbox.pod.clone(), fixture.record());
    // The pod left the mesh while no agent ran: its rules are removed, as no process of it will reveal its namespace.
    fixture.restart(|fixture| {
        let mut manifest = starting(&late);
        manifest["metadata"]["labels"] = json!({"istio.io/dataplane-mode": "none"});
        fixture.base.manifests.put_pod(&manifest);
    });
    fixture.base.eventually("it has no rules", |_| fixture.base.is_bare(&fixture.late));
    let _ = fixture.ztunnel.wait_for_state(&late.uid, WorkloadState::Gone);
    let counted = |daemon: &kit::Daemon, kind: &str| {
        daemon.metric(&format!("nodeagent_reconcile_events_total{{type=\"{kind}\"}}"))
    };
    fixture.base.daemon().wait_for("one belongs to the mesh, and one has left it", |daemon| {
        ["add", "delete"].map(|kind| counted(daemon, kind)) == [Some(1.0), Some(1.0)]
    });
    // The pod was deleted, and its record was not.
    fixture.restart(|fixture| fixture.base.manifests.remove_pod(MESH, &late.name));
    assert!(file.exists() && fixture.state() == Some(WorkloadState::Gone));
    // Its address belongs to another pod, as the API reports.
    let heir = Pod::new(MESH, "heir");
    fixture.restart(|fixture| {
        fixture.base.manifests.put_pod(&heir.manifest(&fixture.late.sandbox.ips()));
        fixture.base.manifests.put_pod(&starting(&late));
        let ip = fixture.late.ip(false).to_string();
        let forget = ["ipset", "del", "-exist", "istio-inpod-probes-v4", &ip].join(" ");
        fixture.base.node.netns().sh(&forget);
    });
    fixture.base.wait_served(&fixture.ztunnel, &fixture.late);
    let owner = || fixture.base.owner(fixture.late.ip(false));
    fixture.base.eventually("it is the heir's", |_| owner().as_deref() == Some(heir.uid.as_str()));
}
