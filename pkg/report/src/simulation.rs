//! Simulation of a change of labels or of the agent's settings: the pods of a node that would join or leave ambient mode.

mod settings;

use std::{collections::BTreeMap, fmt, net::IpAddr};

use pod_status::RedirectionMode;
use serde::{Deserialize, Serialize};

use crate::{
    document::known_value,
    pod::StateReason,
    text::{format_count, is_object_name, more_clause, percent_encode, sanitize_text},
};

pub use settings::{MAX_SETTINGS, SettingsChange};

/// Name and version of the response's schema.
pub const SIMULATION_SCHEMA: &str = "millrace.simulation/v1";
/// Maximum number of labels in one change.
const MOST_LABELS: usize = 16;
/// Maximum number of pods whose connections are listed in notes, and of connections of each.
const NAMED_PODS: usize = 10;
const NAMED_CONNECTIONS: usize = 3;
/// Maximum lengths in Kubernetes: of a prefix and a name, with the slash between them, and of a value.
const LONGEST_KEY: usize = 253 + 1 + 63;
const LONGEST_VALUE: usize = 63;

/// A change of the labels of a namespace or of one pod, as made by `kubectl label`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelChange {
    /// Namespace, or that of the pod.
    pub namespace: String,
    /// Pod name; `None`: the labels of the namespace change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// Labels and their new values; `None`: the label is removed.
    pub labels: BTreeMap<String, Option<String>>,
}

/// Error of parsing a change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// The text is no valid object name.
    #[error("{0:?} is not the name of a namespace or a pod")]
    Name(String),
    /// The change has no labels, or too many.
    #[error("a change has 1 to {MOST_LABELS} labels")]
    Count,
    /// The text is no valid label.
    #[error("{0:?} is neither KEY=VALUE nor KEY-")]
    Label(String),
    /// The text is no valid setting.
    #[error("{0:?} is not NAME=VALUE with the name of a variable")]
    Variable(String),
    /// The settings are too long.
    #[error("the settings have {0} bytes in a request, more than {MAX_SETTINGS}")]
    Length(usize),
    /// The change of settings is empty.
    #[error("a change of settings has at least one")]
    Nothing,
    /// The text has another form than that of [`SettingsChange::to_json`].
    #[error("not settings: {0}")]
    Form(String),
}

impl LabelChange {
    /// Parses labels in the syntax of `kubectl label`: `KEY=VALUE` sets one, `KEY-` removes it.
    ///
    /// # Errors
    /// The name of namespace or pod is invalid, a label is invalid, or there are none or more than 16.
    pub fn parse<'a>(
        namespace: &str,
        pod: Option<&str>,
        labels: impl IntoIterator<Item = &'a str>,
    ) -> Result<LabelChange, ChangeError> {
        if let Some(wrong) = [Some(namespace), pod].into_iter().flatten().find(|name| !is_object_name(name)) {
            return Err(ChangeError::Name(sanitize_text(wrong)));
        }
        let labels = labels.into_iter().take(MOST_LABELS + 1).map(parse_label);
        let labels: BTreeMap<String, Option<String>> = labels.collect::<Result<_, _>>()?;
        if labels.is_empty() || labels.len() > MOST_LABELS {
            return Err(ChangeError::Count);
        }
        Ok(LabelChange { namespace: namespace.to_owned(), pod: pod.map(str::to_owned), labels })
    }

    /// Applies the change to the labels of an object.
    pub fn apply_to(&self, labels: &mut BTreeMap<String, String>) {
        for (key, value) in &self.labels {
            match value {
                Some(value) => drop(labels.insert(key.clone(), value.clone())),
                None => drop(labels.remove(key)),
            }
        }
    }

    /// Whether the labels of this pod or of its namespace change.
    pub fn concerns_pod(&self, namespace: &str, name: &str) -> bool {
        self.namespace == namespace && self.pod.as_ref().is_none_or(|pod| pod == name)
    }

    /// Returns a sentence on labels that do not affect running pods; `None`: the change has none.
    pub fn later_note(&self) -> Option<String> {
        let later: Vec<&str> =
            INJECTION_LABELS.into_iter().filter(|key| self.labels.contains_key(*key)).collect();
        let later = (!later.is_empty()).then(|| later.join(", "))?;
        Some(format!("Istio's injector reads {later}: these count for pods that are created later."))
    }

    /// Returns the labels in the syntax of `kubectl label`, separated by commas.
    pub fn labels_text(&self) -> String {
        let labels = self.labels.iter().map(|(key, value)| match value {
            Some(value) => format!("{key}={value}"),
            None => format!("{key}-"),
        });
        labels.collect::<Vec<_>>().join(",")
    }
}

