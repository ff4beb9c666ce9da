//! State document.

use std::{fmt, net::IpAddr};

use model::PodUid;
use pod_status::RedirectionMode;
use serde::{Deserialize, Serialize};

use crate::{
    document::known_value,
    findings::{NodeFinding, PreflightCheck, StateCause},
    network::NetworkState,
    pod::PodState,
};

/// Reason why an agent that has not received its lists of pods and namespaces yet is unhealthy. [`crate::tables::not_known`] does
/// not repeat it.
pub const NOT_SYNCED: &str = "pods and namespaces are not known yet";

/// Name and version of the document's schema. An added member or value keeps the version; a removed one, or a changed meaning,
/// increments it. Therefore every struct has defaults, and every enumeration a value for unknown ones: see [`StateReport::parse`].
pub const SCHEMA: &str = "millrace.state/v1";
/// Maximum size of a document as JSON, in bytes. That of a node with thousands of pods has a few megabytes.
pub const MAX_DOCUMENT: usize = 64 * 1024 * 1024;

/// State document. Times are RFC 3339 in UTC.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StateReport {
    /// Schema: [`SCHEMA`].
    pub schema: String,
    /// Version of the program that made the document.
    pub version: String,
    /// Observer, and time of the observation.
    pub observation: Provenance,
    /// State of the node.
    pub node: NodeState,
    /// Faults and unknown facts of the node, errors first. Derived from the other members, see [`StateReport::fill_conclusions`].
    pub findings: Vec<NodeFinding>,
    /// Causes of the states of pods, the worst state first. Derived from the other members.
    pub causes: Vec<StateCause>,
    /// Responses to probes, by component.
    pub health: Vec<PartHealth>,
    /// Checks of the node at the agent's start; empty until they are done, and without an agent.
    pub preflight: Vec<PreflightCheck>,
    /// Our files on the node, and whether they match the desired state.
    pub installation: Vec<InstalledFile>,
    /// ztunnel pods of the node.
    pub ztunnels: Vec<ZtunnelState>,
    /// Pods of the node, by namespace and name.
    pub pods: Vec<PodState>,
    /// Our objects in the node's network, desired and observed.
    pub network: NetworkState,
    /// Steps that would be taken now, in order; empty if no action is needed.
    pub plan: Vec<PlanStep>,
    /// Recent changes, newest first.
    pub history: Vec<ChangeRecord>,
    /// Effective settings.
    pub config: Vec<EffectiveSetting>,
}

/// Observer of a state, and time of the observation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Provenance {
    /// Time of the query to the kernel.
    pub observed_at: String,
    /// Duration of the observation, in milliseconds.
    pub duration_ms: f64,
    /// Observer.
    pub observer: Observer,
    /// Parts that could not be observed, and why. Their state is unknown, neither good nor bad.
    pub unobserved: Vec<Unobserved>,
}

/// Program that observed the state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Observer {
    /// The running agent.
    #[default]
    Agent,
    /// A command, without an agent: the desired state is the one recorded by the last agent.
    #[serde(other)]
    Command,
}

/// A part of the state that could not be observed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Unobserved {
    /// Part, for programs.
    pub part: StatePart,
    /// Part, as text.
    pub description: String,
    /// Reason, as a sentence.
    pub message: String,
}

impl Unobserved {
    /// Returns a value with the part's usual description.
    pub fn new(part: StatePart, why: impl fmt::Display) -> Unobserved {
        Unobserved { part, description: part.message().to_owned(), message: why.to_string() }
    }
}

model::word_enum! {
    /// A part of the state that is observed by itself, and its description.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum StatePart {
        /// Facts that only the agent knows.
        Agent = "agent", "the agent's own view",
        /// The desired state.
        Desired = "desired", "the desired state",
        /// The files of the installation.
        Installation = "installation", "the files of the installation",
        /// The node's network as a whole.
        #[default]
        Network = "network", "the node's network",
        /// The node's firewall rules.
        Firewall = "firewall", "the node's firewall",
        /// The node's sets of addresses.
        Ipsets = "ipsets", "the sets of probed pods",
        /// The network namespace of a ztunnel.
        ZtunnelNamespace = "ztunnel-namespace", "ztunnel's network namespace",
        /// The network namespaces of pods.
        PodNamespaces = "pod-namespaces", "the network namespaces of pods",
        /// Pods without a record of an ADD.
        UnrecordedPods = "unrecorded-pods", "pods that started before the plugin was installed",
        /// Current pods or namespaces: their watch fails.
        ApiObjects = "api-objects", "pods and namespaces as they are now",
        /// A part unknown to this version.
        #[serde(other)]
        Other = "other", "another part of the state",
    }
}

/// State of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeState {
    /// Name of the node.
    pub name: String,
    /// Time of the agent's start; `None`: no agent runs.
    pub agent_started_at: Option<String>,
    /// Whether the agent runs in ambient mode.
    pub ambient_enabled: bool,
    /// Capture mode in use for ambient pods; `None`: ambient mode is off, or unknown without an agent.
    #[serde(deserialize_with = "known_value")]
    pub mode: Option<RedirectionMode>,
    /// Configured capture mode: `node`, `in-pod` or `auto`; empty when ambient mode is off.
    pub configured_mode: String,
    /// Policy for traffic while no ztunnel is ready, with node-level capture: `hold`, `reject` or `open`.
    pub no_ztunnel_policy: Option<String>,
    /// Slot that accepts new connections, with node-level capture; `None`: no ztunnel is ready.
    pub active_slot: Option<u32>,
    /// Reason why pods cannot be enrolled, or another fault of the node; `None`: no fault.
    pub problem: Option<String>,
    /// Whether facts about pods and namespaces have been read completely since the agent's start; without ambient mode, those about
    /// pods.
    pub synced: bool,
}

