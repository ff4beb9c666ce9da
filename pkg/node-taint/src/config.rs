//! The configuration: the data of Istio's ConfigMap.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::selector::split_selector;

/// Maximum length of a key's value, in bytes.
const MAX_TEXT: usize = 64 * 1024;
/// Maximum number of selectors: each costs a watch.
const MAX_SELECTORS: usize = 32;

/// Pods of which each node needs a ready one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodRequirement {
    /// Their namespace; empty: any.
    pub namespace: String,
    /// Their label selector.
    pub selector: String,
}

impl std::fmt::Display for PodRequirement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let namespace = if self.namespace.is_empty() { "any namespace" } else { &self.namespace };
        write!(f, "{} in {namespace}", self.selector)
    }
}

/// Requirements for each node. If empty, the node only has to be ready itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadinessConfig {
    /// The requirements, without duplicates.
    pub requirements: Vec<PodRequirement>,
}

impl ReadinessConfig {
    /// Parses all keys of a ConfigMap's `data`. A value is a list of entries, or one entry, as before Istio 1.10.
    ///
    /// # Errors
    /// The first error, with its key, as a message. A configuration with an error is rejected as a whole, because a missing
    /// requirement would let pods start too early.
    pub fn parse(data: &BTreeMap<String, String>) -> Result<ReadinessConfig, String> {
        let mut all = BTreeSet::new();
        for (key, text) in data {
            let invalid = |mistake: String| format!("key {key:?}: {mistake}");
            all.extend(parse_requirements(text).map_err(invalid)?);
            if all.len() > MAX_SELECTORS {
                return Err(invalid(format!("there are more than {MAX_SELECTORS} selectors")));
            }
        }
        Ok(ReadinessConfig { requirements: all.into_iter().collect() })
    }
}

fn parse_requirements(text: &str) -> Result<Vec<PodRequirement>, String> {
    if text.len() > MAX_TEXT {
        return Err(format!("the value has more than {MAX_TEXT} bytes"));
    }
    let documents = cluster_facts::parse_yaml(text);
    let documents = documents.map_err(|cause| format!("the value is invalid YAML: {cause}"))?;
    let mut entries = Vec::new();
    for document in documents {
        match document {
            Value::Null => {}
            Value::Array(list) => entries.extend(list),
            entry => entries.push(entry),
        }
    }
    let all = entries.iter().enumerate().map(|(number, entry)| read_requirements(number, entry));
    all.collect::<Result<Vec<_>, _>>().map(|all| all.into_iter().flatten().collect())
}

fn read_requirements(number: usize, entry: &Value) -> Result<Vec<PodRequirement>, String> {
    if !entry.is_object() {
        return Err("the value must be a list of entries with name, selector and namespace".to_owned());
    }
    let by_number = || (number + 1).to_string();
    let name = Some(read_text(&by_number(), entry, "name")?)
        .filter(|name| !name.is_empty())
        .unwrap_or_else(by_number);
    let namespace = read_text(&name, entry, "namespace")?;
    let selectors = split_selector(&read_text(&name, entry, "selector")?);
    let selectors = selectors.map_err(|cause| format!("entry {name:?}: {cause}"))?;
    let requirements =
        selectors.into_iter().map(|selector| PodRequirement { namespace: namespace.clone(), selector });
    Ok(requirements.collect())
}

/// Returns a member's text; empty if it is absent.
fn read_text(entry_name: &str, entry: &Value, member: &str) -> Result<String, String> {
    match entry.get(member) {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(_) => Err(format!("{member} of entry {entry_name:?} must be a string")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(values: &[(&str, &str)]) -> Result<Vec<String>, String> {
        let data = values.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect();
        let config = ReadinessConfig::parse(&data)?;
        Ok(config.requirements.iter().map(ToString::to_string).collect())
    }

    /// The default of Istio's chart.
    const CHART: &str = "- name: istio-cni\n  selector: k8s-app=istio-cni-node\n  namespace: kube-system\n";

    #[test]
    fn all_keys_are_read_and_each_selector_counts_once() {
        let more =
            "- name: other\n  selector: app=a,app=b\n  namespace: x\n- {selector: app=b, namespace: x}\n";
        let all = ["app=a in x", "app=b in x", "k8s-app=istio-cni-node in kube-system"];
        let mut found = parse(&[("config", CHART), ("more", more), ("again", CHART)]).unwrap();
        found.sort();
        assert_eq!(found, all);
    }

    #[test]
    fn nothing_is_required_by_nothing() {
        for values in
            [&[][..], &[("config", "")], &[("config", "[]")], &[("config", "# none\n")], &[("a", "~")]]
        {
            assert_eq!(parse(values), Ok(Vec::new()), "{values:?}");
        }
    }

    #[test]
    fn one_entry_need_not_be_in_a_list_and_a_namespace_may_be_left_out() {
        assert_eq!(parse(&[("config", "name: a\nselector: app=a\n")]).unwrap(), ["app=a in any namespace"]);
    }

    #[test]
    fn a_mistake_is_reported_with_its_key_and_its_entry() {
        for (text, parts) in [
            ("a: [", &["invalid YAML", "line 2"][..]),
            ("- text", &["a list of entries"]),
            ("text", &["a list of entries"]),
            ("- name: a\n  selector: 5", &["selector of entry \"a\" must be a string"]),
            ("- name: a", &["entry \"a\"", "empty"]),
            ("- selector: b=c\n- selectr: a=b", &["entry \"2\"", "empty"]),
            ("- selector: a=b=c", &["entry \"1\"", "\"a=b=c\""]),
        ] {
            let error = parse(&[("good", CHART), ("wrong", text)]).unwrap_err();
            assert!(error.starts_with("key \"wrong\": "), "{error}");
            assert!(parts.iter().all(|part| error.contains(part)), "{text}: {error}");
        }
    }

    #[test]
    fn size_and_number_are_limited() {
        let many = |count: usize| {
            (0..count).map(|number| format!("- selector: app=a{number}\n")).collect::<String>()
        };
        assert_eq!(parse(&[("a", &many(32))]).unwrap().len(), 32);
        assert!(parse(&[("a", &many(33))]).unwrap_err().contains("more than 32"));
        assert!(parse(&[("a", &many(17)), ("b", &many(40))]).is_err());
        assert!(parse(&[("a", &" ".repeat(MAX_TEXT + 1))]).unwrap_err().contains("more than 65536 bytes"));
    }
}
