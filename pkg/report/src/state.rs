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
    /// Name and version of the schema: `millrace.state/v1`.
    pub schema: String,
    /// Version of the program that produced the document.
    pub version: String,
    /// Observer of the node, and time of the observation.
    pub observation: Provenance,
    /// The node, and how the agent works on it.
    pub node: NodeState,
    /// Everything about the node that differs from the desired state, or is unknown; errors first. Derived from the other
    /// members.
    pub findings: Vec<NodeFinding>,
    /// Pods by state and cause: the worst state first, and in each the cause of most pods. Derived from the other members.
    pub causes: Vec<StateCause>,
    /// Health of each part, as the probes report it.
    pub health: Vec<PartHealth>,
    /// Results of the [checks of the node](preflight.md) at the agent's start, by code; empty until they are done, and without
    /// an agent.
    pub preflight: Vec<PreflightCheck>,
    /// Our files on the node.
    pub installation: Vec<InstalledFile>,
    /// ztunnel pods of the node.
    pub ztunnels: Vec<ZtunnelState>,
    /// Pods of the node, by namespace and name.
    pub pods: Vec<PodState>,
    /// Our objects in the node's network.
    pub network: NetworkState,
    /// Operations that the agent would perform now, in order; empty: none, as far as the node was observed.
    pub plan: Vec<PlanStep>,
    /// The 400 most recent changes, newest first; also those of earlier agents, unless the node was restarted since. If a pod
    /// (or the node) has more than 20, its oldest are dropped first. A change that repeats the last one of the same pod within
    /// 15 minutes shares its entry, which describes the last repetition.
    pub history: Vec<ChangeRecord>,
    /// Effective settings, except the template of the plugin's entry, which the conflist shows.
    pub config: Vec<EffectiveSetting>,
}

/// Observer of a state, and time of the observation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Provenance {
    /// Start of the observation; never before the request that it answers.
    pub observed_at: String,
    /// Duration of the observation, in milliseconds.
    pub duration_ms: f64,
    /// Program that observed the node: `agent`, or `command`, if no agent answered. The desired state is then the one that the
    /// last agent saved.
    pub observer: Observer,
    /// Parts that could not be observed. Their state is unknown, neither good nor bad.
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
    /// Part of the state: `agent`, `desired`, `installation`, `network`, `firewall`, `ipsets`, `ztunnel-namespace`,
    /// `pod-namespaces`, `unrecorded-pods`, `api-objects` (pods and namespaces as they are now, while their watch fails), and
    /// `other` for a part that this version does not know.
    pub part: StatePart,
    /// Description of the part.
    pub description: String,
    /// Reason why the part could not be observed.
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
    /// Start of the agent; `None`: no agent answers.
    pub agent_started_at: Option<String>,
    /// Whether the agent's ambient mode is on.
    pub ambient_enabled: bool,
    /// Capture mode in use for ambient pods: `node` or `in-pod`; `None`: ambient mode is off, or no agent reports the mode.
    #[serde(deserialize_with = "known_value")]
    pub mode: Option<RedirectionMode>,
    /// Configured capture mode: `node`, `in-pod` or `auto`; empty: ambient mode is off.
    pub configured_mode: String,
    /// With node-level capture: policy for traffic while no ztunnel is ready: `hold`, `reject` or `open`.
    pub no_ztunnel_policy: Option<String>,
    /// With node-level capture: slot to which the kernel sends new connections; `None`: no ztunnel is ready.
    pub active_slot: Option<u32>,
    /// Reason why pods cannot be enrolled, or another problem of the node.
    pub problem: Option<String>,
    /// Whether the agent has read all pods and namespaces since its start; without ambient mode, all pods.
    pub synced: bool,
}

/// One component's response to a probe.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PartHealth {
    /// Part: `installer`, with ambient mode `agent`, and `records` while the plugin cannot [record](plugin.md#records) ADDs.
    pub component: String,
    /// Whether the part is alive and ready.
    pub healthy: bool,
    /// Description of the problem; empty: none.
    pub message: String,
}

/// One of our files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InstalledFile {
    /// Kind of file: `plugin`, `entry`, `kubeconfig` or `shared-config`.
    pub kind: String,
    /// Path of the file in the agent's mount namespace.
    pub path: String,
    /// Whether the file matches the desired state.
    pub correct: bool,
    /// Description of the file, or of its problem.
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
    /// Whether the ztunnel receives new connections.
    pub active: bool,
    /// With node-level capture: slot of the ztunnel.
    pub slot: Option<u32>,
    /// With node-level capture: the node's end of the ztunnel's link.
    pub link: Option<String>,
    /// Whether the ztunnel answers DNS queries of pods of the mesh.
    pub dns_proxy: bool,
    /// With in-pod capture: whether the ztunnel is connected to the agent; `None`: a connection of unknown origin may be this
    /// ztunnel's, or no agent answers.
    pub connected: Option<bool>,
    /// Whether the ztunnel has acknowledged its snapshot of pods, before which it is not ready; `None`: not known to be
    /// connected.
    pub synced: Option<bool>,
}

/// A step of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PlanStep {
    /// Stable name, as in the metric of steps.
    pub kind: String,
    /// Description of the step.
    pub message: String,
    /// Operations of the step as commands of `ip`, `ipset` and `sysctl`, and as input of `iptables-restore`.
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
    /// The change itself.
    pub action: String,
    /// Pod that the change concerns, as `NAMESPACE/NAME`; `None`: the node.
    pub pod: Option<String>,
    /// Duration of the change, in milliseconds.
    pub duration_ms: f64,
    /// Outcome of the change: `succeeded`, or `failed`: not made, or not completely.
    pub outcome: ChangeStatus,
    /// Reason why the change failed.
    pub error: Option<String>,
    /// Number of previous repetitions.
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
        use StatePart::{Agent, ApiObjects, Desired, Other, UnrecordedPods};
        let is_of_pods = |unobserved: &Unobserved| {
            matches!(unobserved.part, Agent | ApiObjects | Desired | Other | UnrecordedPods)
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
