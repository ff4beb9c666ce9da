//! A node that has booted: the run directory is empty, and the agent's pod, which has its own network, is one of those to be
//! started.

use std::time::Duration;

use serde_json::{Value, json};

use crate::fixtures::plugin::{Call, PluginFixture, V4, bare_pod};
use crate::plugin_agent::with_least_wait;

/// The entry as the agent writes it under Istio's chart of 1.29, which excludes only `kube-system`.
fn call<'s>(fixture: &'s PluginFixture, command: &str, ambient: bool) -> Call<'s> {
    let labelled = json!([{"namespaceSelector": {"matchLabels": {"istio.io/dataplane-mode": "ambient"}}}]);
    Call::new(&fixture.node, command)
        .with("cniVersion", json!("1.1.0"))
        .with("kubernetes", Value::Null)
        .with("cni_agent_run_dir", json!(fixture.node.run_dir()))
        .with("ambient_enabled", json!(ambient))
        .with("enablement_selectors", if ambient { labelled } else { Value::Null })
        .with("exclude_namespaces", json!(["kube-system"]))
        .with("pod_namespace", json!("istio-system"))
}

#[test]
fn the_agents_own_pod_starts_on_a_node_without_agent_and_credential() {
    let fixture = PluginFixture::new();
    for ambient in [false, true] {
        let status = call(&fixture, "STATUS", ambient).with("prevResult", Value::Null);
        let status = status.env("CNI_CONTAINERID", "").env("CNI_IFNAME", "").env("CNI_ARGS", "");
        assert_eq!(status.run().ok(), "", "else the kubelet starts no pod at all");

        let pod = bare_pod(V4);
        let add = |namespace: &str, name: &str| {
            let call = call(&fixture, "ADD", ambient).netns(&pod.path()).pod(namespace, name);
            let outcome = call.with("kubernetes", json!({"api_timeout_seconds": 1})).run();
            assert!(outcome.wall() < Duration::from_secs(6), "{:?}", outcome.wall());
            outcome
        };
        add("istio-system", "istio-cni-node-x7k2p").ok();
        add("kube-system", "coredns-x7k2p").ok();
        for (namespace, name) in [("istio-system", "ztunnel-x7k2p"), ("shop", "istio-cni-node-x7k2p")] {
            let error = add(namespace, name).refused();
            let directory = fixture.node.run_dir();
            let expected = format!(
                "cannot determine whether pod {namespace}/{name} belongs to the mesh: the node agent is unavailable (nothing is \
                 listening on {0}/agent.sock, waited 1 s), and cannot GET pods {namespace}/{name}: the kubeconfig cannot be used: \
                 cannot use the file {0}/istio-cni-kubeconfig: No such file or directory (os error 2)",
                directory.display()
            );
            assert_eq!((error.code, with_least_wait(&error.cause(), 1)), (11, expected));
        }
    }
    assert_eq!(fixture.api.requests(), [], "there is no credential to ask with");
}