/// Labels that Istio's injector reads when a pod is created.
const INJECTION_LABELS: [&str; 3] = ["istio-injection", "istio.io/rev", "sidecar.istio.io/inject"];

/// Formats such as `namespace shop, with istio.io/dataplane-mode=ambient`.
impl fmt::Display for LabelChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.pod {
            Some(pod) => write!(f, "pod {}/{pod}", self.namespace)?,
            None => write!(f, "namespace {}", self.namespace)?,
        }
        write!(f, ", with {}", self.labels_text())
    }
}

fn parse_label(text: &str) -> Result<(String, Option<String>), ChangeError> {
    let (key, value) = match text.split_once('=') {
        Some((key, value)) => (key, Some(value)),
        None => (text.strip_suffix('-').unwrap_or_default(), None),
    };
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let is_key =
        !key.is_empty() && key.len() <= LONGEST_KEY && key.bytes().all(|byte| fits(byte) || byte == b'/');
    let is_value = value.is_none_or(|value| value.len() <= LONGEST_VALUE && value.bytes().all(fits));
    if !is_key || !is_value {
        return Err(ChangeError::Label(sanitize_text(text)));
    }
    Ok((key.to_owned(), value.map(str::to_owned)))
}

/// A change that the agent can simulate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum SimulatedChange {
    /// Change of labels.
    Labels(LabelChange),
    /// Change of the agent's settings, for which it would restart.
    Settings(SettingsChange),
}

impl SimulatedChange {
    /// Returns the path of the agent's debug endpoint that simulates the change.
    pub fn debug_path(&self) -> String {
        let query = match self {
            SimulatedChange::Labels(change) => {
                let pod = change.pod.as_ref().map(|pod| format!("&pod={pod}")).unwrap_or_default();
                format!("namespace={}{pod}&labels={}", change.namespace, change.labels_text())
            }
            SimulatedChange::Settings(change) => format!("settings={}", percent_encode(&change.to_json())),
        };
        format!("/debug/simulate?{query}")
    }
}

impl fmt::Display for SimulatedChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SimulatedChange::Labels(change) => change.fmt(f),
            SimulatedChange::Settings(change) => change.fmt(f),
        }
    }
}

/// Response of a node's agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSimulation {
    /// Schema: [`SIMULATION_SCHEMA`].
    pub schema: String,
    /// Capture mode of the node's ambient pods; `None`: ambient mode is off there.
    #[serde(deserialize_with = "known_value")]
    pub mode: Option<RedirectionMode>,
    /// Whether the agent has read all pods and namespaces, and learns of changes; otherwise some may be missing.
    pub synced: bool,
    /// Whether the namespace whose labels, or whose pod's labels, would change does not exist.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub namespace_missing: bool,
    /// Whether a ztunnel of the node serves its pods.
    pub ztunnel_ready: bool,
    /// Problem of the node that delays capture; `None`: no problem.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Source of the node's probes of pods with in-pod capture, for each captured IP family; empty in other modes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub probe_sources: Vec<IpAddr>,
    /// Sources among [`NodeSimulation::probe_sources`] that are addresses of the node. NetworkPolicies do not apply to traffic from
    /// a pod's own node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub node_probe_sources: Vec<IpAddr>,
    /// Pods of the node affected by the change of labels, by name; for settings all pods.
    pub pods: Vec<SimulatedPod>,
    /// Reasons why an agent with these settings would not start, one per mistake; nothing else is simulated then.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mistakes: Vec<String>,
    /// Settings whose change has effects that are not simulated, and other facts about the change unknown to the agent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_simulated: Vec<String>,
}

