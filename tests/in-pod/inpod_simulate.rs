//! `install-cni simulate`: its prediction matches the outcome.

use std::{
    collections::BTreeMap,
    net::{SocketAddr, TcpListener},
    sync::atomic::{AtomicU16, Ordering},
    time::Duration,
};

use kit::{Echo, Live, LiveConnections, Pod, Proto, TrafficClient, WorkloadState};
use serde_json::{Value, json};

use crate::fixtures::ambient::{Ambient, MESH, PLAIN, Peer};
use crate::fixtures::inpod::InPod;

const MODE: &str = "istio.io/dataplane-mode";
const OUTSIDE: u16 = 9000;
/// An excluded external port.
const EXCEPTED: u16 = 5432;

/// Pods of the namespace by name: mode, `None` for one outside the mesh, and exceptions, refused ones after applied ones.
type Modes = BTreeMap<String, (Option<String>, [Vec<String>; 2])>;

fn mode_of(pod: &Value, key: &str) -> (String, (Option<String>, [Vec<String>; 2])) {
    let list = |key: &str| pod[key].as_array().into_iter().flatten().map(text).collect();
    let exceptions = ["exceptions", "refusedExceptions"].map(list);
    (text(&pod["name"]), (pod[key].as_str().map(str::to_owned), exceptions))
}

fn simulated(fixture: &InPod, label: &str) -> (Modes, Value) {
    let arguments = ["simulate", "label", "namespace", PLAIN, label, "-o", "json"];
    let output = fixture.container.exec(&arguments);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let pods = answer["pods"].as_array().unwrap().iter();
    (pods.map(|pod| mode_of(pod, "after")).collect(), answer.clone())
}

fn actual(fixture: &Ambient) -> Modes {
    actual_in(fixture, PLAIN)
}

