//! Events about pods, for both capture modes, and about the agent's own pod.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use kit::{ApiServer, InpodOptions, InpodZtunnel, Pod};
use serde_json::json;

use super::{allowed, event, events, message, wait_seen};
use crate::install_api::fixture::ClusterFixture;
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
    let why = "it uses the node's network namespace (hostNetwork)";
    let requested = "Labels or selectors request ambient mode, but the pod is not enrolled";
    assert_eq!(message(&refused), format!("{requested}: {why}."));

    cluster.label("none");
    let released = event(&cluster.fixture, &web.pod.uid, "ReleasedFromMesh", 1);
    let why = "its namespace is not labelled istio.io/dataplane-mode=ambient";
    let left = "The pod left the mesh and keeps running outside of it";
    assert_eq!(message(&released), format!("{left}: {why}."));
    assert_eq!(released["type"], "Normal");
    // A repetition increases the count.
    cluster.label("ambient");
    let again = event(&cluster.fixture, &web.pod.uid, "JoinedMesh", 2);
    assert_eq!(again["metadata"]["name"], joined["metadata"]["name"]);
    assert_eq!(again["firstTimestamp"], joined["firstTimestamp"]);
    // A pod that starts in the mesh has no Event.
    let new = cluster.started(cluster.create("new", true, |_| {}));
    cluster.tell("new", &new.manifest());
    kit::until("it runs, as far as the agent knows", || cluster.mark_of("new") == json!("enabled"));
    cluster.label("none");
    let _ = event(&cluster.fixture, &new.pod.uid, "ReleasedFromMesh", 1);
    assert_eq!(events(&cluster.fixture, &new.pod.uid, "JoinedMesh").len(), 0);
    assert_published(&cluster.fixture, &daemon.log());
}

/// A process of the pod has entered another pod's namespace, which has the pod's address.
#[test]
fn a_pod_whose_namespace_cannot_be_determined_has_an_event() {
    let Some(cluster) = inpod_api::Cluster::allowed("events-ambiguous", &allowed(IN_POD, false)) else {
        return;
    };
    let mut daemon = cluster.fixture.daemon();
    daemon.wait_until_ready();
    let other = cluster.fixture.node.pod(Pod::new("elsewhere", "other"), &[]);
    let web = cluster.fixture.node.pod(cluster.create("web"), &[]);
    for ip in web.ips() {
        let rest = if ip.is_ipv6() { "/128 dev lo nodad" } else { "/32 dev lo" };
        let _ = other.netns.sh(&format!("ip address add {ip}{rest}"));
    }
    cluster.runs_in(&web, &other.netns, 11);
    cluster.label("ambient");
    let ambiguous = event(&cluster.fixture, &web.pod.uid, "AmbiguousNetns", 1);
    assert_eq!(ambiguous["type"], "Warning");
    assert_eq!(ambiguous["involvedObject"]["name"], "web");
    assert_eq!(
        message(&ambiguous),
        "The network namespace of the pod could not be determined, so a pod that is not captured yet stays so: its processes are in \
         a network namespace that has its address, but the node's routes lead to another one. Run `install-cni explain \
         events-ambiguous/web` on the node for details."
    );
    assert_ne!(cluster.mark_of("web"), json!("enabled"));
    assert_published(&cluster.fixture, &daemon.log());
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
    // A pod outside the mesh starts a pass.
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
    // The installer's Events are about the node, and about our pod as well.
    cluster.fixture.configure("{");
    let of_node = cluster.fixture.event("CNIConfigRefused");
    let of_pod = event(&cluster.fixture, &agent.uid, "CNIConfigRefused", 1);
    assert_eq!(of_node["message"], of_pod["message"]);
    assert_published(&cluster.fixture, &daemon.log());
}

#[test]
fn a_running_pod_that_is_not_captured_has_an_event_that_says_why() {
    let Some(cluster) = inpod_api::Cluster::allowed("events-missing", &allowed(IN_POD, false)) else {
        return;
    };
    let daemon = cluster.fixture.daemon();
    let web = cluster.fixture.node.pod(cluster.create("web"), &[]);
    cluster.runs(&web, 11);
    // This pod has no known process.
    let lost = cluster.fixture.node.pod(cluster.create("lost"), &[]);
    cluster.fixture.api.admin().patch_status(&cluster.path("lost"), &lost.manifest()["status"]);
    cluster.label("ambient");
    let failed = event(&cluster.fixture, &web.pod.uid, "CaptureFailed", 1);
    assert_eq!(failed["type"], "Warning");
    let why = "no ztunnel is connected to the agent on this node";
    let run = |pod: &str| format!("Run `install-cni explain events-missing/{pod}` on the node for details.");
    let not_served = "Its traffic is redirected to ztunnel, but ztunnel does not serve the pod";
    assert_eq!(message(&failed), format!("{not_served}: {why}. {}", run("web")));
    let bypassing = event(&cluster.fixture, &lost.pod.uid, "BypassesMesh", 1);
    let why = "its traffic may bypass the mesh: its rules are not in place yet";
    let expected = format!("The pod should be captured and is not: {why}. {}", run("lost"));
    assert_eq!(message(&bypassing), expected);
    let socket = cluster.sockets.path().join("ztunnel.sock");
    let _ztunnel = InpodZtunnel::start(&cluster.fixture.node, "ztunnel-a", &socket, InpodOptions::default());
    let _ = event(&cluster.fixture, &web.pod.uid, "JoinedMesh", 1);
    assert_eq!(events(&cluster.fixture, &lost.pod.uid, "JoinedMesh").len(), 0);
    assert_published(&cluster.fixture, &daemon.log());
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
    assert_eq!(
        message(&can),
        "One of its containers has NET_ADMIN, so the pod can make its traffic bypass the mesh. Rules that do so are reported."
    );
    let does = event(&cluster.fixture, &vpn.pod.uid, "CaptureOverruled", 1);
    assert_eq!(
        message(&does),
        "Rules of another component in its network namespace precede those of the mesh, so all or some of its traffic bypasses the \
         mesh: nf_tables inet vpn out (hook output, priority -400) sets the mark 0x539, which is ztunnel's. Run `install-cni explain \
         events-bypass/vpn` on the node for details."
    );
    let _ = event(&cluster.fixture, &web.pod.uid, "JoinedMesh", 1);
    for reason in ["CanBypassMesh", "CaptureOverruled"] {
        assert_eq!(events(&cluster.fixture, &web.pod.uid, reason).len(), 0, "{reason}");
    }
    assert_published(&cluster.fixture, &daemon.log());
}

