//! Selection of pods for ambient mode by Kubernetes label selectors.

use std::{collections::BTreeMap, sync::LazyLock};

use cni_types::{CniError, ErrorCode, NetConf};
use model::{Reason, null_is_empty};
use serde::Deserialize;

/// Pair of selectors that must both match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Enablement {
    /// Selector of the pod's labels.
    #[serde(deserialize_with = "null_is_empty")]
    pub pod_selector: LabelSelector,
    /// Selector of its namespace's labels.
    #[serde(deserialize_with = "null_is_empty")]
    pub namespace_selector: LabelSelector,
}

/// Label selector, all of whose conditions must hold; an empty one matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct LabelSelector {
    /// Labels and their values.
    #[serde(deserialize_with = "null_is_empty")]
    pub match_labels: BTreeMap<String, String>,
    /// Further conditions.
    #[serde(deserialize_with = "null_is_empty")]
    pub match_expressions: Vec<LabelSelectorRequirement>,
}

/// Condition on one label.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LabelSelectorRequirement {
    /// Key of the label.
    pub key: String,
    /// Operator of the condition.
    pub operator: SelectorOperator,
    /// Values for `In` and `NotIn`.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub values: Vec<String>,
}

/// Operator of a condition on a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum SelectorOperator {
    /// The label is present with one of the values.
    In,
    /// The label is absent, or has another value.
    NotIn,
    /// The label is present.
    Exists,
    /// The label is absent.
    DoesNotExist,
}

/// Parses the configured `enablement_selectors`; `None`: none are configured.
///
/// # Errors
/// The selectors are invalid.
pub fn parse_enablement(conf: &NetConf) -> Result<Option<Vec<Enablement>>, CniError> {
    let Some(raw) = &conf.enablement_selectors else { return Ok(None) };
    let invalid = |code, why: String| {
        CniError::new(code, format!("enablement_selectors: {why}")).with_version(conf.cni_version)
    };
    let selectors: Vec<Enablement> =
        serde_json::from_str(raw.get()).map_err(|error| invalid(ErrorCode::Decode, error.to_string()))?;
    selectors
        .iter()
        .try_for_each(Enablement::check_selectors)
        .map_err(|why| invalid(ErrorCode::InvalidConfig, why.into()))?;
    Ok(Some(selectors))
}

type LabelMap = BTreeMap<String, String>;

/// Default selectors of Istio's chart, equivalent to the labels of pods and namespaces, which the agent also passes to the plugin if
/// none are configured. With selectors, the opt-out annotation has no effect.
pub const BY_LABELS: &str = r#"[
    {"podSelector": {"matchLabels": {"istio.io/dataplane-mode": "ambient"}}},
    {"podSelector": {"matchExpressions": [
        {"key": "istio.io/dataplane-mode", "operator": "NotIn", "values": ["none"]}]},
     "namespaceSelector": {"matchLabels": {"istio.io/dataplane-mode": "ambient"}}}]"#;

/// [`BY_LABELS`], parsed, which cannot fail.
static BY_LABELS_PARSED: LazyLock<Vec<Enablement>> =
    LazyLock::new(|| serde_json::from_str(BY_LABELS).unwrap_or_default());

/// Whether selectors are equivalent to the default evaluation of labels.
pub fn are_labels(selectors: &[Enablement]) -> bool {
    selectors == BY_LABELS_PARSED.as_slice()
}

impl Enablement {
    /// Whether a pod with these labels, in a namespace with those, matches.
    pub fn matches(&self, pod: &LabelMap, namespace: &LabelMap) -> bool {
        self.pod_selector.matches(pod) && self.namespace_selector.matches(namespace)
    }

    /// Checks that Kubernetes would accept the selectors.
    ///
    /// # Errors
    /// The reason, as a sentence.
    pub fn check_selectors(&self) -> Result<(), Reason> {
        let selectors = [&self.pod_selector, &self.namespace_selector];
        selectors
            .into_iter()
            .flat_map(|selector| &selector.match_expressions)
            .try_for_each(LabelSelectorRequirement::check_values)
            .map_err(Reason::from)
    }
}

