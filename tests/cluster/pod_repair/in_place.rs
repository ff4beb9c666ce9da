//! Broken pods whose rules are applied in place.

use std::{fs, net::SocketAddr, path::Path};

use kit::{Echo, Pod, PodSandbox, ProcessTable, Proto, Serve};

use super::*;

/// A node whose processes the agent sees below `/host/proc`.
pub(super) struct ProcessNode {
    pub(super) node: RepairNode,
    pub(super) processes: ProcessTable,
}

impl ProcessNode {
    pub(super) fn start(name: &'static str) -> Option<Self> {
        let mut node = RepairNode::start(name, &rights(None), "REPAIR_REPAIR_PODS")?;
        let processes = ProcessTable::new(&node.0.node);
        node.0.container.add_mount(processes.path(), "/host/proc");
        node.0.container.add_mount(Path::new("/run/netns"), "/var/run/netns");
        Some(Self { node, processes })
    }

    /// A pod that was set up without the plugin, and whose init container blocks it.
    fn sandbox(&self, name: &str, pid: u32, is_dual: bool) -> PodSandbox {
        self.add(name, pid, "Pending", |pod| dual_stack(pod, is_dual))
    }

    /// Creates a pod in this phase that the plugin has never seen.
    pub(super) fn add(
        &self,
        name: &str,
        pid: u32,
        phase: &str,
        change: impl FnOnce(&mut Value),
    ) -> PodSandbox {
        let pod = Pod::from_object(&self.node.create(name, change));
        let sandbox = self.node.0.node.pod(pod, &[]);
        let mut status = sandbox.manifest()["status"].clone();
        status["phase"] = json!(phase);
        self.node.0.api.admin().patch_status(&self.node.path(name), &status);
        self.processes.add_pod(pid, &sandbox);
        sandbox
    }
}

pub(super) fn dual_stack(pod: &mut Value, is_dual: bool) {
    let dual = json!({"name": "ISTIO_DUAL_STACK", "value": is_dual.to_string()});
    pod["spec"]["containers"][1]["env"] = json!([dual]);
}

/// All rules in tables of either kind, without counters.
pub(super) fn rules_of(sandbox: &PodSandbox) -> Vec<String> {
    let tools = ["iptables-nft-save", "ip6tables-nft-save", "iptables-legacy-save", "ip6tables-legacy-save"];
    let saved = tools.map(|tool| sandbox.netns.sh(tool)).concat();
    saved.lines().filter(|line| line.starts_with('-')).map(str::to_owned).collect()
}

/// Name of the server that answers a connection from inside the pod to an external service.
pub(super) fn answered_by(sandbox: &PodSandbox, target: SocketAddr) -> String {
    kit::connect(&sandbox.netns, Proto::Tcp, target)
        .map_or_else(|error| format!("{error:?}"), |seen| seen.server)
}

#[test]
fn a_pod_that_bypasses_its_sidecar_goes_through_it_after_the_repair() {
    let Some(own) = ProcessNode::start("repair-place") else { return };
    let node = &own.node;
    let sandbox = own.sandbox("web", 11, false);
    let outside = node.0.node.outside();
    let _service = Echo::start(outside, &Serve::new(Proto::Tcp, 8080).named("service"));
    let _sidecar =
        Echo::start(&sandbox.netns, &Serve::new(Proto::Tcp, 15001).named("sidecar").owned_by(1337, 1337));
    let target = SocketAddr::new(node.0.node.outside_ip(false), 8080);
    assert_eq!(answered_by(&sandbox, target), "service", "nobody redirects it");

    let mut daemon = node.0.daemon();
    node.fail("web", 126);
    daemon.wait_for("it is repaired", |daemon| repairs(daemon, "repair", "success") == 1.0);
    assert_eq!(answered_by(&sandbox, target), "sidecar");
    let uid = json!(sandbox.pod.uid);
    kit::until("it is told", || node.events(&uid, "BrokenPodRepaired").len() == 1);
    // It is still in its back-off: nothing more is done, and the next agent finds everything in place.
    let rules = rules_of(&sandbox);
    drop(daemon);
    let mut daemon = node.0.daemon();
    daemon.wait_for("it was looked at", |daemon| repairs(daemon, "repair", "skip") == 1.0);
    assert_eq!(repairs(&daemon, "repair", "success"), 0.0);
    assert_eq!(rules_of(&sandbox), rules);
    node.assert_allowed();
}

