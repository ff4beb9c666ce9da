//! Simulation of a change of labels or of the agent's settings: which pods of a node it would bring into ambient mode or out of it.

mod settings;

use std::{collections::BTreeMap, fmt, net::IpAddr};

use pod_status::RedirectionMode;
use serde::{Deserialize, Serialize};

use crate::{
    document::known_value,
    pod::StateReason,
    text::{format_count, is_object_name, more_clause, sanitize_text},
};

pub use settings::{MAX_SETTINGS, SettingsChange, SettingsChangeError};

/// Name and version of the answer's form.
pub const SIMULATION_SCHEMA: &str = "millrace.simulation/v1";
/// Labels that one change may have.
const MOST_LABELS: usize = 16;
/// Pods whose connections notes name, and how many of each.
const NAMED_PODS: usize = 10;
const NAMED_CONNECTIONS: usize = 3;
/// Lengths that Kubernetes allows: of a prefix and a name, with the slash between them, and of a value.
const LONGEST_KEY: usize = 253 + 1 + 63;
const LONGEST_VALUE: usize = 63;

/// A change of the labels of a namespace or of one pod, as `kubectl label` makes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelChange {
    /// The namespace, or that of the pod.
    pub namespace: String,
    /// The pod's name; `None` means that the labels of the namespace change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// Labels and their new values; `None` means that the label is removed.
    pub labels: BTreeMap<String, Option<String>>,
}

/// Why a change cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LabelChangeError {
    /// The text is no name of an object.
    #[error("{0:?} is no name of a namespace or a pod")]
    Name(String),
    /// Nothing would change, or too much.
    #[error("a change has 1 to {MOST_LABELS} labels")]
    Count,
    /// The text is no label.
    #[error("{0:?} is neither KEY=VALUE nor KEY-")]
    Label(String),
}

impl LabelChange {
    /// Parses labels as `kubectl label` takes them: `KEY=VALUE` sets one, `KEY-` removes it.
    ///
    /// # Errors
    /// The names are none of a namespace and a pod, one of the others is no label, or there are none or more than 16.
    pub fn parse<'a>(
        namespace: &str,
        pod: Option<&str>,
        labels: impl IntoIterator<Item = &'a str>,
    ) -> Result<LabelChange, LabelChangeError> {
        if let Some(wrong) = [Some(namespace), pod].into_iter().flatten().find(|name| !is_object_name(name)) {
            return Err(LabelChangeError::Name(sanitize_text(wrong)));
        }
        let labels = labels.into_iter().take(MOST_LABELS + 1).map(parse_label);
        let labels: BTreeMap<String, Option<String>> = labels.collect::<Result<_, _>>()?;
        if labels.is_empty() || labels.len() > MOST_LABELS {
            return Err(LabelChangeError::Count);
        }
        Ok(LabelChange { namespace: namespace.to_owned(), pod: pod.map(str::to_owned), labels })
    }

    /// Changes the labels of an object.
    pub fn apply_to(&self, labels: &mut BTreeMap<String, String>) {
        for (key, value) in &self.labels {
            match value {
                Some(value) => drop(labels.insert(key.clone(), value.clone())),
                None => drop(labels.remove(key)),
            }
        }
    }

    /// Whether the labels of this pod change.
    pub fn is_of_pod(&self, name: &str) -> bool {
        self.pod.as_deref() == Some(name)
    }

    /// Returns the path of the agent's debug endpoint that simulates it.
    pub fn debug_path(&self) -> String {
        let pod = self.pod.as_ref().map(|pod| format!("&pod={pod}")).unwrap_or_default();
        format!("/debug/simulate?namespace={}{pod}&labels={}", self.namespace, self.labels_text())
    }

    /// Returns a sentence on labels that concern no pod that runs; `None`: there are none among these.
    pub fn later_note(&self) -> Option<String> {
        let later: Vec<&str> =
            INJECTION_LABELS.into_iter().filter(|key| self.labels.contains_key(*key)).collect();
        (!later.is_empty()).then(|| {
            format!(
                "Istio's injector reads {}: these count for pods that are created later.",
                later.join(", ")
            )
        })
    }

    /// Returns the labels as `kubectl label` takes them, separated by commas.
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

/// Such as `namespace shop, with istio.io/dataplane-mode=ambient`.
impl fmt::Display for LabelChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.pod {
            Some(pod) => write!(f, "pod {}/{pod}", self.namespace)?,
            None => write!(f, "namespace {}", self.namespace)?,
        }
        write!(f, ", with {}", self.labels_text())
    }
}

fn parse_label(text: &str) -> Result<(String, Option<String>), LabelChangeError> {
    let (key, value) = match text.split_once('=') {
        Some((key, value)) => (key, Some(value)),
        None => (text.strip_suffix('-').unwrap_or_default(), None),
    };
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let is_key =
        !key.is_empty() && key.len() <= LONGEST_KEY && key.bytes().all(|byte| fits(byte) || byte == b'/');
    let is_value = value.is_none_or(|value| value.len() <= LONGEST_VALUE && value.bytes().all(fits));
    if !is_key || !is_value {
        return Err(LabelChangeError::Label(sanitize_text(text)));
    }
    Ok((key.to_owned(), value.map(str::to_owned)))
}

/// A change that an agent can simulate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum SimulatedChange {
    /// Of labels.
    Labels(LabelChange),
    /// Of the agent's settings, for which it would restart.
    Settings(SettingsChange),
}

