//! Replays recorded calls of containerd and CRI-O (`tests/data/cni-calls/` of the workspace).

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test: a panic is its failure")]

use std::{collections::BTreeMap, ffi::OsString};

use cni_types::{CniCommand, CniEnvironment, CniVersion, NetConf};
use serde_json::Value;

const CALLS: [&str; 5] = [
    include_str!("../../../tests/data/cni-calls/containerd-1.6.20-cni-0.3.1.jsonl"),
    include_str!("../../../tests/data/cni-calls/containerd-1.6.20-cni-1.0.0.jsonl"),
    include_str!("../../../tests/data/cni-calls/containerd-2.1.5-cni-1.1.0.jsonl"),
    include_str!("../../../tests/data/cni-calls/crio-1.34.0-cni-0.4.0.jsonl"),
    include_str!("../../../tests/data/cni-calls/crio-1.34.0-cni-1.0.0.jsonl"),
];

fn calls() -> impl Iterator<Item = Value> {
    CALLS.iter().flat_map(|file| file.lines()).map(|line| serde_json::from_str(line).unwrap())
}

fn environment(call: &Value) -> CniEnvironment {
    let lookup = |name: &str| call["env"][name].as_str().map(OsString::from);
    let command = CniCommand::from_lookup(lookup).unwrap().unwrap();
    CniEnvironment::parse(command, lookup).unwrap()
}

#[test]
fn every_recorded_call_is_understood() {
    let mut seen = BTreeMap::new();
    for call in calls() {
        let env = environment(&call);
        let args = env.parse_args().unwrap();
        let conf = NetConf::parse(call["stdin"].to_string().as_bytes()).unwrap();
        assert_eq!(call["stdin"]["type"], "istio-cni");
        *seen.entry(call["env"]["CNI_COMMAND"].as_str().unwrap().to_owned()).or_insert(0) += 1;
        if env.command == CniCommand::Status {
            continue;
        }
        assert!(["one", "two"].contains(&args.pod_name.unwrap().as_str()));
        assert!(args.pod_uid.is_some());
        assert_eq!(conf.pod_annotations.unwrap()["note"], "a \"quoted\" value");
    }
    let count = |command: &str| seen[command];
    assert_eq!(["ADD", "CHECK", "DEL", "STATUS"].map(count), [15, 8, 22, 2]);
}

#[test]
fn every_recorded_add_passes_through_unchanged_and_has_its_ip() {
    for call in calls().filter(|call| call["env"]["CNI_COMMAND"] == "ADD") {
        let conf = NetConf::parse(call["stdin"].to_string().as_bytes()).unwrap();
        let prev = conf.prev_result().unwrap().unwrap();
        let ips = prev.result.pod_ips(&environment(&call).ifname.unwrap());
        assert_eq!(ips.len(), 1);
        assert_eq!(conf.pass_through().unwrap(), call["stdin"]["prevResult"].to_string());
        assert!(prev.output_for(CniVersion::V0_2_0).unwrap().contains(&ips[0].to_string()));
    }
}
