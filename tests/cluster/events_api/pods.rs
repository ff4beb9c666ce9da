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
    kit::until("it runs, as far as the agent knows", || cluster.mark_of("new") == json!("enabled"));
    cluster.label("none");
    let _ = event(&cluster.fixture, &new.pod.uid, "ReleasedFromMesh", 1);
    assert_eq!(events(&cluster.fixture, &new.pod.uid, "JoinedMesh").len(), 0);
    assert_published(&daemon.log());
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
    assert!(message(&ambiguous).contains("the node's routes lead to another one"), "{ambiguous}");
    assert_ne!(cluster.mark_of("web"), json!("enabled"));
    assert_published(&daemon.log());
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
    assert_published(&daemon.log());
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
    assert_published(&daemon.log());
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
    assert_published(&daemon.log());
}

/// The API server has refused nothing, and no Event was lost.
fn assert_published(log: &str) {
    assert!(!log.contains("(403)") && !log.contains("cannot publish"), "{log}");
}

/// All pods are observed within this time, and one whose rules were removed is observed once more soon after.
const NOTICED: Duration = Duration::from_secs(60);
/// From the last removal: a repair, and two observations that find the rules in place.
const SETTLED: Duration = Duration::from_secs(60);
/// One each second at first: a burst of 60 is repaired at once, then one in five seconds.
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
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(45) {
        assert_eq!(mark(), json!("pending"), "{}", daemon.log());
        thread::sleep(Duration::from_millis(500)); // the measurement itself
    }
    let repairs = daemon.metric("istio_cni_ambient_repairs_total{place=\"pod\"}").unwrap();
    assert!((3.0..=REPAIRS).contains(&repairs), "{repairs}");
    assert_eq!(daemon.metric("istio_cni_ambient_pods{state=\"pending\"}"), Some(1.0));
    let lines = || {
        let log = daemon.log();
        log.lines().filter(|line| line.contains("pod=hostile") && line.contains("rules of the pod")).count()
    };
    assert_eq!(lines(), 2, "the first repair, and that it goes on: {}", daemon.log());
    ends.store(true, Ordering::Relaxed);
    attacker.join().unwrap();
    within(SETTLED, "it is captured again", || mark() == json!("enabled"));
    assert_eq!(lines(), 3, "{}", daemon.log());
    for (pod, reason, expected) in
        [(&hostile, "CaptureUnstable", 1), (&hostile, "BypassesMesh", 0), (&honest, "CaptureUnstable", 0)]
    {
        assert_eq!(events(&cluster.fixture, &pod.pod.uid, reason).len(), expected, "{reason}");
    }
}
