//! Agent's settings in rendered manifests: the environment and the command line of its container, as the kubelet would set them.
//! Only the chart defines the meaning of its values, which is not duplicated here.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{Read, stdin},
    path::Path,
};

use anyhow::{Context as _, Result, bail, ensure};
use report::SettingsChange;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::node_query::CONTAINER;

/// Maximum size of all manifests, in bytes; the chart renders a twentieth of it.
const MAX_MANIFESTS: u64 = 2 * 1024 * 1024;

/// Settings of a rendered agent.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RenderedSettings {
    pub(super) change: SettingsChange,
    /// Settings that the manifests do not contain.
    pub(super) left_out: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Container {
    args: Vec<String>,
    env_from: Vec<Value>,
    env: Vec<Variable>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Variable {
    name: String,
    value: Option<String>,
    value_from: Option<BTreeMap<String, Value>>,
}

/// Reads manifests from a file, or from standard input if it is `-`.
///
/// # Errors
/// The manifests cannot be read, are too long, or do not contain exactly one agent.
pub(super) fn read_manifests(file: &Path) -> Result<RenderedSettings> {
    parse_settings(&read_text(file)?)
        .with_context(|| format!("there are no settings of an agent in {}", file.display()))
}

/// Reads a file, or standard input if it is `-`.
///
/// # Errors
/// The file cannot be read, or is too long.
pub(super) fn read_text(file: &Path) -> Result<String> {
    let text = if file == Path::new("-") {
        read_all(stdin().lock())
    } else {
        File::open(file).map_err(anyhow::Error::from).and_then(read_all)
    };
    text.with_context(|| format!("cannot read {}", file.display()))
}

fn read_all(from: impl Read) -> Result<String> {
    let mut text = String::new();
    from.take(MAX_MANIFESTS + 1).read_to_string(&mut text)?;
    ensure!(text.len() as u64 <= MAX_MANIFESTS, "it has more than {MAX_MANIFESTS} bytes");
    Ok(text)
}

fn parse_settings(text: &str) -> Result<RenderedSettings> {
    let objects = parse_objects(text)?;
    let (_, container) = find_agent(&objects)?;
    let agent = Container::deserialize(container).context("a DaemonSet cannot be read")?;
    let mut change = SettingsChange { complete: true, ..SettingsChange::default() };
    let mut left_out = Vec::new();
    for source in &agent.env_from {
        match config_map_source(source) {
            Some((name, prefix)) => change.variables.extend(config_map_data(&objects, name, prefix)?),
            None => left_out.push("variables that come from a Secret".to_owned()),
        }
    }
    add_variables(agent.env, &objects, &mut change, &mut left_out);
    let (expanded, plain): (Vec<String>, Vec<String>) =
        agent.args.into_iter().partition(|word| is_expanded(word));
    left_out.extend(expanded.iter().map(|word| format!("the argument {word:?}, which contains a variable")));
    change.arguments = plain;
    Ok(RenderedSettings { change, left_out })
}

/// Returns the objects of manifests.
///
/// # Errors
/// The text is no YAML.
pub(super) fn parse_objects(text: &str) -> Result<Vec<Value>> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).context("invalid YAML")?;
    Ok(documents.into_iter().flat_map(list_items).collect())
}

/// Returns the objects of a document, which may be a list.
fn list_items(mut document: Value) -> Vec<Value> {
    let is_list = document.get("kind").is_some_and(|kind| kind == "List");
    match document.get_mut("items").filter(|_| is_list).map(Value::take) {
        Some(Value::Array(items)) => items,
        _ => vec![document],
    }
}

/// Finds the agent's DaemonSet, and its container there.
///
/// # Errors
/// There is no such DaemonSet, or more than one.
pub(super) fn find_agent(objects: &[Value]) -> Result<(&Value, &Value)> {
    let daemon_sets = objects.iter().filter(|object| object["kind"] == "DaemonSet");
    let mut agents = daemon_sets.filter_map(|object| Some((object, own_container(object)?)));
    match (agents.next(), agents.next()) {
        (Some(agent), None) => Ok(agent),
        _ => bail!("not exactly one DaemonSet has a container {CONTAINER}"),
    }
}