/// Both families, with each of the two kinds of tables; existing rules in the namespace select the kind.
#[test]
fn both_families_are_repaired_in_tables_of_either_kind() {
    let Some(own) = ProcessNode::start("repair-kinds") else { return };
    let node = &own.node;
    let _service = Echo::start(node.0.node.outside(), &Serve::new(Proto::Tcp, 8080).named("service"));
    let pods = [("nft", 11), ("legacy", 12)].map(|(kind, pid)| {
        let sandbox = own.sandbox(kind, pid, true);
        if kind == "legacy" {
            for tool in ["iptables-legacy", "ip6tables-legacy"] {
                sandbox.netns.sh(&format!("{tool} -w -t nat -N OTHERS"));
            }
        }
        let sidecar = Serve::new(Proto::Tcp, 15001).named("sidecar").owned_by(1337, 1337);
        let server = Echo::start(&sandbox.netns, &sidecar);
        node.fail(kind, 126);
        (kind, sandbox, server)
    });
    let targets = [false, true].map(|v6| SocketAddr::new(node.0.node.outside_ip(v6), 8080));
    let answers = |sandbox| targets.map(|target| answered_by(sandbox, target));
    for (kind, sandbox, _) in &pods {
        assert_eq!(answers(sandbox), ["service", "service"], "{kind}");
    }
    let mut daemon = node.0.daemon();
    daemon.wait_for("both are repaired", |daemon| repairs(daemon, "repair", "success") == 2.0);
    for (kind, sandbox, _) in &pods {
        assert_eq!(answers(sandbox), ["sidecar", "sidecar"], "{kind}");
        match *kind {
            "legacy" => assert!(kit::plugin_rules::is_redirected(&sandbox.netns, "iptables-legacy-save")),
            _ => assert!(kit::plugin_rules::is_bare(&sandbox.netns, "iptables-legacy-save"), "{kind}"),
        }
    }
    let locks = fs::read_dir(node.0.node.run_dir().join("locks"));
    assert!(locks.unwrap().count() > 0, "the plugin and the agent share the locks of legacy tables");
}

#[test]
fn a_pod_that_cannot_be_found_is_told_and_found_later() {
    let Some(own) = ProcessNode::start("repair-lost") else { return };
    let node = &own.node;
    let pod = Pod::from_object(&node.create("web", |_| {}));
    let sandbox = node.0.node.pod(pod, &[]);
    node.0.api.admin().patch_status(&node.path("web"), &sandbox.manifest()["status"]);
    node.fail("web", 126);
    let mut daemon = node.0.daemon();
    daemon.wait_for("it was tried", |daemon| repairs(daemon, "repair", "fail") >= 1.0);
    let uid = json!(sandbox.pod.uid);
    kit::until("it is told", || !node.events(&uid, "RepairFailed").is_empty());
    let event = node.events(&uid, "RepairFailed").remove(0);
    let failed = "its init container istio-validation failed with exit code 126";
    let why = "none of its processes, the pause container's included, is in a network namespace that has its address";
    assert_eq!(event["message"], format!("{failed}; its network namespace was not found: {why}"));
    // A process of another pod in this namespace does not belong to the pod.
    own.processes.add(12, "kubepods/burstable/pod00000000-0000-0000-0000-000000000000/1", &sandbox.netns);
    own.processes.add_pod(13, &sandbox);
    daemon.wait_for("it is repaired", |daemon| repairs(daemon, "repair", "success") == 1.0);
    assert!(kit::plugin_rules::is_redirected(&sandbox.netns, "iptables-save"));
}
