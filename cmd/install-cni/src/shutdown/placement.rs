//! Whether a DaemonSet still selects a node, as the DaemonSet controller decides for an existing pod (`NodeShouldRunDaemonPod`):
//! the difference between an upgrade of the agent and its removal.

use std::collections::BTreeMap;

use model::{
    DaemonSet, LabelRequirement, Node, NodeSelectorTerm, PodPlacement, Taint, Toleration, parse_switch,
};

/// Returns why a DaemonSet that is not being deleted excludes the node; `None` if it does not.
pub(crate) fn exclusion_reason(daemon_set: &DaemonSet, node: &Node) -> Option<String> {
    let placement = &daemon_set.spec.template.spec;
    selector_mismatch(placement, node)
        .or_else(|| affinity_mismatch(placement, node))
        .or_else(|| untolerated_taint(placement, node))
}

fn selector_mismatch(placement: &PodPlacement, node: &Node) -> Option<String> {
    let has = |key: &str, value: &str| node.metadata.labels.get(key).is_some_and(|label| label == value);
    let (key, value) = placement.node_selector.iter().find(|(key, value)| !has(key, value))?;
    Some(format!("the DaemonSet's nodeSelector asks for the label {key}={value}"))
}

const AFFINITY: &str = "the DaemonSet's node affinity excludes this node";

fn affinity_mismatch(placement: &PodPlacement, node: &Node) -> Option<String> {
    let required = placement.affinity.node_affinity.required.as_ref()?;
    let is_met = required.node_selector_terms.iter().any(|term| term_matches(term, node));
    (!is_met).then(|| AFFINITY.to_owned())
}

fn term_matches(term: &NodeSelectorTerm, node: &Node) -> bool {
    let fields = BTreeMap::from([("metadata.name".to_owned(), node.metadata.name.clone())]);
    let asks = !(term.match_expressions.is_empty() && term.match_fields.is_empty());
    asks && term
        .match_expressions
        .iter()
        .all(|requirement| meets_requirement(&node.metadata.labels, requirement))
        && term.match_fields.iter().all(|requirement| meets_requirement(&fields, requirement))
}

/// Whether a label requirement is met. An unknown operator counts as met: a newer Kubernetes may define it, and an agent that
/// mistakes an upgrade for its removal would do harm.
fn meets_requirement(labels: &BTreeMap<String, String>, requirement: &LabelRequirement) -> bool {
    let numbers = || numeric_operands(labels.get(&requirement.key), requirement);
    match requirement.operator.as_str() {
        "Gt" => numbers().is_some_and(|(label, bound)| label > bound),
        "Lt" => numbers().is_some_and(|(label, bound)| label < bound),
        _ => requirement.is_met_by(labels).unwrap_or(true),
    }
}

fn numeric_operands(value: Option<&String>, requirement: &LabelRequirement) -> Option<(i64, i64)> {
    let [bound] = requirement.values.as_slice() else { return None };
    Some((value?.parse().ok()?, bound.parse().ok()?))
}

/// Taints that the DaemonSet controller makes every DaemonSet pod tolerate; the others that it adds never evict.
const ALWAYS_TOLERATED: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

fn untolerated_taint(placement: &PodPlacement, node: &Node) -> Option<String> {
    let stays = |taint: &Taint| taint.effect != "NoExecute" || ALWAYS_TOLERATED.contains(&taint.key.as_str());
    let is_tolerated =
        |taint: &Taint| placement.tolerations.iter().any(|toleration| tolerates(toleration, taint));
    let taint = node.spec.taints.iter().find(|taint| !stays(taint) && !is_tolerated(taint))?;
    Some(format!("the DaemonSet does not tolerate the node's taint {}", taint.key))
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let value = match toleration.operator.as_str() {
        "" | "Equal" => toleration.value == taint.value,
        _ => true, // `Exists`, and unknown operators
    };
    value
        && (toleration.effect.is_empty() || toleration.effect == taint.effect)
        && (toleration.key == taint.key || (toleration.key.is_empty() && toleration.operator == "Exists"))
}

/// Name of the agent's container in a DaemonSet.
const CONTAINER: &str = "install-cni";
const VARIABLE: &str = "AMBIENT_ENABLED";
const FLAG: &str = "--ambient-enabled";
/// Annotation of a DaemonSet whose agents have the variable from a ConfigMap.
const ANNOTATION: &str = "cni.istio.io/ambient-enabled";