fn own_container(daemon_set: &Value) -> Option<&Value> {
    let containers = daemon_set.pointer("/spec/template/spec/containers").and_then(Value::as_array);
    containers.into_iter().flatten().find(|container| container["name"] == CONTAINER)
}

/// Finds an object by its kind and name.
pub(super) fn find_object<'a>(objects: &'a [Value], kind: &str, name: &str) -> Option<&'a Value> {
    let is_named = |object: &Value| object.pointer("/metadata/name").is_some_and(|found| found == name);
    objects.iter().find(|object| object["kind"] == kind && is_named(object))
}

/// Returns the variables that a container gets by `envFrom` from a ConfigMap, in the form of `env`; `None`: the ConfigMap is not
/// among the objects.
pub(super) fn config_map_variables(objects: &[Value], source: &Value) -> Option<Vec<Value>> {
    let (name, prefix) = config_map_source(source)?;
    let data = config_map_data(objects, name, prefix).ok()?;
    Some(data.into_iter().map(|(name, value)| json!({"name": name, "value": value})).collect())
}

/// Returns name and prefix of an `envFrom` from a ConfigMap; `None`: it is from elsewhere.
fn config_map_source(source: &Value) -> Option<(&str, &str)> {
    let prefix = source.get("prefix").and_then(Value::as_str).unwrap_or_default();
    Some((source.pointer("/configMapRef/name")?.as_str()?, prefix))
}

/// Returns a variable with its value, if it refers to a ConfigMap among the objects; otherwise unchanged.
pub(super) fn resolved_variable(objects: &[Value], variable: &Value) -> Value {
    let reference = variable.pointer("/valueFrom/configMapKeyRef");
    match reference.and_then(|reference| referenced_value(objects, reference)) {
        Some(value) => json!({"name": variable.get("name"), "value": value}),
        None => variable.clone(),
    }
}

/// Returns the variables of a ConfigMap.
fn config_map_data(objects: &[Value], name: &str, prefix: &str) -> Result<BTreeMap<String, String>> {
    let found = find_object(objects, "ConfigMap", name);
    let found = found.with_context(|| format!("the ConfigMap {name} is not among them"))?;
    let data = Option::<BTreeMap<String, String>>::deserialize(&found["data"])
        .with_context(|| format!("the ConfigMap {name} cannot be read"))?;
    Ok(data.unwrap_or_default().into_iter().map(|(key, value)| (format!("{prefix}{key}"), value)).collect())
}

/// Adds variables of the container, each overriding an earlier one of its name.
fn add_variables(
    variables: Vec<Variable>,
    objects: &[Value],
    change: &mut SettingsChange,
    left_out: &mut Vec<String>,
) {
    for Variable { name, value, value_from } in variables {
        let value = value.or_else(|| referenced_value(objects, value_from.as_ref()?.get("configMapKeyRef")?));
        change.variables.remove(&name);
        change.inherited.remove(&name);
        let from: BTreeSet<String> = value_from.into_iter().flatten().map(|(kind, _)| kind).collect();
        let concerns_pod = from.iter().all(|kind| kind == "fieldRef" || kind == "resourceFieldRef");
        match value {
            Some(value) if !is_expanded(&value) => drop(change.variables.insert(name, value)),
            None if from.is_empty() => {} // counts as absent
            _ => {
                if from.is_empty() || !concerns_pod {
                    left_out.push(format!("{name}, whose value the manifests do not contain"));
                }
                change.inherited.insert(name);
            }
        }
    }
}

