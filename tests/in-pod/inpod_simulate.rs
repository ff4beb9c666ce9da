//! `install-cni simulate`: what it says is what happens.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use kit::{Echo, InpodOptions, Live, LiveConnections, Pod};
use serde_json::{Value, json};

use crate::fixtures::ambient::{Ambient, PLAIN};
use crate::fixtures::inpod::InPod;

const MODE: &str = "istio.io/dataplane-mode";
const OUTSIDE: u16 = 9000;

/// Of each pod of the namespace, by name: its mode, `None` for one that does not belong to the mesh, and its exceptions, those that are
/// refused after those that are applied.
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
    let output = fixture.container.exec(&["list", "-n", PLAIN, "-o", "json"]);
    let pods: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    pods.iter().map(|pod| mode_of(pod, "mode")).collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

/// Pods of every kind, of which only one would join.
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
        start("member", &|pod| pod["metadata"]["labels"] = json!({MODE: "ambient"})),
        start("refuses", &|pod| pod["metadata"]["labels"] = json!({MODE: "none"})),
        start("host", &|pod| pod["spec"]["hostNetwork"] = json!(true)),
        start("ended", &|pod| pod["status"]["phase"] = json!("Succeeded")),
        start("injected", &sidecar),
    ]
}

#[test]
fn what_is_simulated_is_what_happens() {
    let mut fixture = InPod::new(&[("AMBIENT_ALLOWED_EXCEPTIONS", "outbound-ports")]);
    let ztunnel = fixture.ztunnel("ztunnel-a", InpodOptions::default());
    let pods = start_pods(&mut fixture);
    let member = pods.iter().find(|sandbox| sandbox.pod.name == "member").unwrap();
    let _ = ztunnel.wait_for_workload(&member.pod.uid);
    let _outside = Echo::tcp(fixture.node.outside(), OUTSIDE);
    let live = Live { every: Duration::from_millis(20), stall: Duration::from_secs(5) };
    let mut open = LiveConnections::start(&pods[0].netns, live);
    let _ = open.open(SocketAddr::new(fixture.node.outside_ip(false), OUTSIDE), 3);
    open.wait_round();
    let before = actual(&fixture);
    assert_eq!(before["member"].0.as_deref(), Some("in-pod"));

    let (modes, answer) = simulated(&fixture, &format!("{MODE}=ambient"));
    let web = answer["pods"].as_array().unwrap().iter().find(|pod| pod["name"] == "web").unwrap();
    assert_eq!(
        (&web["before"], &web["after"], &web["connections"]),
        (&json!(null), &json!("in-pod"), &json!(3))
    );
    let facts = ["synced", "ztunnelReady", "resetsConnections"].map(|fact| answer[fact].as_bool());
    assert_eq!(facts, [Some(true), Some(true), Some(false)]);
    assert_eq!(actual(&fixture), before, "nothing was changed");
    // Labels that nobody decides on change nothing.
    assert_eq!(simulated(&fixture, "app=web").0, before);

    fixture.manifests.put_namespace(PLAIN, &[(MODE, "ambient")]);
    fixture.eventually("all are as simulated", |fixture| actual(fixture) == modes);
    let _ = ztunnel.wait_for_workload(&pods[0].pod.uid);
    let (modes, _) = simulated(&fixture, &format!("{MODE}-"));
    assert_eq!(modes, before, "removing the label would bring back what was");
    fixture.manifests.put_namespace(PLAIN, &[]);
    fixture.eventually("all are as simulated", |fixture| actual(fixture) == modes);
    open.finish().assert_unbroken();
    assert_eq!(ztunnel.protocol_error(), None);
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
    drop(fixture.daemon.take());
    let (code, error) = status(&fixture, &["label", "namespace", PLAIN, "a=b"]);
    let expected = "install-cni: no agent runs here: nothing serves /var/run/istio-cni/debug.sock; run this in the agent's container on the \
                    pod's node, or name its directory by --cni-agent-run-dir: Connection refused (os error 111)\n";
    assert_eq!((code, error.as_str()), (Some(2), expected));
}
