//! Which pod is the node's ztunnel.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test: a panic is its failure")]

use enrolment::{
    Fact, FactIndex, ZtunnelCandidate, ZtunnelSelector,
    ztunnel::{active_candidate, list_candidates, newest_supports_in_pod, next_candidate},
};
use model::Pod;
use proptest::prelude::*;
use serde_json::{Value, json};

/// A ready ztunnel.
fn ztunnel(name: &str, created: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "istio-system", "uid": format!("uid-{name}"),
            "creationTimestamp": created, "labels": {"app": "ztunnel"}},
        "spec": {"serviceAccountName": "ztunnel", "containers": [{"name": "istio-proxy"}]},
        "status": {"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}],
            "conditions": [{"type": "Initialized", "status": "False"}, {"type": "Ready", "status": "True"}],
            "containerStatuses": [{"ready": true}], "initContainerStatuses": [{"ready": true}]},
    })
}

/// A ready ztunnel with another value at a JSON pointer.
fn but(place: &str, value: Value) -> Value {
    let mut pod = ztunnel("z", "2026-01-01T00:00:00Z");
    *pod.pointer_mut(place).unwrap_or_else(|| panic!("{place}")) = value;
    pod
}

fn index(pods: &[Value]) -> FactIndex {
    let pods: Vec<Pod> = pods.iter().map(|pod| serde_json::from_value(pod.clone()).unwrap()).collect();
    let mut index = FactIndex::default();
    index.apply(Fact::Pods(pods));
    index
}

fn found(pods: &[Value]) -> Vec<ZtunnelCandidate> {
    list_candidates(&index(pods), &ZtunnelSelector::default())
}

#[test]
fn the_newest_ztunnel_says_how_pods_are_captured() {
    let speaking = |mut pod: Value, value: &str| {
        pod["spec"]["containers"][0]["env"] = json!([{"name": "INPOD_ENABLED", "value": value}]);
        pod
    };
    let leaving = |mut pod: Value| {
        pod["metadata"]["deletionTimestamp"] = json!("2026-02-01T00:00:00Z");
        pod
    };
    let starting = |mut pod: Value| {
        pod["status"]["phase"] = json!("Pending");
        pod
    };
    let old = || ztunnel("old", "2026-01-01T00:00:00Z");
    let new = || ztunnel("new", "2026-01-02T00:00:00Z");
    let mut lookalike = speaking(ztunnel("x", "2026-01-03T00:00:00Z"), "true");
    lookalike["metadata"]["namespace"] = json!("shop");
    for (pods, expected) in [
        (vec![], None),
        (vec![lookalike], None),
        (vec![old()], Some(false)),
        (vec![speaking(old(), "true")], Some(true)),
        (vec![speaking(old(), "T")], Some(true)),
        (vec![speaking(old(), "false")], Some(false)),
        (vec![speaking(old(), "yes")], Some(false)),
        (vec![speaking(new(), "true"), old()], Some(true)),
        (vec![new(), speaking(old(), "true")], Some(false)),
        (vec![leaving(new()), speaking(old(), "true")], Some(true)),
        (vec![leaving(old())], None),
        (vec![starting(new()), old()], None),
        (vec![speaking(starting(new()), "true"), old()], Some(true)),
    ] {
        let spoken = newest_supports_in_pod(&index(&pods), &ZtunnelSelector::default());
        assert_eq!(spoken, expected, "{pods:?}");
    }
}

#[test]
fn a_candidate_has_what_the_node_needs_of_it() {
    let found = found(&[ztunnel("z", "2026-01-01T00:00:00Z")]);
    let expected = ZtunnelCandidate {
        uid: "uid-z".into(),
        name: model::PodName { namespace: "istio-system".into(), name: "z".into() },
        ips: vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
        created: "2026-01-01T00:00:00Z".into(),
        ready: true,
        terminating: false,
        dns_capture: false,
        host_network: false,
    };
    assert_eq!(found, [expected]);
    assert_eq!(active_candidate(&found), found.first());
}

#[test]
fn a_lookalike_is_no_candidate() {
    for (place, value) in [
        ("/metadata/namespace", "shop"),
        ("/metadata/labels/app", "ztunnel2"),
        ("/metadata/labels", ""),
        ("/spec/serviceAccountName", "default"),
        ("/spec/serviceAccountName", ""),
    ] {
        let value = if value.is_empty() && place.ends_with("labels") { json!({}) } else { json!(value) };
        assert_eq!(found(&[but(place, value)]), [], "{place}");
    }
    let selector = ZtunnelSelector {
        label: ("role".into(), "proxy".into()),
        namespaces: vec!["other".into(), "shop".into()],
        service_account: "it".into(),
    };
    let metadata = json!({"namespace": "shop", "labels": {"role": "proxy"}});
    let pod = json!({"metadata": metadata, "spec": {"serviceAccountName": "it"}});
    assert!(selector.matches(&serde_json::from_value(pod).unwrap()), "all is configurable");
}

