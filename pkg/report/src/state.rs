//! The document.

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

/// Why an agent whose lists of pods and namespaces have not come yet is unhealthy. [`crate::tables::not_known`] does not repeat it.
pub const NOT_SYNCED: &str = "pods and namespaces are not known yet";

/// Name and version of the document's form. A member or a value that is added leaves the version as it is; one that is removed,
/// or means another thing, raises it. So every struct has defaults, and every enumeration a value for those that are unknown:
/// see [`StateReport::parse`].
pub const SCHEMA: &str = "millrace.state/v1";
/// The greatest size of a document as JSON, in bytes. That of a node with thousands of pods has a few megabytes.
pub const MAX_DOCUMENT: usize = 64 * 1024 * 1024;

/// Everything. Times are RFC 3339 in UTC.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StateReport {
    /// [`SCHEMA`].
    pub schema: String,
    /// Version of the program that made it.
    pub version: String,
    /// The observer, and the time of the observation.
    pub observation: Provenance,
    /// The node, and how it works.
    pub node: NodeState,
    /// Everything about the node that is not as it should be, or is not known, errors first. It follows from the other members,
    /// see [`StateReport::fill_conclusions`].
    pub findings: Vec<NodeFinding>,
    /// Causes of the states of pods, the worst state first. They follow from the other members.
    pub causes: Vec<StateCause>,
    /// Answers to probes, part by part.
    pub health: Vec<PartHealth>,
    /// Checks of the node at the agent's start; empty until they are done, and without an agent.
    pub preflight: Vec<PreflightCheck>,
    /// Files of ours on the node, and whether they are as they should be.
    pub installation: Vec<InstalledFile>,
    /// The node's ztunnel pods.
    pub ztunnels: Vec<ZtunnelState>,
    /// The node's pods, by namespace and name.
    pub pods: Vec<PodState>,
    /// Our objects in the node's network, desired and observed.
    pub network: NetworkState,
    /// Steps that would be taken now, in order; empty if nothing is to be done.
    pub plan: Vec<PlanStep>,
    /// The last changes, newest first.
    pub history: Vec<ChangeRecord>,
    /// Effective settings.
    pub config: Vec<EffectiveSetting>,
}

/// The observer of a state, and the time of the observation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Provenance {
    /// When the kernel was asked.
    pub observed_at: String,
    /// How long that took, in milliseconds.
    pub duration_ms: f64,
    /// The observer.
    pub observer: Observer,
    /// Parts that could not be observed, and why. Nothing is known of them, neither good nor bad.
    pub unobserved: Vec<Unobserved>,
}

/// The program that observed the state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Observer {
    /// The agent, while it runs.
    #[default]
    Agent,
    /// A command, without an agent: what is desired is what the last agent wrote down.
    #[serde(other)]
    Command,
}

/// A part of the state that could not be observed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Unobserved {
    /// The part, for programs.
    pub part: StatePart,
    /// The part, as text.
    pub description: String,
    /// Why, in a sentence.
    pub message: String,
}

impl Unobserved {
    /// In the part's usual words.
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
        /// Everything about the node's network.
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
        /// Pods or namespaces as they are now: the watch of them fails.
        ApiObjects = "api-objects", "pods and namespaces as they are now",
        /// A part that this version does not know.
        #[serde(other)]
        Other = "other", "another part of the state",
    }
}

/// The node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeState {
    /// Name of the node.
    pub name: String,
    /// When the agent started; `None`: there is none.
    pub agent_started_at: Option<String>,
    /// The agent takes part in ambient mode.
    pub ambient_enabled: bool,
    /// The capture mode in use for pods of ambient mode; `None`: ambient mode is off, or no agent says.
    #[serde(deserialize_with = "known_value")]
    pub mode: Option<RedirectionMode>,
    /// The operator's choice: `node`, `in-pod` or `auto`; empty when ambient mode is off.
    pub configured_mode: String,
    /// Treatment of traffic while no ztunnel is ready, with capture on the node: `hold`, `reject` or `open`.
    pub no_ztunnel_policy: Option<String>,
    /// The slot that takes new connections, with capture on the node; `None`: no ztunnel is ready.
    pub active_slot: Option<u32>,
    /// Why pods cannot be enrolled, or what else is wrong with the node; `None`: nothing is.
    pub problem: Option<String>,
    /// Facts about pods and namespaces have been read whole since the agent's start; without ambient mode, those about pods.
    pub synced: bool,
}

/// One part's answer to a probe.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PartHealth {
    /// `installer` or `agent`.
    pub component: String,
    /// Whether the part is well.
    pub healthy: bool,
    /// The fault; empty if there is none.
    pub message: String,
}

