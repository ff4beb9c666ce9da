//! A pod author who causes many Events: those about other pods, and about pods that bypass the mesh, are published nevertheless.

use kit::{ApiServer, InpodOptions, InpodZtunnel, Pod};
use serde_json::{Value, json};

use super::{allowed, event};
use crate::inpod_api::Cluster;
use crate::install_manifests::documents::IN_POD;

const OTHER: &str = "events-flood-other";

fn create(cluster: &Cluster, namespace: &str, name: &str, change: impl FnOnce(&mut Value)) -> Pod {
    let mut pod = ApiServer::pod(namespace, name);
    pod["spec"]["nodeName"] = json!(cluster.fixture.name);
    change(&mut pod);
    Pod::from_object(&cluster.fixture.api.create_pod(&pod))
}

/// Number of the author's pods about which the API server has Events.
fn refused(cluster: &Cluster) -> usize {
    let path = format!("{}?fieldSelector=reason=RefusedByMesh", cluster.fixture.path("v1", "events", ""));
    cluster.fixture.api.admin().get(&path)["items"].as_array().unwrap().len()
}

#[test]
fn a_pod_author_who_makes_many_events_silences_nobody_else() {
    let Some(cluster) = Cluster::allowed("events-flood", &allowed(IN_POD, false)) else { return };
    let admin = cluster.fixture.api.admin();
    cluster.fixture.api.create_namespace(OTHER);
    let labels = json!({"metadata": {"labels": {"istio.io/dataplane-mode": "ambient"}}});
    admin.patch(&format!("/api/v1/namespaces/{OTHER}"), &labels);
    // They claim a sidecar that they do not have.
    for number in 0..40 {
        create(&cluster, "events-flood", &format!("evil-{number}"), |pod| {
            pod["metadata"]["annotations"] = json!({"sidecar.istio.io/status": "{}"});
        });
    }
    let _daemon = cluster.fixture.daemon();
    let socket = cluster.sockets.path().join("ztunnel.sock");
    let _ztunnel = InpodZtunnel::start(&cluster.fixture.node, "ztunnel-a", &socket, InpodOptions::default());
    cluster.label("ambient");
    kit::until("the flood has begun", || refused(&cluster) >= 10);

    let host = create(&cluster, OTHER, "host", |pod| pod["spec"]["hostNetwork"] = json!(true));
    let can = create(&cluster, "events-flood", "vpn", |pod| {
        let add = json!({"capabilities": {"add": ["NET_ADMIN"]}});
        pod["spec"]["containers"][0]["securityContext"] = add;
    });
    let vpn = cluster.fixture.node.pod(can, &[]);
    cluster.runs(&vpn, 11);
    let path = format!("/api/v1/namespaces/{OTHER}/events?fieldSelector=involvedObject.uid={}", host.uid);
    kit::until("an Event about another namespace", || {
        !admin.get(&path)["items"].as_array().unwrap().is_empty()
    });
    let _ = event(&cluster.fixture, &vpn.pod.uid, "CanBypassMesh", 1);
    let before = refused(&cluster);
    assert!(before < 20, "{before}: the author has used up more than a half");
    // Events beyond the limit are published later.
    kit::until("the next one of the author", || refused(&cluster) > before);
}
