//! Pods that run, and whose rules are missing: at the agent's start, and later.

use std::net::SocketAddr;

use kit::{Echo, PodSandbox, Proto, Serve};

use super::{
    in_place::{ProcessNode, answered_by, dual_stack, rules_of},
    *,
};

fn rules(daemon: &Daemon, result: &str) -> f64 {
    daemon
        .metric(&format!(r#"istio_cni_repair_sidecar_rules_total{{result="{result}"}}"#))
        .unwrap_or_default()
}

fn sidecar_in(sandbox: &PodSandbox) -> Echo {
    Echo::start(&sandbox.netns, &Serve::new(Proto::Tcp, 15001).named("sidecar").owned_by(1337, 1337))
}

fn flush(sandbox: &PodSandbox, kind: &str) {
    for tool in [format!("iptables-{kind}"), format!("ip6tables-{kind}")] {
        for action in ["-F", "-X"] {
            sandbox.netns.sh(&format!("{tool} -t nat {action}"));
        }
    }
}

/// From the agent's start on, in both families and in tables of either kind.
#[test]
fn rules_that_are_missing_are_restored_at_the_start_and_whenever_they_are_removed() {
    let Some(own) = ProcessNode::start("repair-running") else { return };
    let node = &own.node;
    let _service = Echo::start(node.0.node.outside(), &Serve::new(Proto::Tcp, 8080).named("service"));
    let pods = [("nft", 11), ("legacy", 12)].map(|(kind, pid)| {
        let sandbox = own.add(kind, pid, "Running", |pod| dual_stack(pod, true));
        if kind == "legacy" {
            for tool in ["iptables-legacy", "ip6tables-legacy"] {
                sandbox.netns.sh(&format!("{tool} -t nat -N OTHERS"));
            }
        }
        let server = sidecar_in(&sandbox);
        (kind, sandbox, server)
    });
    let targets = [false, true].map(|v6| SocketAddr::new(node.0.node.outside_ip(v6), 8080));
    let answers = |sandbox| targets.map(|target| answered_by(sandbox, target));
    for (kind, sandbox, _) in &pods {
        assert_eq!(answers(sandbox), ["service", "service"], "{kind}: nobody redirects it");
    }
    let mut daemon = node.0.daemon();
    daemon.wait_for("both are redirected", |daemon| rules(daemon, "success") == 2.0);
    for (kind, sandbox, _) in &pods {
        assert_eq!(answers(sandbox), ["sidecar", "sidecar"], "{kind}");
        let uid = json!(sandbox.pod.uid);
        eventually("it is told", || node.events(&uid, "SidecarRulesRestored").len() == 1);
    }
    for (kind, sandbox, _) in &pods {
        flush(sandbox, kind);
    }
    daemon.wait_for("both are redirected again", |daemon| rules(daemon, "success") == 4.0);
    for (kind, sandbox, _) in &pods {
        assert_eq!(answers(sandbox), ["sidecar", "sidecar"], "{kind}");
    }
    // The next agent finds all in place.
    let before = pods.each_ref().map(|(_, sandbox, _)| rules_of(sandbox));
    drop(daemon);
    let mut daemon = node.0.daemon();
    let late = own.add("late", 13, "Running", |_| {});
    daemon.wait_for("a pass has ended", |daemon| rules(daemon, "success") == 1.0);
    assert!(late.netns.sh("iptables-save").contains("ISTIO_OUTPUT"));
    assert_eq!(pods.each_ref().map(|(_, sandbox, _)| rules_of(sandbox)), before);
    assert_eq!(rules(&daemon, "fail"), 0.0);
    assert_allowed(&daemon);
}

#[test]
fn a_pod_that_the_plugin_would_not_redirect_is_left_alone() {
    let Some(own) = ProcessNode::start("repair-others") else { return };
    let plain = own.add("plain", 11, "Running", |pod| pod["metadata"]["annotations"] = json!({}));
    let opted_out = own.add("opted-out", 12, "Running", |pod| {
        pod["metadata"]["annotations"]["sidecar.istio.io/interceptionMode"] = json!("NONE");
    });
    let by_itself = own.add("by-itself", 13, "Running", |pod| {
        pod["spec"]["initContainers"] = json!([{"name": "istio-init", "image": "proxyv2"}]);
    });
    let wanted = own.add("wanted", 14, "Running", |_| {});
    let mut daemon = own.node.0.daemon();
    daemon.wait_for("the one with a sidecar is redirected", |daemon| rules(daemon, "success") == 1.0);
    assert!(wanted.netns.sh("iptables-save").contains("ISTIO_OUTPUT"));
    for sandbox in [plain, opted_out, by_itself] {
        assert_eq!(rules_of(&sandbox), Vec::<String>::new(), "{}", sandbox.pod.name);
    }
    assert_eq!((rules(&daemon, "fail"), rules(&daemon, "skip")), (0.0, 0.0));
}

#[test]
fn a_dry_run_only_tells_what_is_missing() {
    let Some(mut own) = ProcessNode::start("repair-dry-running") else { return };
    own.node.0.container.set_env("REPAIR_DRY_RUN", "true");
    let sandbox = own.add("web", 11, "Running", |_| {});
    let mut daemon = own.node.0.daemon();
    daemon.wait_for("it was looked at", |daemon| rules(daemon, "skip") == 1.0);
    let uid = json!(sandbox.pod.uid);
    eventually("it is told", || own.node.events(&uid, "RepairSkipped").len() == 1);
    assert_eq!(rules_of(&sandbox), Vec::<String>::new());
    assert_eq!(rules(&daemon, "success"), 0.0);
}
