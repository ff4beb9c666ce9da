use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn policy(spec: Value) -> NetworkPolicy {
    serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "shop"}, "spec": spec})).unwrap()
}

fn web() -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "web-0", "namespace": "shop", "labels": {"app": "web", "tier": "front"}},
        "spec": {"containers": [{"name": "web", "ports": [
            {"name": "http", "containerPort": 8080},
            {"name": "hbone", "containerPort": 15008, "protocol": "TCP"},
            {"name": "quic", "containerPort": 15008, "protocol": "UDP"},
        ]}]},
    }))
    .unwrap()
}

fn verdict(policies: &[NetworkPolicy]) -> Blocked {
    policy_effect(&web(), policies).0
}

#[test]
fn a_policy_that_lists_other_ports_blocks_hbone() {
    let from = json!([{"podSelector": {"matchLabels": {"app": "cart"}}}]);
    for (ingress, expected) in [
        (json!([{}]), Blocked::No),
        (json!([{"from": from}]), Blocked::No),
        (json!([{"ports": [{"port": 8080}]}]), Blocked::Hbone),
        (json!([{"ports": [{"port": "http"}]}]), Blocked::Hbone),
        (json!([{"ports": [{"port": "quic"}]}]), Blocked::Hbone),
        (json!([{"ports": [{"port": 15008, "protocol": "UDP"}]}]), Blocked::Everything),
        (json!([{"ports": [{"port": 15008}]}]), Blocked::No),
        (json!([{"ports": [{"port": "hbone"}]}]), Blocked::No),
        (json!([{"ports": [{"protocol": "TCP"}]}]), Blocked::No),
        (json!([{"ports": [{"port": 15000, "endPort": 15100}]}]), Blocked::No),
        (json!([{"ports": [{"port": 15009, "endPort": 15100}]}]), Blocked::Hbone),
        (json!([{"ports": [{"port": 8080}, {"port": 15008}]}]), Blocked::No),
        (json!([]), Blocked::Everything),
        (
            json!([{"ports": [{"port": 8080}]}, {"from": from, "ports": [{"port": 15008}]}]),
            Blocked::SomePeers,
        ),
        (json!([{"from": from, "ports": [{"port": 8080}]}, {"ports": [{"port": 15008}]}]), Blocked::No),
        (
            json!([{"from": from, "ports": [{"port": 8080}]}, {"from": from, "ports": [{"port": 15008}]}]),
            Blocked::No,
        ),
    ] {
        let policy = policy(json!({"podSelector": {}, "ingress": ingress}));
        assert_eq!(verdict(&[policy]), expected, "{ingress}");
    }
}

