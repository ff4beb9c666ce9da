//! Events about pods, for both capture modes, and about the agent's own pod.

use kit::{ApiServer, InpodOptions, InpodZtunnel, Pod};
use serde_json::json;

use super::{allowed, event, events, message, wait_seen};
use crate::install_api::fixture::eventually;
use crate::install_manifests::documents::{AMBIENT, IN_POD};
use crate::{ambient_api, inpod_api};

/// The agent's pod, as an object.
fn agent(cluster: &ambient_api::Cluster) -> Pod {
    cluster.create("agent-x7k2p", true, |pod| {
        pod["metadata"]["labels"]["istio.io/dataplane-mode"] = json!("none");
    })
}

#[test]
fn pods_that_join_leave_or_are_refused_while_they_run_have_events() {
    let Some(cluster) = ambient_api::Cluster::allowed("events-pods", &allowed(AMBIENT, false)) else {
        return;
    };
    let mut daemon = cluster.fixture.daemon();
    let _ztunnel = cluster.ztunnel(&mut daemon);
    let web = cluster.started(cluster.create("web", true, |_| {}));
    cluster.tell("web", &web.manifest());
    let host = cluster.create("host", true, |pod| pod["spec"]["hostNetwork"] = json!(true));
    cluster.tell("host", &host.manifest(&[cluster.fixture.node.ip(false)]));
    wait_seen(&cluster.fixture, "web");

    cluster.label("ambient");
    let joined = event(&cluster.fixture, &web.pod.uid, "JoinedMesh", 1);
    assert_eq!((&joined["type"], &joined["involvedObject"]["name"]), (&json!("Normal"), &json!("web")));
    assert_eq!(joined["involvedObject"]["namespace"], "events-pods");
    assert_eq!(joined["source"], json!({"component": "istio-cni", "host": "events-pods"}));
    let refused = event(&cluster.fixture, &host.uid, "RefusedByMesh", 1);
    assert_eq!(refused["type"], "Warning");
    assert!(message(&refused).contains("hostNetwork"), "{refused}");

    cluster.label("none");
    let released = event(&cluster.fixture, &web.pod.uid, "ReleasedFromMesh", 1);
    assert!(message(&released).contains("its namespace is not labelled"), "{released}");
    assert_eq!(released["type"], "Normal");
    // The same again is counted, not told anew.
    cluster.label("ambient");
    let again = event(&cluster.fixture, &web.pod.uid, "JoinedMesh", 2);
    assert_eq!(again["metadata"]["name"], joined["metadata"]["name"]);
    assert_eq!(again["firstTimestamp"], joined["firstTimestamp"]);
    // One that starts in the mesh is nobody's news.
    let new = cluster.started(cluster.create("new", true, |_| {}));
    cluster.tell("new", &new.manifest());
    eventually("it runs, as far as the agent knows", || cluster.mark_of("new") == json!("enabled"));
    cluster.label("none");
    let _ = event(&cluster.fixture, &new.pod.uid, "ReleasedFromMesh", 1);
    assert_eq!(events(&cluster.fixture, &new.pod.uid, "JoinedMesh").len(), 0);
    let log = daemon.log();
    assert!(!log.contains("(403)") && !log.contains("cannot publish"), "{log}");
}

#[test]
fn the_agents_own_pod_has_events_of_the_node() {
    let Some(cluster) = ambient_api::Cluster::allowed("events-agent", &allowed(AMBIENT, false)) else {
        return;
    };
    let agent = agent(&cluster);
    let mut daemon = cluster.fixture.daemon();
    let _ztunnel = cluster.ztunnel(&mut daemon);
    cluster.label("ambient");
    let web = cluster.started(cluster.create("web", true, |_| {}));
    cluster.tell("web", &web.manifest());
    daemon.wait_for("it is captured", |_| cluster.is_enrolled(&web));
    cluster.fixture.node.netns().sh("ip -4 rule del priority 101");
    // A pod of which nothing is wanted yet is a reason to look.
    let _ = cluster.create("other", true, |_| {});
    let drift = event(&cluster.fixture, &agent.uid, "DriftRepaired", 1);
    assert_eq!(
        (&drift["type"], &drift["involvedObject"]["name"]),
        (&json!("Warning"), &json!("agent-x7k2p"))
    );
    assert!(message(&drift).contains("101"), "{drift}");
    cluster.fixture.api.admin().delete(&cluster.path("ztunnel-a"));
    let gone = event(&cluster.fixture, &agent.uid, "NoZtunnel", 1);
    assert!(message(&gone).contains("TCP of enrolled pods is held until one is"), "{gone}");
    // The installer's are about the node, and about our pod as well.
    cluster.fixture.configure("{");
    let of_node = cluster.fixture.event("CNIConfigRefused");
    let of_pod = event(&cluster.fixture, &agent.uid, "CNIConfigRefused", 1);
    assert_eq!(of_node["message"], of_pod["message"]);
    let log = daemon.log();
    assert!(!log.contains("(403)") && !log.contains("cannot publish"), "{log}");
}