/// A pod before and after the change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SimulatedPod {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// Current capture mode of the pod in the mesh; `None`: it is outside, or, if `undetermined`, unknown.
    #[serde(deserialize_with = "known_value")]
    pub before: Option<RedirectionMode>,
    /// Capture mode of the pod after the change; `None`: it would be outside, or, if `undetermined`, unknown.
    #[serde(deserialize_with = "known_value")]
    pub after: Option<RedirectionMode>,
    /// Reason why it would belong to the mesh, or would not.
    pub reason: StateReason,
    /// Number of the pod's open TCP connections that would be redirected if they were opened after the change; `None`: unknown, or
    /// the pod would not join.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<usize>,
    /// The first of these connections, each as `CLIENT to SERVER` with ports.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub listed_connections: Vec<String>,
    /// Ports that ztunnel opens in the pod's network namespace and that the pod itself uses, in ascending order: ztunnel would
    /// refuse it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub taken_ports: Vec<u16>,
    /// Whether these connections would be reset; otherwise they continue outside the mesh until they close.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub resets_connections: bool,
    /// Traffic of the pod that would be excluded by intent, one text for each kind.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exceptions: Vec<String>,
    /// Exclusions that the pod requests and that would not be applied, each as a sentence without a full stop.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused_exceptions: Vec<String>,
    /// Changes for a pod that stays in ambient mode, one text for each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<String>,
    /// Whether the facts do not suffice to decide: the agent does not know the pod's namespace, or did not answer.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub undetermined: bool,
}

model::word_enum! {
    /// Effect of a change on a pod.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum MembershipEffect {
        /// The pod would join ambient mode.
        Joins = "joins",
        /// The pod would leave ambient mode.
        Leaves = "leaves",
        /// The pod would stay in ambient mode, with a change of its capture.
        Changes = "changes",
        /// The effect is unknown.
        #[default]
        Unknown = "unknown",
        /// Nothing would change for the pod.
        Unchanged = "unchanged",
    }
}

impl SimulatedPod {
    /// Returns the effect of the change on the pod.
    pub fn effect(&self) -> MembershipEffect {
        let is_ambient =
            |mode: Option<RedirectionMode>| mode.is_some_and(|mode| mode != RedirectionMode::Sidecar);
        match (is_ambient(self.before), is_ambient(self.after)) {
            _ if self.undetermined => MembershipEffect::Unknown,
            (false, true) => MembershipEffect::Joins,
            (true, false) => MembershipEffect::Leaves,
            (true, true) if !self.changes.is_empty() || self.before != self.after => {
                MembershipEffect::Changes
            }
            _ => MembershipEffect::Unchanged,
        }
    }
}

/// A problem after the change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimulatedProblem<'a> {
    /// Short, stable code, shared with the finding of `millrace simulate`.
    pub code: &'static str,
    /// Pod that would have the problem; `None`: the node.
    pub pod: Option<&'a SimulatedPod>,
    /// Description of the problem, as a clause.
    pub message: String,
}

impl NodeSimulation {
    /// Returns the known problems after the change, those of the node first.
    pub fn problems(&self) -> Vec<SimulatedProblem<'_>> {
        let of_node = |code, message| SimulatedProblem { code, pod: None, message };
        let joining = self.pods.iter().filter(|pod| pod.effect() == MembershipEffect::Joins).count();
        let unsynced = "its agent may not know all pods and namespaces as they are: some may be missing";
        let unsynced = (!self.synced).then(|| of_node("not-synced", unsynced.to_owned()));
        let unserved = (joining > 0 && !self.ztunnel_ready).then(|| {
            let message = format!("no ztunnel serves it, and {joining} of its pods would join");
            of_node("ztunnel-not-ready", message)
        });
        let degraded = self.problem.iter().filter(|_| joining > 0);
        let degraded = degraded.map(|why| of_node("node-degraded", why.clone()));
        let of_pods = self.pods.iter().flat_map(SimulatedPod::problems);
        unsynced.into_iter().chain(unserved).chain(degraded).chain(of_pods).collect()
    }
}