#[test]
fn probes_are_blocked_where_a_probed_port_is_not_open_to_their_address() {
    let blocks = |container: Value, address: &str, ingress: &Value| {
        let mut pod =
            json!({"metadata": {"name": "web-0", "namespace": "shop"}, "status": {"podIP": address}});
        pod["spec"]["containers"] = json!([container]);
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let policy = policy(json!({"podSelector": {}, "policyTypes": ["Ingress"], "ingress": ingress}));
        blocks_probes(&pod, &[&policy], default_probe_source(&pod))
    };
    let with = |probe: Value| {
        let ports = json!([{"name": "http", "containerPort": 8080}]);
        json!({"name": "web", "ports": ports, "readinessProbe": probe})
    };
    let http = with(json!({"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 5}));
    let from = |cidr: &str| json!([{"ipBlock": {"cidr": cidr}}]);
    let (v4, v6) = ("10.0.0.1", "fd00::1");
    for (container, address, ingress, expected) in [
        (&http, v4, json!([]), true),
        (&http, v4, json!([{}]), false),
        (&http, v4, json!([{"ports": [{"port": 8080}]}]), false),
        (&http, v4, json!([{"ports": [{"port": 15008}]}]), true),
        (&http, v4, json!([{"from": [{"podSelector": {}}]}]), true),
        (&http, v4, json!([{"from": from("10.0.0.0/8")}]), true),
        (&http, v4, json!([{"from": from("169.254.7.127/32"), "ports": [{"port": "http"}]}]), false),
        (
            &http,
            v4,
            json!([{"from": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16"]}}]}]),
            true,
        ),
        (&http, v6, json!([{"from": from("169.254.7.127/32")}]), true),
        (&http, v6, json!([{"from": from("fd16:9254:7127:1337:ffff:ffff:ffff:ffff/128")}]), false),
        (&with(json!({"tcpSocket": {"port": 9090}})), v4, json!([{"ports": [{"port": 8080}]}]), true),
        (&with(json!({"grpc": {"port": 9090}})), v4, json!([{"ports": [{"port": 8080}]}]), true),
        (&with(json!({"exec": {"command": ["true"]}})), v4, json!([]), false),
        (&json!({"name": "web"}), v4, json!([]), false),
    ] {
        assert_eq!(blocks(container.clone(), address, &ingress), expected, "{container} {address} {ingress}");
    }
}

#[test]
fn only_policies_that_select_the_pod_for_ingress_count() {
    let closed = |selector: Value, types: Value| {
        policy(json!({"podSelector": selector, "policyTypes": types, "ingress": [{"ports": [{"port": 80}]}]}))
    };
    let term = |key: &str, operator: &str, values: Value| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
    for (selector, is_selected) in [
        (json!({}), true),
        (json!({"matchLabels": {"app": "web"}}), true),
        (json!({"matchLabels": {"app": "web", "tier": "back"}}), false),
        (term("app", "In", json!(["cart", "web"])), true),
        (term("app", "In", json!(["cart"])), false),
        (term("app", "NotIn", json!(["cart"])), true),
        (term("none", "NotIn", json!(["cart"])), true),
        (term("app", "NotIn", json!(["web"])), false),
        (term("app", "Exists", json!([])), true),
        (term("none", "Exists", json!([])), false),
        (term("none", "DoesNotExist", json!([])), true),
        (term("app", "Newer", json!([])), false),
    ] {
        let expected = if is_selected { Blocked::Hbone } else { Blocked::No };
        assert_eq!(verdict(&[closed(selector.clone(), json!(["Ingress"]))]), expected, "{selector}");
        assert_eq!(verdict(&[closed(selector, json!(["Egress"]))]), Blocked::No);
    }
    assert_eq!(verdict(&[closed(json!({}), json!([]))]), Blocked::Hbone, "without types it is about ingress");
    let mut elsewhere = closed(json!({}), json!([]));
    elsewhere.metadata.namespace = "other".to_owned();
    assert_eq!(verdict(&[elsewhere]), Blocked::No);
    assert_eq!(verdict(&[]), Blocked::No);
}

#[test]
fn egress_to_other_ports_of_peers_alone_blocks_hbone_from_the_pod() {
    let to = json!([{"podSelector": {"matchLabels": {"app": "db"}}}]);
    let dns = json!({"ports": [{"port": 53}, {"port": 53, "protocol": "UDP"}]});
    let outside = json!({"to": [{"ipBlock": {"cidr": "0.0.0.0/0"}}], "ports": [{"port": 443}]});
    let outbound = |spec: Value| outbound_effect(&web(), &[policy(spec)]).0;
    for (egress, expected) in [
        (json!([{}]), Blocked::No),
        (json!([{"to": to}]), Blocked::No),
        (json!([{"to": to, "ports": [{"port": 5432}]}]), Blocked::Hbone),
        (json!([{"to": to, "ports": [{"port": "hbone"}]}]), Blocked::Hbone),
        (json!([{"to": to, "ports": [{"port": 5432}, {"port": 15008}]}, dns, outside]), Blocked::No),
        (json!([{"to": to, "ports": [{"port": 5432}]}, {"ports": [{"port": 15008}]}]), Blocked::No),
        (json!([{"ports": [{"port": 80}]}, {"to": to, "ports": [{"port": 15008}]}]), Blocked::SomePeers),
        // The traffic would be blocked without the mesh, too.
        (json!([]), Blocked::Everything),
        (json!([dns, outside]), Blocked::Everything),
    ] {
        let spec = json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": egress});
        assert_eq!(outbound(spec), expected, "{egress}");
    }
    let rule = json!([{"to": to, "ports": [{"port": 5432}]}]);
    for (spec, expected) in [
        (json!({"egress": rule}), Blocked::Hbone),
        (json!({"policyTypes": ["Ingress"], "egress": rule}), Blocked::No),
        (json!({"podSelector": {"matchLabels": {"app": "cart"}}, "egress": rule}), Blocked::No),
        (json!({}), Blocked::No),
    ] {
        assert_eq!(outbound(spec.clone()), expected, "{spec}");
    }
}

prop_compose! {
    fn some_rule()(ports in prop::collection::vec((1u16.., any::<bool>()), 0..4), from in 0u8..3) -> PolicyRule {
        let port = |(port, is_hbone): (u16, bool)| PolicyPort {
            port: Some(PortName::Number(if is_hbone { HBONE } else { port })),
            ..PolicyPort::default()
        };
        let block = |from: u8| Peer {
            ip_block: Some(IpBlock { cidr: format!("10.0.{from}.0/24"), except: Vec::new() }),
            ..Peer::default()
        };
        PolicyRule {
            peers: (from > 0).then(|| block(from)).into_iter().collect(),
            ports: ports.into_iter().map(port).collect(),
        }
    }
}

proptest! {
    /// Policies only add allowed inbound traffic: one more that opens the port to all removes every finding, and one that opens
    /// nothing never adds one if another policy already selects the pod.
    #[test]
    fn what_one_policy_allows_no_other_forbids(rules in prop::collection::vec(some_rule(), 0..5)) {
        let mut some = policy(json!({}));
        some.spec.ingress = rules.clone();
        let open = policy(json!({"ingress": [{}]}));
        prop_assert_eq!(verdict(&[some.clone(), open]), Blocked::No);
        let nothing = policy(json!({"ingress": []}));
        prop_assert_eq!(verdict(&[some.clone(), nothing]), verdict(&[some.clone()]));
        // In one policy or in several, in any order.
        let mut split: Vec<NetworkPolicy> = rules.into_iter().map(|rule| {
            let mut one = policy(json!({}));
            one.spec.ingress = vec![rule];
            one
        }).collect();
        split.reverse();
        if !split.is_empty() {
            prop_assert_eq!(verdict(&split), verdict(&[some]));
        }
    }
}