#[test]
fn a_running_pod_that_is_not_captured_has_an_event_that_says_why() {
    let Some(cluster) = inpod_api::Cluster::allowed("events-missing", &allowed(IN_POD, false)) else {
        return;
    };
    let daemon = cluster.fixture.daemon();
    let web = cluster.fixture.node.pod(cluster.create("web"), &[]);
    cluster.runs(&web, 11);
    // No process of this one is found.
    let lost = cluster.fixture.node.pod(cluster.create("lost"), &[]);
    cluster.fixture.api.admin().patch_status(&cluster.path("lost"), &lost.manifest()["status"]);
    cluster.label("ambient");
    let failed = event(&cluster.fixture, &web.pod.uid, "CaptureFailed", 1);
    assert_eq!(failed["type"], "Warning");
    let words = ["no ztunnel is connected", "install-cni explain events-missing/web"];
    assert!(words.iter().all(|words| message(&failed).contains(words)), "{failed}");
    let bypassing = event(&cluster.fixture, &lost.pod.uid, "BypassesMesh", 1);
    assert!(message(&bypassing).contains("its traffic may bypass the mesh"), "{bypassing}");
    let socket = cluster.sockets.path().join("ztunnel.sock");
    let _ztunnel = InpodZtunnel::start(&cluster.fixture.node, "ztunnel-a", &socket, InpodOptions::default());
    let _ = event(&cluster.fixture, &web.pod.uid, "JoinedMesh", 1);
    assert_eq!(events(&cluster.fixture, &lost.pod.uid, "JoinedMesh").len(), 0);
    let log = daemon.log();
    assert!(!log.contains("(403)") && !log.contains("cannot publish"), "{log}");
}

#[test]
fn a_pod_that_can_bypass_the_mesh_and_one_that_does_have_events() {
    let Some(cluster) = inpod_api::Cluster::allowed("events-bypass", &allowed(IN_POD, false)) else {
        return;
    };
    let daemon = cluster.fixture.daemon();
    let socket = cluster.sockets.path().join("ztunnel.sock");
    let _ztunnel = InpodZtunnel::start(&cluster.fixture.node, "ztunnel-a", &socket, InpodOptions::default());
    let mut spec = ApiServer::pod(cluster.fixture.name, "vpn");
    spec["spec"]["nodeName"] = json!(cluster.fixture.name);
    spec["spec"]["containers"][0]["securityContext"] = json!({"capabilities": {"add": ["NET_ADMIN"]}});
    let vpn = cluster.fixture.node.pod(Pod::from_object(&cluster.fixture.api.create_pod(&spec)), &[]);
    let web = cluster.fixture.node.pod(cluster.create("web"), &[]);
    vpn.netns.pipe(
        "nft -f -",
        "table inet vpn { chain out { type route hook output priority -400; meta mark set 0x539; }; }",
    );
    cluster.runs(&vpn, 11);
    cluster.runs(&web, 12);
    wait_seen(&cluster.fixture, "web");
    cluster.label("ambient");
    let can = event(&cluster.fixture, &vpn.pod.uid, "CanBypassMesh", 1);
    assert!(message(&can).contains("NET_ADMIN"), "{can}");
    let does = event(&cluster.fixture, &vpn.pod.uid, "CaptureOverruled", 1);
    let words = ["inet vpn out", "sets the mark 0x539", "install-cni explain events-bypass/vpn"];
    assert!(words.iter().all(|words| message(&does).contains(words)), "{does}");
    let _ = event(&cluster.fixture, &web.pod.uid, "JoinedMesh", 1);
    for reason in ["CanBypassMesh", "CaptureOverruled"] {
        assert_eq!(events(&cluster.fixture, &web.pod.uid, reason).len(), 0, "{reason}");
    }
    let log = daemon.log();
    assert!(!log.contains("(403)") && !log.contains("cannot publish"), "{log}");
}