impl SimulatedPod {
    fn problems(&self) -> impl Iterator<Item = SimulatedProblem<'_>> {
        let of_pod = |code, message| SimulatedProblem { code, pod: Some(self), message };
        let is_captured_anew = matches!(self.effect(), MembershipEffect::Joins | MembershipEffect::Changes);
        let is_refused = is_captured_anew && !self.refused_exceptions.is_empty();
        let refused = is_refused.then(|| of_pod("exception-refused", self.refused_exceptions.join("; ")));
        let taken = list_ports(&self.taken_ports).map(|ports| {
            let message = format!(
                "it has {ports}, which ztunnel would open in it: ztunnel would refuse it, and its traffic would be held"
            );
            of_pod("ztunnel-port-taken", message)
        });
        refused.into_iter().chain(taken)
    }
}

/// Returns port numbers as a clause, such as `ports 15001, 15008`; `None`: no ports.
pub fn list_ports(ports: &[u16]) -> Option<String> {
    let list = ports.iter().map(u16::to_string).collect::<Vec<_>>().join(", ");
    let noun = if ports.len() == 1 { "port" } else { "ports" };
    (!ports.is_empty()).then(|| format!("{noun} {list}"))
}

/// Returns notes that complement the table of these pods, one sentence each.
pub fn simulation_notes<'a>(
    change: &SimulatedChange,
    pods: impl Iterator<Item = &'a SimulatedPod>,
) -> Vec<String> {
    let (mut leave, mut uncounted, mut named) = (false, 0, Vec::new());
    for pod in pods {
        match pod.effect() {
            MembershipEffect::Leaves => leave |= pod.before == Some(RedirectionMode::InPod),
            MembershipEffect::Joins => {
                uncounted += usize::from(pod.connections.is_none());
                named.extend(connections_note(pod));
            }
            _ => {}
        }
    }
    let ends = "Connections through ztunnel of pods that would leave end; others go on.".to_owned();
    let uncounted = (uncounted > 0).then(|| {
        format!("Connections of {} that would join could not be counted.", format_count(uncounted, "pod"))
    });
    let more = named.len().saturating_sub(NAMED_PODS);
    named.truncate(NAMED_PODS);
    named.extend(
        (more > 0).then(|| format!("Connections of {} are in the JSON.", format_count(more, "more pod"))),
    );
    let later = match change {
        SimulatedChange::Labels(change) => change.later_note(),
        SimulatedChange::Settings(_) => None,
    };
    named.into_iter().chain(leave.then_some(ends)).chain(uncounted).chain(later).collect()
}