/// A file of ours.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InstalledFile {
    /// `plugin`, `entry`, `kubeconfig`, `shared-config`, `socket`.
    pub kind: String,
    /// Where, as the daemon sees it.
    pub path: String,
    /// Whether the file is as it should be.
    pub correct: bool,
    /// In words: what it is, or what is wrong with it.
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
    /// The API says that it is ready.
    pub ready: bool,
    /// Whether the pod is being deleted.
    pub terminating: bool,
    /// New connections go to it.
    pub active: bool,
    /// Slot of the ztunnel, with capture on the node.
    pub slot: Option<u32>,
    /// The node's end of its link, with capture on the node.
    pub link: Option<String>,
    /// Whether this ztunnel answers DNS for pods of the mesh.
    pub dns_proxy: bool,
    /// Whether the ztunnel is connected to the agent, with in-pod capture; `None` if a connection whose pod is not known may
    /// be its own.
    pub connected: Option<bool>,
    /// Whether the ztunnel has acknowledged its snapshot of pods, before which it is not ready; `None` if it is not known to
    /// be connected.
    pub synced: Option<bool>,
}

/// A step of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PlanStep {
    /// A short, stable name, as in the metric of steps.
    pub kind: String,
    /// In words.
    pub message: String,
    /// Operations of the step, one each, as commands of `ip`, `ipset`, `sysctl` and input of `iptables-restore`.
    pub operations: Vec<String>,
}

/// Something that was done.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ChangeRecord {
    /// When it began.
    pub started_at: String,
    /// Trigger of the change, such as `pod shop/web joined`, `drift` or `start`.
    pub cause: String,
    /// The change itself, as text.
    pub action: String,
    /// The pod that it is about, as `NAMESPACE/NAME`; `None`: the node.
    pub pod: Option<String>,
    /// How long it took, in milliseconds.
    pub duration_ms: f64,
    /// How it ended.
    pub outcome: ChangeStatus,
    /// Why it failed; `None`: it did not.
    pub error: Option<String>,
    /// How often the same was done before; the entry is about the last time.
    pub repeats: u32,
    /// When the first of them began; `None`: the same was not done before.
    pub first_started_at: Option<String>,
}

impl ChangeRecord {
    /// Whether the same was done `before`: to the same pod and with the same result, whatever the ID of the process that led to it.
    /// Whatever led to an attempt that fails again, it is the same.
    pub fn is_repeat_of(&self, before: &ChangeRecord) -> bool {
        let is_same_text = |now: &str, then: &str| without_process(now) == without_process(then);
        (&self.pod, &self.error) == (&before.pod, &before.error)
            && is_same_text(&self.action, &before.action)
            && (self.error.is_some() || is_same_text(&self.cause, &before.cause))
    }

    /// Returns how often it was done, and since when, as text; `None`: once.
    pub fn repeats_text(&self) -> Option<String> {
        let since = self.first_started_at.as_deref().filter(|_| self.repeats > 0)?;
        Some(format!("{} times since {since}", self.repeats.saturating_add(1)))
    }
}

/// The text without the ID of the process that it ends with.
fn without_process(text: &str) -> &str {
    text.rsplit_once(" (process ").map_or(text, |(before, _)| before)
}

/// How something ended.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChangeStatus {
    /// The change was made.
    Succeeded,
    /// The change was not made, or not completely.
    #[default]
    #[serde(other)]
    Failed,
}

/// An effective setting. Secrets never appear: there is no setting that is one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EffectiveSetting {
    /// The flag's name, without dashes.
    pub name: String,
    /// Value of the setting.
    pub value: String,
    /// Where it came from: `default`, `flag`, or `environment NAME`.
    pub source: String,
}

impl StateReport {
    /// The pod of this name.
    pub fn pod(&self, namespace: &str, name: &str) -> Option<&PodState> {
        self.pods.iter().find(|pod| pod.namespace == namespace && pod.name == name)
    }

    /// Whether the list of pods is complete: it was read to its end, and nothing says that pods are missing.
    pub fn knows_all_pods(&self) -> bool {
        let is_of_pods = |unobserved: &Unobserved| {
            matches!(unobserved.part, StatePart::Agent | StatePart::Desired | StatePart::UnrecordedPods)
        };
        let is_read = self.node.synced || !self.node.ambient_enabled;
        is_read && !self.observation.unobserved.iter().any(is_of_pods)
    }

    /// A plan without steps means that nothing is to be done. A command without an agent makes one only of what it observed.
    pub fn knows_plan(&self) -> bool {
        !self.plan.is_empty()
            || self.observation.observer != Observer::Command
            || self.observation.unobserved.is_empty()
    }

    /// Everything that is not as it should be, in sentences; empty: the kernel, and the files, equal what is desired.
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