/// Whether the DaemonSet's agents run in ambient mode. `None`: its manifest leaves it open, as when variables come from a
/// ConfigMap, and it has no annotation.
pub(crate) fn takes_part_in_ambient(daemon_set: &DaemonSet) -> Option<bool> {
    let containers = &daemon_set.spec.template.spec.containers;
    let agent = containers.iter().find(|container| container.name == CONTAINER)?;
    let flag = agent.args.iter().rev().find_map(|argument| argument.strip_prefix(FLAG));
    match (flag, agent.env.iter().rev().find(|variable| variable.name == VARIABLE)) {
        (Some(""), _) => Some(true),
        (Some(value), _) => parse_switch(value.strip_prefix('=')?).ok(),
        (None, Some(variable)) => parse_switch(variable.value.as_deref()?).ok(),
        (None, None) if agent.env_from.is_empty() => Some(false),
        (None, None) => parse_switch(daemon_set.metadata.annotations.get(ANNOTATION)?).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn daemon_set(placement: &Value) -> DaemonSet {
        serde_json::from_value(json!({"spec": {"template": {"spec": placement}}})).unwrap()
    }

    fn node(spec: &Value) -> Node {
        let labels = json!({"kubernetes.io/os": "linux", "zone": "a", "cpus": "8"});
        serde_json::from_value(json!({"metadata": {"name": "n1", "labels": labels}, "spec": spec})).unwrap()
    }

    fn required(terms: &Value) -> Value {
        let required = json!({"nodeSelectorTerms": terms});
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}})
    }

    fn expression(key: &str, operator: &str, values: &[&str]) -> Value {
        required(&json!([{"matchExpressions": [{"key": key, "operator": operator, "values": values}]}]))
    }

    #[test]
    fn only_what_a_daemon_set_says_itself_tells_of_ambient_mode() {
        let with = |container: Value| {
            let mut containers =
                vec![json!({"name": "sidecar", "env": [{"name": "AMBIENT_ENABLED", "value": "true"}]})];
            containers.push(container);
            takes_part_in_ambient(&daemon_set(&json!({"containers": containers})))
        };
        let env = |value: Value| json!({"name": "install-cni", "env": [{"name": "AMBIENT_ENABLED", "value": value}]});
        for (container, expected) in [
            (env(json!("true")), Some(true)),
            (env(json!("false")), Some(false)),
            (env(json!("")), Some(false)),
            (env(json!("perhaps")), None),
            (env(Value::Null), None),
            (json!({"name": "install-cni"}), Some(false)),
            (json!({"name": "install-cni", "env": [{"name": "OTHER", "value": "true"}]}), Some(false)),
            (
                json!({"name": "install-cni", "envFrom": [{"configMapRef": {"name": "istio-cni-config"}}]}),
                None,
            ),
            (json!({"name": "install-cni", "args": ["--ambient-enabled"]}), Some(true)),
            (json!({"name": "install-cni", "args": ["--ambient-enabled=false"]}), Some(false)),
            (json!({"name": "install-cni", "args": ["--ambient-enabled-x"]}), None),
            (json!({"name": "other"}), None),
        ] {
            assert_eq!(with(container.clone()), expected, "{container}");
        }
        let from_config_map = json!({"name": "install-cni", "envFrom": [{}]});
        for (value, expected) in [("true", Some(true)), ("false", Some(false)), ("perhaps", None)] {
            let mut annotated = daemon_set(&json!({"containers": [from_config_map]}));
            annotated.metadata.annotations.insert(ANNOTATION.to_owned(), value.to_owned());
            assert_eq!(takes_part_in_ambient(&annotated), expected, "{value}");
        }
        assert_eq!(takes_part_in_ambient(&DaemonSet::default()), None);
    }

    #[test]
    fn selectors_and_affinity_decide_as_in_kubernetes() {
        let affinity = Some(AFFINITY.to_owned());
        let label = |label: &str| Some(format!("the DaemonSet's nodeSelector asks for the label {label}"));
        let by_name = |name: &str| {
            required(
                &json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}]),
            )
        };
        for (placement, expected) in [
            (json!({}), None),
            (json!({"affinity": null, "tolerations": null}), None),
            (json!({"nodeSelector": {"kubernetes.io/os": "linux"}}), None),
            (json!({"nodeSelector": {"kubernetes.io/os": "windows"}}), label("kubernetes.io/os=windows")),
            (json!({"nodeSelector": {"mesh": "yes"}}), label("mesh=yes")),
            (expression("zone", "In", &["a", "b"]), None),
            (expression("zone", "In", &["b"]), affinity.clone()),
            (expression("zone", "NotIn", &["a"]), affinity.clone()),
            (expression("rack", "NotIn", &["a"]), None),
            (expression("zone", "Exists", &[]), None),
            (expression("zone", "DoesNotExist", &[]), affinity.clone()),
            (expression("cpus", "Gt", &["4"]), None),
            (expression("cpus", "Gt", &["8"]), affinity.clone()),
            (expression("cpus", "Lt", &["8"]), affinity.clone()),
            (expression("zone", "Lt", &["8"]), affinity.clone()),
            (expression("zone", "Resembles", &["z"]), None),
            (required(&json!([])), affinity.clone()),
            (required(&json!([{}])), affinity.clone()),
            (by_name("n1"), None),
            (by_name("n2"), affinity),
        ] {
            assert_eq!(exclusion_reason(&daemon_set(&placement), &node(&json!({}))), expected, "{placement}");
        }
    }

    #[test]
    fn only_a_taint_that_evicts_counts() {
        let taint = |key: &str, effect: &str| {
            node(&json!({"taints": [{"key": key, "value": "v", "effect": effect}]}))
        };
        let tolerating = |toleration: Value| daemon_set(&json!({"tolerations": [toleration]}));
        let evicted = Some("the DaemonSet does not tolerate the node's taint gpu".to_owned());
        let none = daemon_set(&json!({}));
        assert_eq!(exclusion_reason(&none, &taint("gpu", "NoExecute")), evicted);
        assert_eq!(exclusion_reason(&none, &taint("gpu", "NoSchedule")), None);
        assert_eq!(exclusion_reason(&none, &taint("node.kubernetes.io/not-ready", "NoExecute")), None);
        for (toleration, expected) in [
            (json!({"operator": "Exists"}), None),
            (json!({"operator": "Exists", "effect": "NoExecute"}), None),
            (json!({"operator": "Exists", "effect": "NoSchedule"}), evicted.clone()),
            (json!({"key": "gpu", "operator": "Exists"}), None),
            (json!({"key": "cpu", "operator": "Exists"}), evicted.clone()),
            (json!({"key": "gpu", "value": "v"}), None),
            (json!({"key": "gpu", "operator": "Equal", "value": "w"}), evicted.clone()),
            (json!({"value": "v"}), evicted),
        ] {
            assert_eq!(
                exclusion_reason(&tolerating(toleration.clone()), &taint("gpu", "NoExecute")),
                expected,
                "{toleration}"
            );
        }
    }
}