/// Returns the value of a reference to a ConfigMap key; `None`: it is not among the objects.
fn referenced_value(objects: &[Value], reference: &Value) -> Option<String> {
    config_map_data(objects, reference.get("name")?.as_str()?, "")
        .ok()?
        .remove(reference.get("key")?.as_str()?)
}

/// Whether the kubelet substitutes other variables in the text.
fn is_expanded(text: &str) -> bool {
    text.contains("$(")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Manifests that `hack/render` renders from the chart.
    const IN_POD: &str = include_str!("../../../../deploy/istio-cni-in-pod.yaml");
    const SIDECARS: &str = include_str!("../../../../deploy/istio-cni.yaml");

    #[test]
    fn the_settings_of_the_rendered_chart_are_found() {
        let RenderedSettings { change, .. } = parse_settings(IN_POD).unwrap();
        assert_eq!(change.variables["AMBIENT_ENABLED"], "true");
        assert!(change.inherited.contains("NODE_NAME") && change.complete, "{change:?}");
        assert!(change.arguments.iter().any(|word| word.starts_with("--log_output_level")), "{change:?}");
        assert!(change.check().is_ok());
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/istio-cni-in-pod.yaml");
        assert_eq!(read_manifests(Path::new(path)).unwrap(), parse_settings(IN_POD).unwrap());
        let sidecars = parse_settings(SIDECARS).unwrap();
        assert!(!sidecars.change.variables.contains_key("AMBIENT_ENABLED"));
        assert!(sidecars.change.variables["CNI_NETWORK_CONFIG"].contains("\"type\": \"istio-cni\""));
        assert_eq!(sidecars.left_out, Vec::<String>::new());
        assert!(sidecars.change.check().is_ok());
    }

    const AGENT: &str = "
kind: DaemonSet
spec: {template: {spec: {containers: [
  {name: other}, {name: install-cni, args: ['--a=$(NODE)', '--b'], envFrom: [{configMapRef: {name: c}, prefix: P_}, {secretRef: {name: s}}],
   env: [{name: P_A, value: '2'}, {name: E}, {name: NODE, valueFrom: {fieldRef: {fieldPath: x}}}, {name: D, value: '$(NODE)'},
         {name: K, valueFrom: {configMapKeyRef: {name: c, key: A}}}, {name: S, valueFrom: {secretKeyRef: {name: s, key: A}}}]}]}}}
";
    const CONFIG: &str = "---\nkind: ConfigMap\nmetadata: {name: c}\ndata: {A: '1', B: 'true'}\n";

    #[test]
    fn variables_are_those_that_the_kubelet_would_make() {
        let RenderedSettings { change, left_out } = parse_settings(&format!("{AGENT}{CONFIG}")).unwrap();
        let variables: Vec<(&str, &str)> =
            change.variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(variables, [("K", "1"), ("P_A", "2"), ("P_B", "true")]);
        assert_eq!(change.inherited, ["D", "NODE", "S"].map(str::to_owned).into());
        assert_eq!(change.arguments, ["--b"]);
        let expected = [
            "variables that come from a Secret",
            "D, whose value the manifests do not contain",
            "S, whose value the manifests do not contain",
            "the argument \"--a=$(NODE)\", which contains a variable",
        ];
        assert_eq!(left_out, expected);
    }

    #[test]
    fn manifests_without_one_agent_and_its_settings_are_refused() {
        for text in [
            String::new(),
            CONFIG.to_owned(),
            AGENT.to_owned(),
            format!("{AGENT}---{AGENT}{CONFIG}"),
            "a: [".to_owned(),
            "a: &a [x]\nb: &b [*a, *a, *a, *a]\nc: [*b, *b, *b, *b]".to_owned(),
        ] {
            assert!(parse_settings(&text).is_err(), "{text}");
        }
        assert!(read_manifests(Path::new("/nowhere")).is_err());
        let long = " ".repeat(usize::try_from(MAX_MANIFESTS).unwrap() + 1);
        assert!(read_all(long.as_bytes()).is_err());
    }
}
