//! The agent is killed right after an ADD: the API shows no address of the pod yet, and no process of it exists. Only the
//! plugin's record tells the next agent where the pod is.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kit::{Echo, InpodOptions, InpodZtunnel, Live, LiveConnections, Pod, Proto, UplinkWatch, WorkloadState};
use serde_json::{Value, json};

use crate::ambient_stage::{MESH, PLAIN, PORT, Peer, starting};
use crate::inpod_stage::{InPod, wait_relayed};

/// Spoils a record.
type Change<'a> = &'a dyn Fn(&mut Value);

/// A node with one pod that runs, and one that starts.
struct Lab {
    stage: InPod,
    ztunnel: InpodZtunnel,
    one: Peer,
    late: Peer,
    snapshots: usize,
}

impl Lab {
    fn new() -> Self {
        let mut stage = InPod::new(&[]);
        let ztunnel = stage.ztunnel("ztunnel-a", InpodOptions::default());
        let one = stage.mesh_pod("one");
        let late = stage.starting(Pod::new(MESH, "late"));
        Self { stage, ztunnel, one, late, snapshots: 1 }
    }

    fn state(&self) -> Option<WorkloadState> {
        self.ztunnel.workload(&self.late.sandbox.pod.uid).map(|workload| workload.state)
    }

    /// Kills the agent, does something, starts another one, and waits for its snapshot.
    fn restart(&mut self, meanwhile: impl FnOnce(&Lab)) {
        drop(self.stage.daemon.take());
        meanwhile(self);
        self.stage.start();
        self.snapshots += 1;
        self.ztunnel.wait_for_snapshots(self.snapshots);
    }

    /// The one record there is of the pod that starts.
    fn record(&self) -> PathBuf {
        let directory = self.stage.node.run_dir().join("pods");
        let files = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path());
        let uid = json!(self.late.sandbox.pod.uid);
        let of_late = |file: &PathBuf| read(file)["uid"] == uid;
        let [file] = files.filter(of_late).collect::<Vec<_>>().try_into().unwrap();
        file
    }

    /// Both ways, by a ztunnel that has seen nothing of that before.
    fn assert_captured(&mut self) {
        assert!(self.stage.is_ruled(&self.late) && self.stage.is_probed(self.late.ip(false)));
        self.ztunnel.forget();
        for v6 in [false, true] {
            let outside = self.stage.node.outside_ip(v6);
            let _ = self.late.tcp(SocketAddr::new(outside, PORT)).unwrap();
            wait_relayed(&self.ztunnel, self.late.ip(v6), SocketAddr::new(outside, PORT));
            let _ = kit::connect(self.stage.node.outside(), Proto::Tcp, self.late.at(v6)).unwrap();
            wait_relayed(&self.ztunnel, outside, self.late.at(v6));
        }
    }
}

fn read(file: &PathBuf) -> Value {
    serde_json::from_slice(&fs::read(file).unwrap()).unwrap()
}

#[test]
fn of_ambient_mode_only_pods_of_the_mesh_leave_a_record() {
    let lab = Lab::new();
    let plain = lab.stage.starting(Pod::new(PLAIN, "plain"));
    let files = || fs::read_dir(lab.stage.node.run_dir().join("pods")).unwrap().count();
    assert_eq!(files(), 2, "nothing of {}", plain.sandbox.pod.name);
    let record = read(&lab.record());
    let netns = fs::metadata(record["netns"].as_str().unwrap()).unwrap();
    assert_eq!(record["netnsFile"], json!({"dev": netns.dev(), "ino": netns.ino()}));
    assert_eq!(record["ips"], json!(lab.late.sandbox.ips()));
}

#[test]
fn a_pod_that_has_just_been_added_is_in_the_next_agents_snapshot() {
    let mut lab = Lab::new();
    let node = Arc::clone(&lab.stage.node);
    let _outside = Echo::tcp(node.outside(), PORT);
    let live = Live { every: Duration::from_millis(20), stall: Duration::from_secs(5) };
    let mut crowd = LiveConnections::start(&lab.late.sandbox.netns, live);
    for v6 in [false, true] {
        let _ = crowd.open(lab.one.at(v6), 2);
        let _ = crowd.open(SocketAddr::new(node.outside_ip(v6), PORT), 2);
    }
    let watch = UplinkWatch::start(&node, &lab.late.sandbox.ips());
    for _ in 0..3 {
        lab.restart(|_| {});
        assert_eq!(lab.state(), Some(WorkloadState::Up), "{:?}\n{}", lab.ztunnel.messages(), lab.stage.log());
        lab.assert_captured();
        crowd.wait_round();
    }
    // As soon as the API knows its address, and it has a process, it is a pod like any other.
    lab.stage.processes.add(&lab.late.sandbox.pod.uid, &lab.late.sandbox.netns);
    lab.stage.manifests.put_pod(&lab.late.sandbox.manifest());
    lab.stage.wait_captured(&lab.late);
    crowd.wait_round();
    crowd.finish().assert_unbroken();
    assert_eq!(watch.total().direct, 0, "{:?}", watch.total());
    assert_eq!(lab.ztunnel.protocol_error(), None, "{:?}", lab.ztunnel.messages());
}