/// One component's response to a probe.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PartHealth {
    /// Component: `installer` or `agent`.
    pub component: String,
    /// Whether the component is healthy.
    pub healthy: bool,
    /// Fault; empty if healthy.
    pub message: String,
}

/// One of our files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InstalledFile {
    /// Kind: `plugin`, `entry`, `kubeconfig`, `shared-config`, `socket`.
    pub kind: String,
    /// Path, as seen by the daemon.
    pub path: String,
    /// Whether the file matches the desired state.
    pub correct: bool,
    /// Description of the file, or its fault.
    pub message: String,
}

/// A ztunnel pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ZtunnelState {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// UID of the pod.
    pub uid: PodUid,
    /// IP addresses of the pod.
    pub ips: Vec<IpAddr>,
    /// Whether the API reports the pod as ready.
    pub ready: bool,
    /// Whether the pod is being deleted.
    pub terminating: bool,
    /// Whether it accepts new connections.
    pub active: bool,
    /// Slot of the ztunnel, with node-level capture.
    pub slot: Option<u32>,
    /// Node's end of its link, with node-level capture.
    pub link: Option<String>,
    /// Whether this ztunnel answers DNS for pods of the mesh.
    pub dns_proxy: bool,
    /// Whether the ztunnel is connected to the agent, with in-pod capture; `None` if a connection of unknown origin may be its own.
    pub connected: Option<bool>,
    /// Whether the ztunnel has acknowledged its snapshot of pods, before which it is not ready; `None` if it is not known to be
    /// connected.
    pub synced: Option<bool>,
}

/// A step of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PlanStep {
    /// Short, stable code, as in the metric of steps.
    pub kind: String,
    /// Description of the step.
    pub message: String,
    /// Operations of the step, one each, as commands of `ip`, `ipset`, `sysctl` and input of `iptables-restore`.
    pub operations: Vec<String>,
}

/// A change that was made or attempted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ChangeRecord {
    /// Start of the change.
    pub started_at: String,
    /// Trigger of the change, such as `pod shop/web joined`, `drift` or `start`.
    pub cause: String,
    /// The change itself, as text.
    pub action: String,
    /// Pod that was changed, as `NAMESPACE/NAME`; `None`: the node.
    pub pod: Option<String>,
    /// Duration, in milliseconds.
    pub duration_ms: f64,
    /// Outcome of the change.
    pub outcome: ChangeStatus,
    /// Error, if it failed; `None`: it succeeded.
    pub error: Option<String>,
    /// Number of earlier repetitions; the entry describes the last one.
    pub repeats: u32,
    /// Start of the first repetition; `None`: not repeated.
    pub first_started_at: Option<String>,
}

impl ChangeRecord {
    /// Whether the change repeats `before`: for the same pod and with the same result, regardless of the triggering process's ID.
    /// Repeated failures of an attempt are equal whatever triggered them.
    pub fn repeats_change(&self, before: &ChangeRecord) -> bool {
        let is_same_text = |now: &str, then: &str| without_process(now) == without_process(then);
        (&self.pod, &self.error) == (&before.pod, &before.error)
            && is_same_text(&self.action, &before.action)
            && (self.error.is_some() || is_same_text(&self.cause, &before.cause))
    }

    /// Returns the number of repetitions, and since when, as text; `None`: once.
    pub fn repeats_text(&self) -> Option<String> {
        let since = self.first_started_at.as_deref().filter(|_| self.repeats > 0)?;
        Some(format!("{} times since {since}", self.repeats.saturating_add(1)))
    }
}

/// Returns the text without the process ID at its end.
fn without_process(text: &str) -> &str {
    text.rsplit_once(" (process ").map_or(text, |(before, _)| before)
}

/// Outcome of a change.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChangeStatus {
    /// The change was made.
    Succeeded,
    /// The change was not made, or only partially.
    #[default]
    #[serde(other)]
    Failed,
}

/// An effective setting. None of the settings is a secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EffectiveSetting {
    /// Name of the flag, without dashes.
    pub name: String,
    /// Value of the setting.
    pub value: String,
    /// Source: `default`, `flag`, or `environment NAME`.
    pub source: String,
}

impl StateReport {
    /// Returns the pod of this name.
    pub fn pod(&self, namespace: &str, name: &str) -> Option<&PodState> {
        self.pods.iter().find(|pod| pod.namespace == namespace && pod.name == name)
    }

    /// Whether the list of pods is complete: it was read to its end, and no part that could add pods is unobserved.
    pub fn knows_all_pods(&self) -> bool {
        let is_of_pods = |unobserved: &Unobserved| {
            matches!(unobserved.part, StatePart::Agent | StatePart::Desired | StatePart::UnrecordedPods)
        };
        let is_read = self.node.synced || !self.node.ambient_enabled;
        is_read && !self.observation.unobserved.iter().any(is_of_pods)
    }

    /// Returns all differences, as sentences; empty: kernel and files match the desired state.
    pub fn differences(&self) -> Vec<String> {
        let files = self.installation.iter().filter(|file| !file.correct);
        let files = files.map(|file| format!("{} {}: {}", file.kind, file.path, file.message));
        let network = self.network.differences().map(|(kind, found)| format!("{kind}: {found}"));
        let pods = self.pods.iter().flat_map(|pod| {
            let found = pod.kernel.differences.iter();
            found.map(|difference| format!("pod {}/{}: {difference}", pod.namespace, pod.name))
        });
        files.chain(network).chain(pods).collect()
    }
}
