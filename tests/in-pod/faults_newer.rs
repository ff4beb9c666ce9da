//! A node whose previous agent was newer: files with fields, versions and whole formats that this one does not know. It reads the
//! parts that it knows, and loses nothing of the rest.

use std::fs;
use std::path::Path;

use kit::{Pod, WorkloadState};
use serde_json::{Value, json};

use crate::fixtures::ambient::{Ambient, MESH};
use crate::fixtures::inpod::InPod;

fn read(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn records_with_unknown_members_count_and_unknown_ones_stay() {
    let (mut fixture, ztunnel) = InPod::with_ztunnel(&[]);
    let _one = fixture.mesh_pod("one");
    let late = fixture.starting(Pod::new(MESH, "late"));
    let uid = late.sandbox.pod.uid.clone();
    drop(fixture.daemon.take());
    let directory = fixture.node.run_dir().join("pods");
    for entry in fs::read_dir(&directory).unwrap() {
        let path = entry.unwrap().path();
        let mut record = read(&path);
        record["version"] = json!(9);
        record["netnsFile"]["cookie"] = json!(5);
        record["later"] = json!({"links": [{"name": "eth0"}]});
        fs::write(&path, record.to_string()).unwrap();
    }
    let odd = [("v9-0123", r#"{"version":9,"sandbox":{"id":"0123"}}"#), ("v9-4567", "\u{1}\u{2}not JSON")];
    for (name, text) in odd {
        fs::write(directory.join(name), text).unwrap();
    }
    for round in 1..3 {
        fixture.start();
        ztunnel.wait_for_snapshots(1 + round);
        let state = ztunnel.workload(&uid).map(|workload| workload.state);
        assert_eq!(state, Some(WorkloadState::Up), "{:?}\n{}", ztunnel.messages(), fixture.log());
        drop(fixture.daemon.take());
        for (name, text) in odd {
            assert_eq!(fs::read_to_string(directory.join(name)).unwrap(), text, "{name}");
        }
    }
    assert_eq!(ztunnel.protocol_error(), None);
    fixture.start();
}

#[test]
fn a_journal_and_a_shared_file_of_a_newer_version_do_no_harm() {
    let mut fixture = Ambient::new(&[]);
    let _ztunnel = fixture.ztunnel("ztunnel-a");
    let pod = fixture.pod(MESH, "one");
    fixture.settle();
    drop(fixture.daemon.take());
    let path = fixture.node.run_dir().join("settings-before.json");
    let mut journal = read(&path);
    let (version, links) = (json!(9), json!({"eth0": {"mtu": 1500}}));
    let settings = journal["node"].clone();
    assert!(settings.is_object(), "{journal}");
    journal["version"] = version.clone();
    journal["links before"] = links.clone();
    fs::write(&path, journal.to_string()).unwrap();
    let mut shared = read(&fixture.config_file());
    shared["version"] = json!(9);
    shared["node"]["later"] = json!([1]);
    shared["node"]["config"]["later"] = json!(true);
    fs::write(fixture.config_file(), shared.to_string()).unwrap();
    fixture.start();
    fixture.settle();
    fixture.assert_owned(&pod);
    let now = read(&path);
    assert_eq!((&now["version"], &now["links before"]), (&version, &links), "{now}");
    for (name, old) in settings.as_object().unwrap() {
        assert_eq!(&now["node"][name], old, "{name}");
    }
    // A file of unknown format is not overwritten.
    drop(fixture.daemon.take());
    fs::write(&path, "[9]").unwrap();
    fixture.start();
    let _another = fixture.ztunnel("ztunnel-b"); // has links of its own, whose settings are recorded
    fixture.settle();
    let kept = [path.clone(), path.with_extension("unread")].map(|path| fs::read_to_string(path).ok());
    assert!(kept.contains(&Some("[9]".to_owned())), "{kept:?}\n{}", fixture.log());
}