#[test]
fn only_one_that_is_ready_and_stays_is_active() {
    for (place, value, fit) in [
        ("/status/phase", json!("Running"), true),
        ("/status/phase", json!("Pending"), false),
        ("/status/phase", json!(""), false),
        ("/status/containerStatuses", json!([{"ready": true}, {"ready": false}]), false),
        ("/status/containerStatuses", json!([{"name": "no word"}]), false),
        ("/status/containerStatuses", json!([]), true),
        ("/status/initContainerStatuses", json!([{"ready": false}]), false),
        ("/status/conditions", json!([{"type": "Ready", "status": "False"}]), false),
        ("/status/conditions", json!([{"type": "Ready", "status": "Unknown"}]), false),
        ("/status/conditions", json!([{"type": "ContainersReady", "status": "False"}]), true),
        ("/status/conditions", json!([]), true),
        ("/status/podIPs", json!([]), false),
        (
            "/metadata",
            json!({"namespace": "istio-system", "labels": {"app": "ztunnel"},
            "deletionTimestamp": "2026-01-01T00:00:00Z"}),
            false,
        ),
    ] {
        let found = found(&[but(place, value.clone())]);
        assert_eq!(found.len(), 1);
        assert_eq!(active_candidate(&found).is_some(), fit, "{place} {value}");
    }
}

#[test]
fn the_newest_wins_and_of_two_alike_always_the_same() {
    let (old, new) = ("2025-12-31T23:59:59Z", "2026-01-01T00:00:00Z");
    let unready = |name: &str, created: &str| {
        let mut pod = ztunnel(name, created);
        pod["status"]["phase"] = json!("Pending");
        pod
    };
    let name = |one: Option<&ZtunnelCandidate>| one.map(|one| one.name.name.clone()).unwrap_or_default();
    for (pods, now, next) in [
        (vec![ztunnel("a", old), ztunnel("b", new)], "b", ""),
        (vec![ztunnel("a", new), ztunnel("b", old)], "a", ""),
        (vec![ztunnel("a", old), unready("b", new)], "a", "b"),
        (vec![unready("a", old), ztunnel("b", new)], "b", ""),
        (vec![unready("a", old)], "", "a"),
        (vec![unready("a", old), unready("b", new)], "", "b"),
        (vec![], "", ""),
        (vec![ztunnel("a", new), ztunnel("b", new)], "b", ""),
    ] {
        let mut found = found(&pods);
        assert_eq!(
            (name(active_candidate(&found)), name(next_candidate(&found))),
            (now.into(), next.into()),
            "{found:?}"
        );
        found.reverse();
        assert_eq!(
            (name(active_candidate(&found)), name(next_candidate(&found))),
            (now.into(), next.into()),
            "in any order"
        );
    }
}

#[test]
fn dns_is_captured_if_the_first_word_on_it_is_literally_true() {
    let env = |value: &str| json!({"name": "ISTIO_META_DNS_CAPTURE", "value": value});
    let elsewhere = json!({"name": "ISTIO_META_DNS_CAPTURE", "valueFrom": {}});
    for (containers, captured) in [
        (json!([{"name": "istio-proxy", "env": [env("true")]}]), true),
        (
            json!([{"name": "istio-proxy", "env": [{"name": "X", "value": "y"}, env("true"), env("false")]}]),
            true,
        ),
        (json!([{"name": "istio-proxy", "env": [env("false"), env("true")]}]), false),
        (json!([{"name": "istio-proxy", "env": [env("TRUE")]}]), false),
        (json!([{"name": "istio-proxy", "env": [env("1")]}]), false),
        (json!([{"name": "istio-proxy", "env": [elsewhere, env("true")]}]), false),
        (json!([{"name": "a"}, {"name": "b", "env": [env("true")]}]), true),
        (json!([{"name": "a", "env": [env("")]}, {"name": "b", "env": [env("true")]}]), false),
    ] {
        let found = found(&[but("/spec/containers", containers.clone())]);
        assert_eq!(found[0].dns_capture, captured, "{containers}");
    }
}

fn candidate() -> impl Strategy<Value = ZtunnelCandidate> {
    ("[a-c]", "[0-2]", any::<(bool, bool, bool)>()).prop_map(|(uid, created, (ready, terminating, ip))| {
        ZtunnelCandidate {
            uid: uid.into(),
            created,
            ready,
            terminating,
            name: model::PodName::default(),
            ips: ip.then(|| "10.0.0.1".parse().unwrap()).into_iter().collect(),
            dns_capture: false,
            host_network: false,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_active_one_is_fit_and_none_that_is_fit_is_newer(all in proptest::collection::vec(candidate(), 0..6)) {
        let fit = |one: &ZtunnelCandidate| one.ready && !one.terminating && !one.ips.is_empty();
        match active_candidate(&all) {
            None => prop_assert!(!all.iter().any(fit)),
            Some(one) => {
                prop_assert!(fit(one));
                let best = all.iter().filter(|other| fit(other)).map(|one| (&one.created, &one.uid)).max();
                prop_assert_eq!(Some((&one.created, &one.uid)), best);
            }
        }
    }
}
