//! With ambient mode: sidecar pods are unaffected; pods of an ambient namespace do not start outside the mesh.

use std::time::Duration;

use kit::{ApiServer, FakeReply, NodeOptions, istio};
use serde_json::json;

use super::Cluster;
use crate::fixtures::plugin::{PluginFixture, V4, bare_pod, expected, injected, rules, tables};
use crate::plugin_agent::with_least_wait;

#[test]
fn a_pod_of_an_ambient_namespace_waits_for_the_agent_and_others_do_not() {
    let Some(cluster) = Cluster::start("ambient-on", NodeOptions::default()) else { return };
    let label = json!({"metadata": {"labels": {"istio.io/dataplane-mode": "ambient"}}});
    let plain = |name: &str| ApiServer::pod(cluster.namespace, name);
    cluster.api.create_pod(&plain("plain"));
    cluster.api.create_pod(&istio::annotated(plain("opted-out"), "ambient.istio.io/redirection", "disabled"));
    cluster.create("sidecar", |pod| pod);
    let pod = bare_pod(V4);
    let add = |name: &str| cluster.add(&pod, name).with("ambient_enabled", json!(true));
    add("plain").run().ok();
    cluster.api.admin().patch("/api/v1/namespaces/ambient-on", &label);

    let error = add("plain").run().refused();
    assert_eq!(error.code, 11);
    let refusal = "pod ambient-on/plain belongs to ambient mode (its namespace is labelled istio.io/dataplane-mode=ambient) and \
                    could not be enrolled: the node agent is unavailable (nothing is listening on /var/run/istio-cni/agent.sock, \
                    waited 8 s), and the plugins before this one gave the pod no address";
    assert_eq!(with_least_wait(&error.msg, 8), refusal);
    let told = add("plain").annotations(&json!({"note": "plain"}));
    assert_eq!(told.run().refused().code, 11, "annotations alone do not decide");
    add("opted-out").run().ok();
    assert_eq!(tables(&pod), "");
    cluster.add(&pod, "plain").run().ok(); // ambient off
    assert_eq!(tables(&pod), "");

    let before = cluster.asked().len();
    add("sidecar").run().ok();
    assert_eq!(rules(&pod.sh("iptables-save")), expected(false));
    assert_eq!(cluster.asked().len() - before, 1, "its namespace does not matter");
}

#[test]
fn both_requests_share_the_time() {
    let fixture = PluginFixture::answering(|request| match kit::has_segment(&request.path, "pods") {
        true => {
            let mut plain = injected(request);
            plain["metadata"]["annotations"] = json!({});
            FakeReply::Late(Duration::from_secs(2), Box::new(FakeReply::Json(200, plain)))
        }
        false => FakeReply::Hang,
    });
    let pod = bare_pod(V4);
    let call = fixture.call("ADD", &pod).with("ambient_enabled", json!(true));
    let outcome = call.kubernetes("api_timeout_seconds", json!(4)).run();
    let error = outcome.refused();
    let expected = format!(
        "cannot determine whether pod shop/web belongs to the mesh: the node agent is unavailable (nothing is listening on \
         /var/run/istio-cni/agent.sock, waited 4 s), and cannot GET namespaces shop at the API server https://{}:6443: no answer \
         in time, waiting for the exchange",
        fixture.node.outside_ip(false)
    );
    assert_eq!((error.code, with_least_wait(&error.cause(), 4)), (11, expected));
    assert!(outcome.wall() < Duration::from_secs(6), "{:?}", outcome.wall());
}