impl SimulatedChange {
    /// Returns the path of the agent's debug endpoint that simulates it.
    pub fn debug_path(&self) -> String {
        match self {
            SimulatedChange::Labels(change) => change.debug_path(),
            SimulatedChange::Settings(change) => change.debug_path(),
        }
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

/// The answer of a node's agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSimulation {
    /// [`SIMULATION_SCHEMA`].
    pub schema: String,
    /// The mode in which the node captures ambient pods; `None`: ambient mode is off there.
    #[serde(deserialize_with = "known_value")]
    pub mode: Option<RedirectionMode>,
    /// The agent has read all pods and namespaces; otherwise some may be missing.
    pub synced: bool,
    /// The labels of a namespace, or of a pod in it, would change, and there is no such namespace.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub namespace_missing: bool,
    /// A ztunnel of the node serves its pods.
    pub ztunnel_ready: bool,
    /// Problem of the node that delays capture; `None`: there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// The source of the node's probes of pods with in-pod redirection, of each family that is captured; empty in other modes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub probe_sources: Vec<IpAddr>,
    /// Sources among [`NodeSimulation::probe_sources`] that are addresses of the node. No NetworkPolicy applies to what a pod's own node sends.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub node_probe_sources: Vec<IpAddr>,
    /// The node's pods whose labels, or whose namespace's labels, would change, by name; all, if settings would.
    pub pods: Vec<SimulatedPod>,
    /// Why an agent with these settings would not start, one mistake each; nothing else is simulated then.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mistakes: Vec<String>,
    /// Settings that would change and whose effect is not simulated, and what else the agent does not know of the change.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_simulated: Vec<String>,
}

/// A pod before and after the change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SimulatedPod {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The mode in which the pod belongs to the mesh now; `None`: it does not, or, if `undetermined`, could not be determined.
    #[serde(deserialize_with = "known_value")]
    pub before: Option<RedirectionMode>,
    /// The mode in which the pod would belong to the mesh; `None`: it would not, or, if `undetermined`, could not be determined.
    #[serde(deserialize_with = "known_value")]
    pub after: Option<RedirectionMode>,
    /// Why it would, or would not.
    pub reason: StateReason,
    /// Number of the pod's TCP connections with others that are open now and would be redirected if they were opened after the change;
    /// `None`: could not be determined, or the pod would not join.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<usize>,
    /// The first of these connections, each as `CLIENT to SERVER` with ports.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub listed_connections: Vec<String>,
    /// Ports that ztunnel opens in the pod's network namespace and that the pod has itself, in ascending order: ztunnel would refuse it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub taken_ports: Vec<u16>,
    /// These connections would be reset; otherwise they go on outside of the mesh until they close.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub resets_connections: bool,
    /// Traffic of the pod that would stay outside of the mesh by intent, one text for each kind.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exceptions: Vec<String>,
    /// Exceptions that the pod asks for and that would not be applied, each in a sentence without a full stop.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused_exceptions: Vec<String>,
    /// Changes for a pod that stays in ambient mode, one text for each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<String>,
    /// Not enough is known of the pod to decide: its agent does not know its namespace, or did not answer.
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
        /// The pod would stay in ambient mode, and something of its capture would change.
        Changes = "changes",
        /// Could not be determined.
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

/// A problem that there would be after the change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimulatedProblem<'a> {
    /// A short, stable name, which is that of a finding of `millrace simulate`.
    pub code: &'static str,
    /// The pod that would have the problem; `None`: the node.
    pub pod: Option<&'a SimulatedPod>,
    /// Description of the problem, as a clause.
    pub message: String,
}

impl NodeSimulation {
    /// Returns what would be wrong after the change, as far as the agent knows: first of the node.
    pub fn problems(&self) -> Vec<SimulatedProblem<'_>> {
        let of_node = |code, message| SimulatedProblem { code, pod: None, message };
        let joining = self.pods.iter().filter(|pod| pod.effect() == MembershipEffect::Joins).count();
        let unsynced = "its agent has not read all pods and namespaces yet: some may be missing".to_owned();
        let unsynced = (!self.synced).then(|| of_node("not-synced", unsynced));
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

/// Returns port numbers in a clause, such as `ports 15001, 15008`; `None`: there are none.
pub fn list_ports(ports: &[u16]) -> Option<String> {
    let list = ports.iter().map(u16::to_string).collect::<Vec<_>>().join(", ");
    let noun = if ports.len() == 1 { "port" } else { "ports" };
    (!ports.is_empty()).then(|| format!("{noun} {list}"))
}

/// Returns what the table of these pods does not say, one sentence each.
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

/// `None`: the pod has no connections, as far as is known.
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
            assert!(matches!(parsed, Err(LabelChangeError::Label(_))), "{text}: {parsed:?}");
        }
        for (namespace, pod) in [("", None), ("Shop", None), ("shop", Some("a b")), ("shop", Some(""))] {
            let parsed = LabelChange::parse(namespace, pod, ["a=b"]);
            assert!(matches!(parsed, Err(LabelChangeError::Name(_))), "{parsed:?}");
        }
        let many: Vec<String> = (0..17).map(|at| format!("key{at}=x")).collect();
        assert_eq!(
            LabelChange::parse("shop", None, many.iter().map(String::as_str)),
            Err(LabelChangeError::Count)
        );
        assert_eq!(LabelChange::parse("shop", None, []), Err(LabelChangeError::Count));
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