/// Asserts that the API server refused nothing, and no Event was lost.
fn assert_published(fixture: &ClusterFixture, log: &str) {
    assert_eq!(fixture.refused(), Vec::<String>::new(), "{log}");
    assert!(!kit::has_logged(log, "cannot publish Events", &[]), "{log}");
}

/// Time within which all pods are observed; one whose rules were removed is observed again soon after.
const NOTICED: Duration = Duration::from_secs(60);
/// Time after the last removal for a repair, and two observations that find the rules in place.
const SETTLED: Duration = Duration::from_secs(60);
/// One a second at first: a burst of 60 is repaired immediately, then one in five seconds.
const REPAIRS: f64 = 70.0;

fn within(limit: Duration, what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    kit::until_within(limit, what, holds);
    println!("{what}: after {:?}", began.elapsed());
}

#[test]
fn a_pod_whose_rules_are_removed_repeatedly_is_pending_and_has_an_event_until_they_stay() {
    let Some(cluster) = inpod_api::Cluster::allowed("events-unstable", &allowed(IN_POD, false)) else {
        return;
    };
    let daemon = cluster.fixture.daemon();
    let socket = cluster.sockets.path().join("ztunnel.sock");
    let _ztunnel = InpodZtunnel::start(&cluster.fixture.node, "ztunnel-a", &socket, InpodOptions::default());
    let [hostile, honest] = ["hostile", "honest"].map(|name| {
        let pod = cluster.fixture.node.pod(cluster.create(name), &[]);
        cluster.runs(&pod, if name == "honest" { 11 } else { 12 });
        pod
    });
    cluster.label("ambient");
    for name in ["hostile", "honest"] {
        kit::until("it is captured", || cluster.mark_of(name) == json!("enabled"));
    }
    // A process in the pod that may change its network, and does so once a second.
    let ends = Arc::new(AtomicBool::new(false));
    let attacker = {
        let (ends, netns) = (Arc::clone(&ends), hostile.netns.second_handle());
        thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                netns.sh("nft flush ruleset");
                thread::sleep(Duration::from_secs(1)); // the attack itself
            }
        })
    };
    let mark = || cluster.mark_of("hostile");
    within(NOTICED, "it is pending", || mark() == json!("pending"));
    let told = event(&cluster.fixture, &hostile.pod.uid, "CaptureUnstable", 1);
    assert_eq!(told["type"], "Warning");
    assert!(message(&told).contains("restored 2 times") && message(&told).contains("ISTIO"), "{told}");
    let log = std::fmt::from_fn(|f| write!(f, "it is pending\n{}", daemon.log()));
    kit::holds_for(Duration::from_secs(45), log, || mark() == json!("pending"));
    let repairs = daemon.metric("istio_cni_ambient_repairs_total{place=\"pod\"}").unwrap();
    assert!((3.0..=REPAIRS).contains(&repairs), "{repairs}");
    assert_eq!(daemon.metric("istio_cni_mesh_pods{redirection=\"ambient\",state=\"pending\"}"), Some(1.0));
    let lines = || {
        let mut lines = kit::log_lines(&daemon.log());
        lines.retain(|line| {
            line.field("pod") == Some("hostile") && line.message.starts_with("rules of the pod ")
        });
        lines.into_iter().map(|line| line.message).collect::<Vec<_>>()
    };
    let goes_on = "rules of the pod are removed repeatedly; the pod is pending until they stay in place";
    let first = "rules of the pod restored";
    assert_eq!(lines(), [first, goes_on], "{}", daemon.log());
    ends.store(true, Ordering::Relaxed);
    attacker.join().unwrap();
    within(SETTLED, "it is captured again", || mark() == json!("enabled"));
    assert_eq!(lines(), [first, goes_on, "rules of the pod stay in place again"], "{}", daemon.log());
    for (pod, reason, expected) in
        [(&hostile, "CaptureUnstable", 1), (&hostile, "BypassesMesh", 0), (&honest, "CaptureUnstable", 0)]
    {
        assert_eq!(events(&cluster.fixture, &pod.pod.uid, reason).len(), expected, "{reason}");
    }
}
