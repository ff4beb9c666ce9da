//! The plugin with the newer keys of its entry, while the agent is unavailable.

use std::fs;
use std::net::SocketAddr;

use kit::{Auth, FakeApi, FakeReply, FakeRequest, Node, NodeOptions, Pod};
use serde_json::{Value, json};

const OPT_OUT: (&str, &str) = ("ambient.istio.io/redirection", "disabled");

/// An API server that returns every pod as opted out, and every namespace as labelled.
fn answer(request: &FakeRequest) -> FakeReply {
    let words: Vec<&str> = request.path.split(['/', '?']).collect();
    let name = |place: usize| words.get(place).copied().unwrap_or_default();
    let labels = json!({"istio.io/dataplane-mode": "ambient"});
    let object = match name(5) {
        "pods" => json!({"metadata": {
            "namespace": name(4), "name": name(6), "uid": "u", "annotations": {OPT_OUT.0: OPT_OUT.1}}}),
        _ => json!({"metadata": {"name": name(4), "labels": labels}}),
    };
    FakeReply::Json(200, object)
}

fn entry(node: &Node, selectors: &Value) -> Value {
    json!({
        "type": "istio-cni", "plugin_log_level": "debug", "cni_agent_run_dir": node.run_dir(), "ambient_enabled": true,
        "enablement_selectors": selectors, "exclude_namespaces": ["kube-system"], "pod_namespace": "istio-system",
        "native_nftables": true, "enable_ambient_detection_retry": true,
    })
}

#[test]
fn it_decides_by_the_newer_keys_and_logs_beside_the_sockets() {
    let node = Node::new(NodeOptions::default());
    let address = SocketAddr::from((node.outside_ip(false), 6443));
    let api = FakeApi::start(node.outside(), address, answer);
    let kubeconfig = api.kubeconfig(&Auth::Token("t".to_owned()));
    fs::write(node.run_dir().join("istio-cni-kubeconfig"), kubeconfig).unwrap();
    let start = |namespace: &str, selectors: &Value| {
        let pod = Pod::new(namespace, "one").annotation(OPT_OUT.0, OPT_OUT.1);
        node.add_pod(&node.runtime(), &node.conflist(&[entry(&node, selectors)]), pod)
    };
    let labelled = json!([{"namespaceSelector": {"matchLabels": {"istio.io/dataplane-mode": "ambient"}}}]);
    let failed = start("mesh", &labelled).unwrap_err();
    let expected = format!(
        "pod mesh/one belongs to ambient mode (a selector of the agent's configuration matches it) and could not be enrolled: the \
         node agent is unavailable (nothing is listening on {}, waited 8 s), and /etc/ambient-config/config.json: No such file or \
         directory (os error 2)",
        node.run_dir().join("agent.sock").display()
    );
    assert_eq!((failed.code(), &failed.error["msg"]), (Some(11), &json!(expected)));
    let others = json!([{"podSelector": {"matchLabels": {"app": "other"}}}]);
    assert!(start("mesh", &others).is_ok() && start("mesh", &Value::Null).is_ok());
    let before = api.requests().len();
    assert!(start("kube-system", &labelled).is_ok());
    assert_eq!(api.requests().len(), before, "nobody is asked about an excluded namespace");
    let failed = start("mesh", &json!([{"podselector": {}}])).unwrap_err();
    let unknown =
        "unknown field `podselector`, expected `podSelector` or `namespaceSelector` at line 1 column 15";
    assert_eq!(
        (failed.code(), &failed.error["msg"]),
        (Some(6), &json!(format!("enablement_selectors: {unknown}")))
    );

    let log = fs::read_to_string(node.run_dir().join("istio-cni.log")).unwrap();
    let records = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let skipped = "skipped: its namespace is in kubernetes.exclude_namespaces";
    let is_skipped = |record: &Value| record["msg"] == skipped && record["command"] == "ADD";
    assert_eq!(records.filter(is_skipped).count(), 1, "{log}");
}