/// Returns a note about connections; `None`: the pod has no known connections.
fn connections_note(pod: &SimulatedPod) -> Option<String> {
    let shown = pod.listed_connections.get(..NAMED_CONNECTIONS).unwrap_or(&pod.listed_connections);
    let more = more_clause(pod.connections?.saturating_sub(shown.len()));
    let note = format!("Connections of {}/{}: {}{more}.", pod.namespace, pod.name, shown.join(", "));
    (!shown.is_empty()).then(|| sanitize_text(&note))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change() -> SimulatedChange {
        SimulatedChange::Labels(LabelChange::default())
    }

    #[test]
    fn labels_are_read_as_kubectl_reads_them() {
        let change =
            LabelChange::parse("shop", None, ["istio.io/dataplane-mode=ambient", "istio-injection-", "a="]);
        let change = change.unwrap();
        assert_eq!(change.labels_text(), "a=,istio-injection-,istio.io/dataplane-mode=ambient");
        let again = change.labels_text();
        assert_eq!(LabelChange::parse("shop", None, again.split(',')).unwrap(), change);
        let mut labels = BTreeMap::from([("istio-injection", "enabled"), ("kept", "1")])
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        change.apply_to(&mut labels);
        assert_eq!(labels.keys().collect::<Vec<_>>(), ["a", "istio.io/dataplane-mode", "kept"]);
    }

    #[test]
    fn labels_that_only_count_later_are_named() {
        let note =
            |labels: &[&str]| LabelChange::parse("shop", None, labels.iter().copied()).unwrap().later_note();
        assert_eq!(note(&["istio.io/dataplane-mode=ambient", "a=b"]), None);
        assert_eq!(
            note(&["istio.io/rev=canary", "istio-injection-"]).unwrap(),
            "Istio's injector reads istio-injection, istio.io/rev: these count for pods that are created later."
        );
    }

    #[test]
    fn what_becomes_of_connections_that_no_number_shows_is_said() {
        let pod = |before, after, connections| SimulatedPod {
            before,
            after,
            connections,
            ..SimulatedPod::default()
        };
        let (in_pod, node) = (Some(RedirectionMode::InPod), Some(RedirectionMode::Node));
        let notes = |pods: &[SimulatedPod]| simulation_notes(&change(), pods.iter());
        assert_eq!(
            notes(&[pod(None, in_pod, Some(0)), pod(in_pod, in_pod, None), pod(node, None, None)]),
            [""; 0]
        );
        let all = [pod(None, in_pod, None), pod(None, in_pod, None), pod(in_pod, None, None)];
        let expected = [
            "Connections through ztunnel of pods that would leave end; others go on.",
            "Connections of 2 pods that would join could not be counted.",
        ];
        assert_eq!(notes(&all), expected);
    }

    #[test]
    fn the_first_connections_of_the_first_pods_are_named() {
        let pod = |name: String, connections| SimulatedPod {
            namespace: "shop".to_owned(),
            name,
            after: Some(RedirectionMode::InPod),
            connections: Some(connections),
            listed_connections: (0..connections.min(4))
                .map(|at| format!("10.0.0.7:{at} to 10.0.0.9:80"))
                .collect(),
            ..SimulatedPod::default()
        };
        let one = [pod("web".to_owned(), 1), pod("idle".to_owned(), 0), pod("api".to_owned(), 25)];
        let expected = [
            "Connections of shop/web: 10.0.0.7:0 to 10.0.0.9:80.",
            "Connections of shop/api: 10.0.0.7:0 to 10.0.0.9:80, 10.0.0.7:1 to 10.0.0.9:80, 10.0.0.7:2 to 10.0.0.9:80, and 22 more.",
        ];
        assert_eq!(simulation_notes(&change(), one.iter()), expected);
        let many: Vec<_> = (0..12).map(|at| pod(format!("web{at}"), 1)).collect();
        let notes = simulation_notes(&change(), many.iter());
        assert_eq!((notes.len(), &*notes[10]), (11, "Connections of 2 more pods are in the JSON."));
    }

    #[test]
    fn no_label_is_refused() {
        let long = "v".repeat(64);
        for text in
            ["", "=x", "key", "key with space=x", "key=a b", &format!("key={long}"), "k\u{e9}y=x", "-"]
        {
            let parsed = LabelChange::parse("shop", None, [text]);
            assert!(matches!(parsed, Err(ChangeError::Label(_))), "{text}: {parsed:?}");
        }
        for (namespace, pod) in [("", None), ("Shop", None), ("shop", Some("a b")), ("shop", Some(""))] {
            let parsed = LabelChange::parse(namespace, pod, ["a=b"]);
            assert!(matches!(parsed, Err(ChangeError::Name(_))), "{parsed:?}");
        }
        let many: Vec<String> = (0..17).map(|at| format!("key{at}=x")).collect();
        assert_eq!(
            LabelChange::parse("shop", None, many.iter().map(String::as_str)),
            Err(ChangeError::Count)
        );
        assert_eq!(LabelChange::parse("shop", None, []), Err(ChangeError::Count));
    }

    #[test]
    fn a_sidecar_is_no_ambient_mode() {
        let effect = |before, after| SimulatedPod { before, after, ..SimulatedPod::default() }.effect();
        let (sidecar, in_pod) = (Some(RedirectionMode::Sidecar), Some(RedirectionMode::InPod));
        assert_eq!(effect(None, in_pod), MembershipEffect::Joins);
        assert_eq!(effect(in_pod, sidecar), MembershipEffect::Leaves);
        assert_eq!(effect(sidecar, sidecar), MembershipEffect::Unchanged);
        assert_eq!(effect(None, sidecar), MembershipEffect::Unchanged);
        assert_eq!(effect(in_pod, Some(RedirectionMode::Node)), MembershipEffect::Changes);
        let undetermined = SimulatedPod { after: in_pod, undetermined: true, ..SimulatedPod::default() };
        assert_eq!(undetermined.effect(), MembershipEffect::Unknown);
    }
}