fn actual_in(fixture: &Ambient, namespace: &str) -> Modes {
    let output = fixture.container.exec(&["list", "-n", namespace, "-o", "json"]);
    let pods: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    pods.iter().map(|pod| mode_of(pod, "mode")).collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

/// Pods of every kind, of which the first two would join.
fn start_pods(fixture: &mut InPod) -> Vec<kit::PodSandbox> {
    let mut start = |name: &str, change: &dyn Fn(&mut Value)| {
        let sandbox = fixture.node.pod(Pod::new(PLAIN, name), &[]);
        let _ = fixture.processes.add(&sandbox.pod.uid, &sandbox.netns);
        let mut manifest = sandbox.manifest();
        change(&mut manifest);
        fixture.manifests.put_pod(&manifest);
        sandbox
    };
    let sidecar = |pod: &mut Value| {
        pod["metadata"]["annotations"] = json!({"sidecar.istio.io/status": "{}"});
        pod["spec"]["containers"] = json!([{"name": "istio-proxy", "args": ["proxy", "sidecar"]}]);
    };
    vec![
        start("web", &|pod| {
            let exceptions =
                json!({"cni.istio.io/excludeOutboundPorts": "5432", "cni.istio.io/dnsCapture": "false"});
            pod["metadata"]["annotations"] = exceptions;
        }),
        start("resets", &|pod| {
            pod["metadata"]["annotations"] = json!({"cni.istio.io/existing-connections": "reset"});
        }),
        start("member", &|pod| pod["metadata"]["labels"] = json!({MODE: "ambient"})),
        start("refuses", &|pod| pod["metadata"]["labels"] = json!({MODE: "none"})),
        start("host", &|pod| pod["spec"]["hostNetwork"] = json!(true)),
        start("ended", &|pod| pod["status"]["phase"] = json!("Succeeded")),
        start("injected", &sidecar),
    ]
}

#[test]
fn what_is_simulated_is_what_happens() {
    let (mut fixture, ztunnel) = InPod::with_ztunnel(&[("AMBIENT_ALLOWED_EXCEPTIONS", "outbound-ports")]);
    let pods = start_pods(&mut fixture);
    let member = pods.iter().find(|sandbox| sandbox.pod.name == "member").unwrap();
    let _ = ztunnel.wait_for_workload(&member.pod.uid);
    let _outside = [OUTSIDE, EXCEPTED].map(|port| Echo::tcp(fixture.node.outside(), port));
    let live = Live { stall: Duration::from_secs(10), ..Live::default() };
    let [mut open, mut reset] = [&pods[0], &pods[1]].map(|pod| LiveConnections::start(&pod.netns, live));
    let outside = |port| SocketAddr::new(fixture.node.outside_ip(false), port);
    drop([open.open(outside(OUTSIDE), 3), open.open(outside(EXCEPTED), 1), reset.open(outside(OUTSIDE), 2)]);
    open.wait_round();
    let before = kit::until_steady(Duration::from_secs(2), "all are known", || actual(&fixture));
    assert_eq!(before["member"].0.as_deref(), Some("in-pod"));

    let (modes, answer) = simulated(&fixture, &format!("{MODE}=ambient"));
    let to_outside = format!(" to {}", outside(OUTSIDE));
    for (name, connections, resets) in [("web", 3, json!(null)), ("resets", 2, json!(true))] {
        let pod = answer["pods"].as_array().unwrap().iter().find(|pod| pod["name"] == name).unwrap();
        assert_eq!(
            ["before", "after", "connections", "resetsConnections"].map(|key| &pod[key]),
            [&json!(null), &json!("in-pod"), &json!(connections), &resets]
        );
        let listed = pod["listedConnections"].as_array().unwrap();
        assert!(listed.iter().all(|one| text(one).ends_with(&to_outside)), "{pod}");
        assert_eq!(listed.len(), connections);
    }
    assert_eq!(["synced", "ztunnelReady"].map(|fact| answer[fact].as_bool()), [Some(true); 2]);
    let sources = ["169.254.7.127", "fd16:9254:7127:1337:ffff:ffff:ffff:ffff"];
    assert_eq!(answer["probeSources"], json!(sources));
    assert_eq!(actual(&fixture), before, "nothing was changed");
    // Labels on which no decision depends change nothing.
    assert_eq!(simulated(&fixture, "app=web").0, before);

    fixture.manifests.put_namespace(PLAIN, &[(MODE, "ambient")]);
    fixture.eventually("all are as simulated", |fixture| actual(fixture) == modes);
    let _ = ztunnel.wait_for_workload(&pods[0].pod.uid);
    assert_eq!(reset.wait_broken(2).len(), 2);
    let (modes, _) = simulated(&fixture, &format!("{MODE}-"));
    assert_eq!(modes, before, "removing the label would bring back what was");
    fixture.manifests.put_namespace(PLAIN, &[]);
    fixture.eventually("all are as simulated", |fixture| actual(fixture) == modes);
    open.finish().assert_unbroken();
    assert_eq!(ztunnel.protocol_error(), None);
}

/// ztunnel cannot open a port that an application of the pod uses.
#[test]
fn a_pod_with_a_port_of_ztunnel_is_found_before_it_joins_and_explained_afterwards() {
    let (mut fixture, ztunnel) = InPod::with_ztunnel(&[]);
    let pod = fixture.running_pod(PLAIN, "web");
    let listener = pod.sandbox.netns.run(|| TcpListener::bind("[::]:15008").unwrap());
    kit::until("the port is found", || {
        let (_, answer) = simulated(&fixture, &format!("{MODE}=ambient"));
        answer["pods"][0]["takenPorts"] == json!([15008])
    });
    let arguments = ["simulate", "label", "namespace", PLAIN, &format!("{MODE}=ambient")];
    let shown = String::from_utf8(fixture.container.exec(&arguments).stdout).unwrap();
    let problem = "Pod plain/web: it has port 15008, which ztunnel would open in it: ztunnel would refuse it, and its traffic would be held.";
    assert!(kit::has_line(&shown, problem), "{shown}");
    fixture.manifests.put_namespace(PLAIN, &[(MODE, "ambient")]);
    let _ = ztunnel.wait_for_state(&pod.sandbox.pod.uid, WorkloadState::Refused);
    let advice = "Let the application listen on another port: ztunnel tries again until the port is free.";
    fixture.eventually("the pod is told what to do", |fixture| {
        let explained = fixture.container.exec(&["explain", &format!("{PLAIN}/web"), "-o", "json"]).stdout;
        serde_json::from_slice::<Value>(&explained).is_ok_and(|explained| explained["advice"][0] == advice)
    });
    drop(listener);
    fixture.wait_served(&ztunnel, &pod);
    assert_eq!(
        simulated(&fixture, &format!("{MODE}=ambient")).1["pods"][0].get("takenPorts"),
        None,
        "its own do not count"
    );
}

#[test]
fn sources_of_probes_that_the_node_has_are_told_apart() {
    let fixture = InPod::new(&[("HOST_PROBE_SNAT_IP", "169.254.9.9")]);
    let of_node = || simulated(&fixture, "a=b").1["nodeProbeSources"].clone();
    assert_eq!(of_node(), Value::Null);
    fixture.node.netns().sh("ip address add 169.254.9.9/32 dev lo");
    assert_eq!(of_node(), json!(["169.254.9.9"]));
}

#[test]
fn without_an_agent_or_a_label_nothing_is_simulated() {
    let mut fixture = InPod::new(&[]);
    let status = |fixture: &InPod, arguments: &[&str]| {
        let output = fixture.container.exec(&[&["simulate"], arguments].concat());
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for wrong in [
        &["label", "namespace", PLAIN][..],
        &["label", "namespace", PLAIN, "a b"],
        &["label", "pod", "x", "a=b"],
    ] {
        assert_eq!(status(&fixture, wrong).0, Some(2), "{wrong:?}");
    }
    for (absent, code, message) in [
        (&["label", "namespace", "nope", "a=b"][..], 2, "there is no namespace nope"),
        (&["label", "pod", "nope/web", "a=b"], 2, "there is no namespace nope"),
        (&["label", "pod", "-n", PLAIN, "nope", "a=b", "--overwrite"], 3, "the node has no pod plain/nope"),
    ] {
        assert_eq!(status(&fixture, absent), (Some(code), format!("install-cni: {message}\n")));
    }
    drop(fixture.daemon.take());
    let (code, error) = status(&fixture, &["label", "namespace", PLAIN, "a=b"]);
    let expected = "install-cni: no agent runs here: nothing serves /var/run/istio-cni/debug.sock; run this in the agent's container on the \
                    pod's node, or name its directory by --cni-agent-run-dir: Connection refused (os error 111)\n";
    assert_eq!((code, error.as_str()), (Some(2), expected));
}

/// Whether the pod's connections reach an external server with their own source ports, in both families: ztunnel's connections have
/// other ports.
fn is_direct(fixture: &Ambient, peer: &Peer) -> bool {
    /// Below the ephemeral ports.
    static PORTS: AtomicU16 = AtomicU16::new(20_000);
    [false, true].into_iter().all(|v6| {
        let source = SocketAddr::new(peer.ip(v6), PORTS.fetch_add(1, Ordering::Relaxed));
        let server = SocketAddr::new(fixture.node.outside_ip(v6), OUTSIDE);
        let client = TrafficClient::new(Proto::Tcp).from(source).within(Duration::from_secs(20));
        client.connect(&peer.sandbox.netns, server).is_ok_and(|seen| seen.peer == source)
    })
}

fn simulated_settings(fixture: &InPod, settings: &[&str]) -> (Value, Modes) {
    let output = fixture.container.exec(&[&["simulate", "settings", "-o", "json"], settings].concat());
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let pods: Vec<&Value> =
        answer["pods"].as_array().unwrap().iter().filter(|pod| pod["namespace"] == MESH).collect();
    let web = pods.iter().find(|pod| pod["name"] == "web").unwrap();
    ((*web).clone(), pods.iter().map(|pod| mode_of(pod, "after")).collect())
}

#[test]
fn settings_are_simulated_as_an_agent_with_them_decides() {
    let (mut fixture, ztunnel) = InPod::with_ztunnel(&[]);
    let _outside = Echo::tcp(fixture.node.outside(), OUTSIDE);
    let port = OUTSIDE.to_string();
    let pod = Pod::new(MESH, "web").annotation("cni.istio.io/excludeOutboundPorts", &port);
    let web = fixture.starting(pod);
    fixture.manifests.put_pod(&web.sandbox.manifest());
    fixture.processes.add(&web.sandbox.pod.uid, &web.sandbox.netns);
    fixture.wait_captured(&web);
    fixture.wait_served(&ztunnel, &web);
    assert!(!is_direct(&fixture, &web), "the exception is not allowed");

    let selector = "AMBIENT_ENABLEMENT_SELECTOR=\n- podSelector:\n    matchLabels: {mesh: \"in\"}\n";
    let captured = json!("in-pod");
    for (settings, after, changes, direct) in [
        (
            &["AMBIENT_ALLOWED_EXCEPTIONS=outbound-ports"][..],
            &captured,
            json!([format!("newly outside: outbound TCP ports {OUTSIDE}")]),
            true,
        ),
        (
            &["AMBIENT_ALLOWED_EXCEPTIONS=none", "AMBIENT_DNS_CAPTURE=true"],
            &captured,
            json!([format!("no longer outside: outbound TCP ports {OUTSIDE}"), "its DNS would be captured"]),
            false,
        ),
        (
            &["EXISTING_CONNECTIONS=reset"],
            &captured,
            json!(["connections that it has when it is captured again would be reset"]),
            false,
        ),
        (&["EXCLUDE_NAMESPACES=kube-system,mesh"], &Value::Null, Value::Null, true),
        (&["EXCLUDE_NAMESPACES="], &captured, Value::Null, false),
        (&[selector], &Value::Null, Value::Null, true),
    ] {
        let before = (actual_in(&fixture, MESH), is_direct(&fixture, &web));
        let (pod, modes) = simulated_settings(&fixture, settings);
        assert_eq!((&pod["after"], &pod["changes"]), (after, &changes), "{settings:?}: {pod}");
        assert_eq!((actual_in(&fixture, MESH), is_direct(&fixture, &web)), before, "nothing was changed");
        for setting in settings {
            let (name, value) = setting.split_once('=').unwrap();
            fixture.container.set_env(name, value);
        }
        fixture.restart();
        fixture.eventually(&format!("all are as simulated: {settings:?}"), |fixture| {
            actual_in(fixture, MESH) == modes
        });
        fixture.eventually(&format!("traffic is, too: {settings:?}"), |fixture| {
            is_direct(fixture, &web) == direct
        });
    }
    assert_eq!(ztunnel.protocol_error(), None);
}

#[test]
fn settings_that_are_wrong_or_not_simulated_are_reported() {
    let fixture = InPod::new(&[]);
    let simulate = |change: &[&str]| {
        let output = fixture.container.exec(&[&["simulate", "settings", "-o", "json"], change].concat());
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        (output.status.code(), answer)
    };
    let (status, answer) = simulate(&["AMBIENT_CAPTURE=everything"]);
    let mistake = "AMBIENT_CAPTURE (--ambient-capture): \"everything\" must be one of node, in-pod and auto";
    assert_eq!((status, &answer["mistakes"]), (Some(1), &json!([mistake])));
    let (status, answer) = simulate(&["NATIVE_NFTABLES=maybe", "AMBIENT_ENABLED=false"]);
    assert_eq!(
        (status, &answer["mode"], &answer["notSimulated"]),
        (Some(0), &Value::Null, &json!(["NATIVE_NFTABLES"]))
    );
    // As kubectl millrace passes rendered manifests.
    let complete = r#"{"variables":{"AMBIENT_ENABLED":"true","AMBIENT_CAPTURE":"node"},"complete":true}"#;
    let (status, answer) = simulate(&[complete]);
    assert_eq!((status, &answer["mode"]), (Some(0), &json!("node")));
    let names: Vec<&str> =
        answer["notSimulated"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    assert!(names.contains(&"POD_SOURCE") && names.contains(&"ZTUNNEL_UDS_ADDRESS"), "{names:?}");
    assert_eq!(simulate(&["NAME"]).0, Some(2));
}
