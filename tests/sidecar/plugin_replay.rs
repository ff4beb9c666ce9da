//! Recorded calls of containerd and CRI-O (`tests/data/cni-calls`) with the binary: the same variables, the same bytes, in the same
//! order.

use std::collections::BTreeMap;

use kit::{Netns, PluginOutput};
use serde_json::Value;

use crate::fixtures::plugin::{PluginFixture, expected, fill, rules, tables};

const CONTAINERD_1_6_CNI_0_3_1: &str = include_str!("../data/cni-calls/containerd-1.6.20-cni-0.3.1.jsonl");
const CONTAINERD_1_6_CNI_1_0_0: &str = include_str!("../data/cni-calls/containerd-1.6.20-cni-1.0.0.jsonl");
const CONTAINERD_2_1_CNI_1_1_0: &str = include_str!("../data/cni-calls/containerd-2.1.5-cni-1.1.0.jsonl");
const CRIO_1_34_CNI_0_4_0: &str = include_str!("../data/cni-calls/crio-1.34.0-cni-0.4.0.jsonl");
const CRIO_1_34_CNI_1_0_0: &str = include_str!("../data/cni-calls/crio-1.34.0-cni-1.0.0.jsonl");

/// Pod `two` gets a second sandbox; the first one is collected by a DEL without a namespace.
#[test]
fn containerd_1_6_with_cni_0_3_1() {
    let told = ["ADD one", "ADD two", "DEL one", "DEL two", "ADD two", "DEL two", "DEL two"];
    assert_eq!(replay(CONTAINERD_1_6_CNI_0_3_1), told);
}

#[test]
fn containerd_1_6_with_cni_1_0_0() {
    let told = ["ADD one", "ADD two", "DEL one", "DEL two", "ADD two", "DEL two", "DEL two"];
    assert_eq!(replay(CONTAINERD_1_6_CNI_1_0_0), told);
}

#[test]
fn containerd_2_1_with_cni_1_1_0() {
    let told =
        ["ADD one", "ADD two", "STATUS -", "DEL one", "STATUS -", "DEL two", "ADD two", "DEL two", "DEL two"];
    assert_eq!(replay(CONTAINERD_2_1_CNI_1_1_0), told);
}

/// CRI-O calls CHECK after each ADD, and for the remaining pod when it restarts. Sandboxes from before a crash of the node get DELs
/// without a namespace.
#[test]
fn crio_1_34_with_cni_0_4_0() {
    let told = [
        "DEL two",
        "ADD one",
        "CHECK one",
        "ADD two",
        "CHECK two",
        "DEL one",
        "CHECK two",
        "DEL two",
        "DEL one",
        "ADD two",
        "CHECK two",
        "DEL two",
    ];
    assert_eq!(replay(CRIO_1_34_CNI_0_4_0), told);
}

#[test]
fn crio_1_34_with_cni_1_0_0() {
    let told = [
        "ADD one",
        "CHECK one",
        "ADD two",
        "CHECK two",
        "DEL one",
        "CHECK two",
        "DEL two",
        "DEL one",
        "DEL two",
        "ADD two",
        "CHECK two",
        "DEL two",
    ];
    assert_eq!(replay(CRIO_1_34_CNI_1_0_0), told);
}

/// Calls of a runtime that passes no container but the pod's own, and no annotations.
#[test]
fn a_runtime_that_names_no_infra_container() {
    let told = ["ADD one", "ADD two", "DEL one", "DEL two", "ADD two", "DEL two", "DEL two"];
    let calls = CONTAINERD_1_6_CNI_1_0_0.lines().map(|line| {
        let mut call: Value = serde_json::from_str(line).unwrap();
        let args = call["env"]["CNI_ARGS"].as_str().unwrap_or_default();
        let left = args.split(';').filter(|pair| !pair.starts_with("K8S_POD_INFRA_CONTAINER_ID="));
        call["env"]["CNI_ARGS"] = left.collect::<Vec<_>>().join(";").into();
        call["stdin"].as_object_mut().unwrap().remove("runtimeConfig");
        // Names of its own: the recording itself is replayed concurrently.
        call.to_string().replace("/netns/cni-", "/netns/own-") + "\n"
    });
    assert_eq!(replay(&calls.collect::<String>()), told);
}

/// Replays one recording; returns its events as text.
fn replay(recording: &str) -> Vec<String> {
    let mut story = Story { fixture: PluginFixture::new(), sandboxes: BTreeMap::new(), told: Vec::new() };
    for line in recording.lines() {
        story.play(&serde_json::from_str(line).unwrap());
    }
    story.told
}

struct Story {
    fixture: PluginFixture,
    /// By `CNI_NETNS`.
    sandboxes: BTreeMap<String, Netns>,
    told: Vec<String>,
}

impl Story {
    fn play(&mut self, call: &Value) {
        let text = |key: &str| call["env"][key].as_str().unwrap_or_default().to_owned();
        let (command, path) = (text("CNI_COMMAND"), text("CNI_NETNS"));
        let args = text("CNI_ARGS");
        let pod = args.split(';').find_map(|pair| pair.strip_prefix("K8S_POD_NAME=")).unwrap_or("-");
        self.told.push(format!("{command} {pod}"));
        match command.as_str() {
            "ADD" => self.add(call, &path),
            "DEL" => self.del(call, &path),
            _ => assert_eq!(self.run(call).stdout, b"", "{command}"),
        }
    }

    fn add(&mut self, call: &Value, path: &str) {
        let sandbox = Netns::named(path.rsplit('/').next().unwrap().to_owned());
        let prev_result = &call["stdin"]["prevResult"];
        let addresses =
            prev_result["ips"].as_array().unwrap().iter().map(|ip| ip["address"].as_str().unwrap());
        fill(&sandbox, &addresses.collect::<Vec<_>>());
        for _ in 0..2 {
            assert_eq!(self.run(call).json(), *prev_result, "handed on as it came");
            assert_eq!(rules(&sandbox.sh("iptables-save")), expected(false));
        }
        self.sandboxes.insert(path.to_owned(), sandbox);
    }

    /// The first DEL of a sandbox has its namespace, which is then removed; repeated ones have an empty path.
    fn del(&mut self, call: &Value, path: &str) {
        assert_eq!(self.run(call).stdout, b"");
        if let Some(sandbox) = self.sandboxes.remove(path) {
            assert_ne!(tables(&sandbox), "");
        }
    }

    /// With the credential of this cluster in the configuration, which the recorded one lacks; otherwise as recorded.
    fn run(&self, call: &Value) -> PluginOutput {
        let env = call["env"].as_object().unwrap().iter();
        let env: Vec<_> = env.map(|(key, value)| (key.clone(), value.as_str().unwrap().to_owned())).collect();
        let mut stdin = call["stdin"].clone();
        stdin["kubernetes"] = serde_json::json!({"kubeconfig": self.fixture.kubeconfig});
        let runtime = self.fixture.node.runtime();
        let output = runtime.exec(&kit::binary("istio-cni"), &env, stdin.to_string().as_bytes());
        assert!(output.status.success(), "{call}: {output:?}");
        output
    }
}
