//! Pods with node-level capture.

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use kit::{NodeOptions, Pod, PodSandbox, Ztunnel, ZtunnelOptions};
use serde_json::{Value, json};

use super::{assert_words, call, comes_to_say, comes_to_say_after, explain, list, says, verify};
use crate::fixtures::ambient::{Ambient, MESH, PLAIN, starting};

const AMBIENT: [(&str, &str); 1] = [("istio.io/dataplane-mode", "ambient")];

/// A pod that runs in the mesh's namespace, with this change of its API object.
fn running(fixture: &Ambient, name: &str, change: impl FnOnce(&mut Value)) -> PodSandbox {
    of(fixture, Pod::new(MESH, name), change)
}

fn of(fixture: &Ambient, pod: Pod, change: impl FnOnce(&mut Value)) -> PodSandbox {
    let sandbox = fixture.node.pod(pod, &[]);
    let mut manifest = sandbox.manifest();
    change(&mut manifest);
    fixture.manifests.put_pod(&manifest);
    sandbox
}

#[test]
fn each_pod_of_a_node_has_its_reason() {
    let mut fixture = Ambient::new(&[("EXCLUDE_NAMESPACES", "backup,db")]);
    let _ztunnel = fixture.ztunnel("ztunnel-a");
    for namespace in ["backup", "kube-system"] {
        fixture.manifests.put_namespace(namespace, &AMBIENT);
    }
    fixture.manifests.put_namespace("db", &[]);
    let (_web, _plain) = (fixture.pod(MESH, "web"), fixture.pod(PLAIN, "plain"));
    let injected = |pod: &mut Value| {
        pod["metadata"]["annotations"]["sidecar.istio.io/status"] = json!("{}");
        pod["spec"]["containers"] = json!([{"name": "app"}, {"name": "istio-proxy"}]);
    };
    let _pods = [
        running(&fixture, "asks-out", |pod| {
            pod["metadata"]["annotations"]["ambient.istio.io/redirection"] = json!("disabled");
        }),
        running(&fixture, "label-none", |pod| {
            pod["metadata"]["labels"]["istio.io/dataplane-mode"] = json!("none");
        }),
        running(&fixture, "host", |pod| pod["spec"]["hostNetwork"] = json!(true)),
        running(&fixture, "done", |pod| pod["status"]["phase"] = json!("Succeeded")),
        running(&fixture, "both", injected),
        of(&fixture, Pod::new("backup", "labelled"), |_| ()),
        of(&fixture, Pod::new("db", "injected"), injected),
        of(&fixture, Pod::new(PLAIN, "job"), |pod| {
            injected(pod);
            pod["status"]["phase"] = json!("Failed");
        }),
        of(&fixture, Pod::new("kube-system", "istio-cni-node-x7k2p"), |_| ()),
        of(&fixture, Pod::new("nowhere", "web"), |_| ()),
    ];
    fixture.manifests.put_pod(&starting(&Pod::new(MESH, "new")));
    fixture.settle();

    let outside = |code| (code, "outside", "-", 0);
    for (pod, expected) in [
        ("mesh/web", ("captured", "captured", "node", 0)),
        ("plain/plain", outside("not-labelled")),
        ("mesh/asks-out", outside("opted-out")),
        ("mesh/label-none", outside("pod-label-none")),
        ("backup/labelled", outside("excluded-namespace")),
        ("db/injected", outside("excluded-namespace")),
        ("mesh/host", outside("host-network")),
        ("mesh/done", outside("terminated")),
        ("plain/job", outside("terminated")),
        ("istio-system/ztunnel-a", outside("ztunnel")),
        ("kube-system/istio-cni-node-x7k2p", outside("agent-pod")),
        ("mesh/new", ("no-address", "pending", "node", 1)),
        ("nowhere/web", ("namespace-unknown", "unknown", "-", 2)),
        ("mesh/webb", ("no-such-pod", "-", "-", 3)),
        ("backup/gone", ("no-such-pod-excluded", "-", "-", 3)),
        ("mesh/both", ("sidecar-rules-missing", "bypassing", "sidecar", 1)),
    ] {
        says(&fixture.container, pod, expected);
    }
    let perhaps = explain(&fixture.container, "plain/web").details;
    assert_eq!(perhaps[0], "Similar names: mesh/web, nowhere/web.", "{perhaps:?}");
    assert_eq!(list(&fixture.container, &["--bypassing"]), (1, vec!["mesh/both".to_owned()]));
    assert_eq!(list(&fixture.container, &["--bypassing", "-n", PLAIN]), (0, Vec::new()));
    let (status, text) = call(&fixture.container, &["explain", "plain"]);
    assert!(status == 0 && text.starts_with("plain/plain: outside [not-labelled]\n\n"), "{text}");
}

