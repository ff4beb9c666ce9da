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

prop_compose! {
    fn some_rule()(ports in prop::collection::vec((1u16.., any::<bool>()), 0..4), from in 0u8..3) -> IngressRule {
        let port = |(port, is_hbone): (u16, bool)| PolicyPort {
            port: Some(PortName::Number(if is_hbone { HBONE } else { port })),
            ..PolicyPort::default()
        };
        let block = |from: u8| Peer {
            ip_block: Some(IpBlock { cidr: format!("10.0.{from}.0/24"), except: Vec::new() }),
            ..Peer::default()
        };
        IngressRule {
            from: (from > 0).then(|| block(from)).into_iter().collect(),
            ports: ports.into_iter().map(port).collect(),
        }
    }
}

proptest! {
    /// Policies only add to what may come in: one more that opens the port to all ends every blockade, and one that opens
    /// nothing never adds one where another policy selects the pod already.
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