impl LabelSelector {
    fn matches(&self, labels: &LabelMap) -> bool {
        self.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self.match_expressions.iter().all(|requirement| requirement.is_met_by(labels))
    }
}

impl LabelSelectorRequirement {
    fn is_met_by(&self, labels: &LabelMap) -> bool {
        let value = labels.get(&self.key);
        match self.operator {
            SelectorOperator::In => value.is_some_and(|value| self.values.contains(value)),
            SelectorOperator::NotIn => value.is_none_or(|value| !self.values.contains(value)),
            SelectorOperator::Exists => value.is_some(),
            SelectorOperator::DoesNotExist => value.is_none(),
        }
    }

    fn check_values(&self) -> Result<(), String> {
        let needs = matches!(self.operator, SelectorOperator::In | SelectorOperator::NotIn);
        match (needs, self.values.is_empty()) {
            (true, true) => Err(format!("{}: {:?} needs values", self.key, self.operator)),
            (false, false) => Err(format!("{}: {:?} takes no values", self.key, self.operator)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> LabelMap {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn the_charts_default_means_labels_of_pod_and_namespace() {
        let list: Vec<Enablement> = serde_json::from_str(BY_LABELS).unwrap();
        let mode = |value: &'static str| labels(&[("istio.io/dataplane-mode", value)]);
        let none = labels(&[]);
        let wanted =
            |pod: &LabelMap, namespace: &LabelMap| list.iter().any(|entry| entry.matches(pod, namespace));
        assert!(wanted(&none, &mode("ambient")));
        assert!(wanted(&mode("ambient"), &none));
        assert!(!wanted(&mode("none"), &mode("ambient")));
        assert!(!wanted(&none, &none));
        assert!(!wanted(&none, &mode("Ambient")));
        assert!(are_labels(&list));
        assert!(!are_labels(&list[..1]) && !are_labels(&[]));
    }

    #[test]
    fn each_operator_means_what_kubernetes_means() {
        let holds = |operator, values: &[&str], found: Option<&str>| {
            let values = values.iter().map(|value| (*value).to_owned()).collect();
            let requirement = LabelSelectorRequirement { key: "k".to_owned(), operator, values };
            requirement.is_met_by(&found.map_or_else(LabelMap::new, |value| labels(&[("k", value)])))
        };
        for (operator, values, a, c, absent) in [
            (SelectorOperator::In, &["a", "b"][..], true, false, false),
            (SelectorOperator::NotIn, &["a", "b"][..], false, true, true),
            (SelectorOperator::Exists, &[][..], true, true, false),
            (SelectorOperator::DoesNotExist, &[][..], false, false, true),
        ] {
            assert_eq!(holds(operator, values, Some("a")), a, "{operator:?}");
            assert_eq!(holds(operator, values, Some("c")), c, "{operator:?}");
            assert_eq!(holds(operator, values, None), absent, "{operator:?}");
        }
    }

    #[test]
    fn empty_selectors_match_everything_and_nonsense_is_refused() {
        assert!(Enablement::default().matches(&labels(&[("a", "b")]), &labels(&[])));
        let read = |text: &str| {
            let entry: Enablement = serde_json::from_str(text).map_err(|error| error.to_string())?;
            entry.check_selectors()
        };
        let expression = |text: &str| format!(r#"{{"podSelector": {{"matchExpressions": [{text}]}}}}"#);
        assert_eq!(read("{}"), Ok(()));
        assert_eq!(read(r#"{"podSelector": null, "namespaceSelector": {"matchLabels": null}}"#), Ok(()));
        assert_eq!(read(&expression(r#"{"key": "a", "operator": "Exists", "values": null}"#)), Ok(()));
        assert!(read(r#"{"podselector": {}}"#).is_err());
        assert!(read(&expression(r#"{"key": "a", "operator": "Like"}"#)).is_err());
        assert!(read(&expression(r#"{"key": "a", "operator": "In"}"#)).is_err());
        assert!(read(&expression(r#"{"key": "a", "operator": "Exists", "values": ["b"]}"#)).is_err());
        assert_eq!(read(&expression(r#"{"key": "a", "operator": "NotIn", "values": ["b"]}"#)), Ok(()));
    }
}