/// Such as a link of a kind that the kernel lacks: the rules that hold traffic exist, and nothing bypasses the mesh.
#[test]
fn a_slot_that_cannot_be_built_is_neither_active_nor_a_bypass() {
    let mut fixture = Ambient::new(&[]);
    let _web = fixture.pod(MESH, "web");
    let held = ("no-ztunnel-hold", "held", "node", 1);
    comes_to_say(&fixture.container, "mesh/web", held);
    let ztunnel = Ztunnel::start(&fixture.node, "ztunnel-a", ZtunnelOptions::default());
    // The name of one of its links is in use.
    fixture.node.netns().sh("ip link property add dev lo altname istioin0");
    fixture.announce(&ztunnel, true);
    fixture.wait_logged("reconcile failed", "");
    let answer = explain(&fixture.container, "mesh/web");
    assert_eq!(answer.capture.map(report::CaptureState::as_str), Some("held"), "{answer}");
    assert!(!answer.message.contains("No ztunnel is ready"), "{answer}");
    assert_eq!(list(&fixture.container, &["--bypassing"]), (0, Vec::new()));
    let (_, text) = call(&fixture.container, &["state", "-o", "json"]);
    let state: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (&state["node"]["activeSlot"], &state["ztunnels"][0]["active"]),
        (&Value::Null, &json!(false))
    );
}

#[test]
fn what_others_take_away_is_told_until_it_is_back() {
    let mut fixture = Ambient::new(&[]);
    let _ztunnel = fixture.ztunnel("ztunnel-a");
    let web = fixture.pod(MESH, "web");
    fixture.settle();
    let ip = web.ip(false);
    // The agent observes at intervals, too, and may repair before the check. The command fails where the damage still exists.
    let node = Arc::clone(&fixture.node);
    let damage = |line: &str| {
        let mut words = line.split(' ');
        let mut command = std::process::Command::new(words.next().unwrap());
        let _ = node.netns().output(command.args(words));
    };
    let captured = ("captured", "captured", "node", 0);
    let cases = [
        (
            "iptables-nft -t mangle -D PREROUTING -j ztunnel-PREROUTING",
            ("drifted", "bypassing", "node", 1),
            "PREROUTING",
        ),
        (
            &format!("ipset del ztunnel-pods-ips {ip}"),
            ("address-not-in-set", "bypassing", "node", 1),
            &ip.to_string(),
        ),
        (&format!("ip route del {ip} table 100 metric 1024"), ("drifted", "held", "node", 1), "table 100"),
    ];
    for (line, expected, words) in cases {
        let answer = comes_to_say_after(|| damage(line), &fixture.container, "mesh/web", expected);
        assert_words(&answer, &[words]);
        assert_eq!(answer.advice[0], super::WAIT, "{answer}");
        damage(line);
        let (status, text) = verify(&fixture.container);
        assert!(status == 0 || text.contains(words), "{text}"); // it may be restored already
        fixture.settle();
        comes_to_say(&fixture.container, "mesh/web", captured);
    }
    assert_eq!(verify(&fixture.container).0, 0);
    // An address that does not belong there.
    let plain = fixture.pod(PLAIN, "plain");
    let line = format!("ipset add ztunnel-pods-ips {}", plain.ip(false));
    let leaving = ("leaving", "leaving", "-", 1);
    let answer = comes_to_say_after(|| damage(&line), &fixture.container, "plain/plain", leaving);
    assert_words(&answer, &["its namespace is not labelled"]);
}

#[test]
fn without_a_ztunnel_it_depends_on_the_policy() {
    for (policy, expected, bypassing) in [
        ("hold", ("no-ztunnel-hold", "held", "node", 1), 0),
        ("reject", ("no-ztunnel-reject", "held", "node", 1), 0),
        ("open", ("no-ztunnel-open", "bypassing", "node", 1), 1),
    ] {
        let fixture = Ambient::new(&[("NO_ZTUNNEL_POLICY", policy)]);
        let web = fixture.pod(MESH, "web");
        fixture.wait_enrolled(&web, true);
        comes_to_say(&fixture.container, "mesh/web", expected);
        assert_eq!(list(&fixture.container, &["--bypassing"]).0, bypassing);
    }
}

#[test]
fn an_agent_that_cannot_read_pods_says_so() {
    let mut fixture = Ambient::stopped(NodeOptions::default(), &[("POD_SOURCE", "dir:/manifests/none")]);
    fixture.daemon = Some(fixture.container.start());
    fixture.eventually("it answers", |fixture| {
        UnixStream::connect(fixture.node.run_dir().join("debug.sock")).is_ok()
    });
    says(&fixture.container, "mesh/web", ("not-synced", "-", "-", 2));
    assert_eq!(list(&fixture.container, &["--bypassing"]).0, 2);
    // Until the plugin is installed, that is a difference.
    fixture.eventually("nothing is wrong but that", |fixture| {
        let output = fixture.container.exec(&["verify", "-o", "json"]);
        let found: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let expected = json!(["error: agent: pods and namespaces are not known yet"]);
        output.status.code() == Some(1) && found["differences"] == expected
    });
    drop(fixture.daemon.take());
}

#[test]
fn a_start_that_failed_is_told_with_its_error() {
    let mut fixture = Ambient::new(&[]);
    let _ztunnel = fixture.ztunnel("ztunnel-a");
    fixture.settle();
    fixture.daemon.take().unwrap().kill();
    // The pod is unknown: the agent is unavailable, and the plugin has no credential.
    let pod = Pod::new(MESH, "web");
    let _ = fixture.add(pod.clone(), &fixture.node.conflist(&[fixture.plugin()])).unwrap_err();
    let failed = ("failed", "pending", "-", 1);
    says(&fixture.container, "mesh/web", failed);
    fixture.start();
    let failed = ("failed", "pending", "node", 1);
    comes_to_say(&fixture.container, "mesh/web", failed);
    let _web = fixture.starting(pod);
    comes_to_say(&fixture.container, "mesh/web", ("captured", "captured", "node", 0));
}