#[test]
fn the_del_of_such_a_pod_is_the_end_of_it() {
    let mut lab = Lab::new();
    lab.restart(|_| {});
    assert_eq!(lab.state(), Some(WorkloadState::Up), "{:?}", lab.ztunnel.messages());
    let file = lab.record();
    let _ = lab.late.sandbox.delete().unwrap();
    let _ = lab.ztunnel.wait_for_state(&lab.late.sandbox.pod.uid, WorkloadState::Gone);
    lab.stage.eventually("nothing of it is exempt", |_| !lab.stage.is_probed(lab.late.ip(false)));
    assert!(!file.exists());
    // Its object stays for a while, and tells of no address.
    lab.restart(|_| {});
    assert_eq!(lab.state(), Some(WorkloadState::Gone), "{:?}", lab.ztunnel.messages());
}

/// The agent is killed when it has answered; the next one looks before the plugin has written its record.
#[test]
fn a_record_that_comes_after_the_snapshot_counts_too() {
    let mut lab = Lab::new();
    let node = Arc::clone(&lab.stage.node);
    let _outside = Echo::tcp(node.outside(), PORT);
    let (file, hidden) = (lab.record(), lab.stage.node.run_dir().join("hidden"));
    lab.restart(|_| fs::rename(&file, &hidden).unwrap());
    assert_eq!(lab.state(), Some(WorkloadState::Gone), "{:?}", lab.ztunnel.messages());
    assert!(lab.stage.is_ruled(&lab.late), "its rules hold its traffic");
    fs::rename(&hidden, &file).unwrap();
    let _ = lab.ztunnel.wait_for_workload(&lab.late.sandbox.pod.uid);
    lab.assert_captured();
}

#[test]
fn a_record_that_does_not_fit_is_not_believed() {
    let mut lab = Lab::new();
    let file = lab.record();
    let right = read(&file);
    let other = lab.one.sandbox.netns.name().to_owned();
    let wrongs: [(&str, Change<'_>); 7] = [
        ("another namespace was there", &|record| record["netnsFile"]["ino"] = json!(1)),
        ("none is known to have been there", &|record| record["netnsFile"] = Value::Null),
        ("nothing is there", &|record| record["netns"] = json!("/var/run/netns/nobody")),
        ("another one is there", &|record| record["netns"] = json!(format!("/var/run/netns/{other}"))),
        ("it has another address", &|record| record["ips"] = json!(["10.9.9.9"])),
        ("another pod of the name", &|record| {
            record["uid"] = json!("gone");
            record["pod"]["metadata"]["uid"] = json!("gone");
        }),
        ("the ADD failed", &|record| record["error"] = json!("no")),
    ];
    for (what, change) in wrongs {
        let mut wrong = right.clone();
        change(&mut wrong);
        assert_ne!(wrong, right, "{what}");
        lab.restart(|_| fs::write(&file, wrong.to_string()).unwrap());
        assert_eq!(lab.state(), Some(WorkloadState::Gone), "{what}: {:?}", lab.ztunnel.messages());
    }
    lab.restart(|_| fs::write(&file, &right.to_string().as_bytes()[..40]).unwrap());
    assert_eq!(lab.state(), Some(WorkloadState::Gone), "half of a record");
    lab.restart(|_| fs::write(&file, right.to_string()).unwrap());
    assert_eq!(lab.state(), Some(WorkloadState::Up), "{:?}", lab.ztunnel.messages());
}

#[test]
fn a_record_overrules_neither_facts_nor_other_pods() {
    let mut lab = Lab::new();
    let (late, file) = (lab.late.sandbox.pod.clone(), lab.record());
    // It left the mesh while nobody was here: its rules are taken away, as no process of it will tell where it is.
    lab.restart(|lab| {
        let mut manifest = starting(&late);
        manifest["metadata"]["labels"] = json!({"istio.io/dataplane-mode": "none"});
        lab.stage.manifests.put_pod(&manifest);
    });
    lab.stage.eventually("it has no rules", |_| lab.stage.is_bare(&lab.late));
    assert_eq!(lab.state(), Some(WorkloadState::Gone), "{:?}", lab.ztunnel.messages());
    // It is gone, and nobody has removed its record.
    lab.restart(|lab| lab.stage.manifests.remove_pod(MESH, &late.name));
    assert!(file.exists() && lab.state() == Some(WorkloadState::Gone));
    // Its address is another's, as the API has it.
    let heir = Pod::new(MESH, "heir");
    lab.restart(|lab| {
        lab.stage.manifests.put_pod(&heir.manifest(&lab.late.sandbox.ips()));
        lab.stage.manifests.put_pod(&starting(&late));
        let ip = lab.late.ip(false).to_string();
        let forget = ["ipset", "del", "-exist", "istio-inpod-probes-v4", &ip].join(" ");
        lab.stage.node.netns().sh(&forget);
    });
    lab.stage.wait_served(&lab.ztunnel, &lab.late);
    assert_eq!(lab.stage.owner(lab.late.ip(false)).as_deref(), Some(heir.uid.as_str()));
}
