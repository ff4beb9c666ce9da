//! Findings: each has a stable code, which determines its severity, the check that it belongs to, and its documentation.

use std::iter;

pub use report::Severity;
use serde::Serialize;

use crate::cluster::UnreadObjects;

/// Page that describes each code under an anchor of that name.
pub const DOCS: &str = "docs/millrace.md";

model::word_enum! {
    /// Section of the output.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Section {
        /// Cluster as a whole.
        Cluster = "cluster",
        /// The agents.
        Agents = "agents",
        /// The nodes.
        Nodes = "nodes",
        /// Primary networks.
        Networks = "networks",
        /// The pods.
        Pods = "pods",
        /// NetworkPolicies.
        Policies = "network policies",
    }
}

model::word_enum! {
    /// Data that a check is based on. Names of API objects are those of [`crate::UnreadObjects::what`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Basis {
        Pods = "pods",
        Namespaces = "namespaces",
        Nodes = "nodes",
        NetworkPolicies = "networkpolicies",
        DaemonSets = "daemonsets",
        CiliumConfig = "ConfigMap cilium-config",
        FelixConfiguration = "FelixConfiguration default",
        OpenShiftNetwork = "OpenShift network cluster",
        /// Pods of agents, at least one.
        Agents = "agents",
        /// Answers of all agents.
        Answers = "answers",
        /// Complete observations of all nodes with an agent.
        Observations = "observations",
        /// Agents on all nodes with mesh pods.
        MeshNodes = "mesh-nodes",
        /// Reports about all mesh pods of the nodes that answered.
        MeshPods = "mesh-pods",
    }
}

/// Commands that can report a code.
enum CodeScope {
    /// `millrace check`.
    Check,
    /// `millrace check --pre`, before an installation.
    Installation,
    Both,
    /// `millrace simulate`.
    Simulation,
}

macro_rules! finding_codes {
    ($($(#[$doc:meta])* $name:ident $word:literal $section:ident $severity:ident $scope:ident [$($basis:ident)*]
        $check:literal $hint:literal)*) => {
        model::word_enum! {
            /// Kind of a finding, in the order of the output.
            #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
            #[serde(rename_all = "kebab-case")]
            pub enum Code { $($(#[$doc])* $name = $word),* }
        }

        impl Code {
            /// Returns the section of the output.
            pub fn section(self) -> Section { match self { $(Code::$name => Section::$section),* } }

            /// Returns the usual severity.
            pub fn severity(self) -> Severity { match self { $(Code::$name => Severity::$severity),* } }

            fn scope(self) -> CodeScope { match self { $(Code::$name => CodeScope::$scope),* } }

            /// Returns the data that its check is based on.
            pub(crate) fn bases(self) -> &'static [Basis] { match self { $(Code::$name => &[$(Basis::$basis),*]),* } }

            /// Returns the condition that holds without such a finding. Several codes can share one.
            pub fn check(self) -> &'static str { match self { $(Code::$name => $check),* } }

            /// Returns the recommended action as a sentence.
            pub fn hint(self) -> &'static str { match self { $(Code::$name => $hint),* } }
        }
    };
}

finding_codes! {
    /// API objects could not be read.
    NotReadable "not-readable" Cluster Unknown Both [] "objects of the API can be read"
        "Apply deploy/millrace-viewer.yaml, and bind it to your user."
    /// No pod has the agents' label.
    NoAgents "no-agents" Cluster Error Check [] "agents are deployed"
        "Install the agent, or name its label with --selector."
    /// The DaemonSet is not rolled out.
    RolloutIncomplete "rollout-incomplete" Cluster Warning Check [DaemonSets] "the agents' DaemonSet is rolled out"
        "Run kubectl rollout status on it; pods that are not ready are listed below."
    /// Agents have different versions.
    VersionsDiffer "versions-differ" Cluster Warning Check [Agents Answers] "all agents are of one version"
        "Wait for the rollout, or finish it."
    /// Labels of a namespace contradict each other.
    NamespaceLabels "namespace-labels" Cluster Warning Check [Namespaces] "labels of namespaces do not contradict each other"
        "Remove one of the two labels: a pod takes part in the mesh by a sidecar or by ambient mode."
    /// An agent's pod is not ready.
    AgentNotReady "agent-not-ready" Agents Error Check [Agents] "every agent is ready"
        "Read its log: kubectl logs -n NAMESPACE POD."
    /// An agent did not answer.
    AgentSilent "agent-silent" Agents Unknown Check [Agents] "every agent answers"
        "The state of the pods of this node is unknown; check its kubelet. If the agent's debug port is closed (by default with hostNetwork), set millrace.debugPort or use --via exec."
    /// A part of an agent is unhealthy.
    AgentUnhealthy "agent-unhealthy" Agents Error Check [Agents Answers] "every agent is healthy"
        "Run install-cni state in the agent's container."
    /// The agent has not read pods and namespaces completely.
    NotSynced "not-synced" Agents Unknown Check [Agents Answers] "every agent has read its pods and namespaces"
        "Wait; if it lasts, read the agent's log for errors of the API server."
    /// A part of the node could not be observed.
    NotObserved "not-observed" Agents Unknown Check [Agents Answers] "every agent observes its node completely"
        "Run millrace verify --node NODE; docs/see-inside.md lists the rights that observing needs."
    /// Pods on the node have no record of an ADD.
    NoRecords "no-records" Agents Warning Check [Agents Answers] "every pod has a record of its ADD"
        "Pods that started before the plugin was installed have none: restart those that belong to the mesh."
    /// A schedulable Linux node runs no agent.
    NodeWithoutAgent "node-without-agent" Nodes Warning Check [Nodes Agents] "every schedulable Linux node runs an agent"
        "Check the DaemonSet's nodeSelector, affinity and tolerations against the node's labels and taints."
    /// A node with pods of the mesh runs no agent.
    MeshWithoutAgent "mesh-without-agent" Nodes Error Check [Pods Namespaces Agents] "every node with pods of the mesh runs an agent"
        "Make the DaemonSet select the node, or move the pods: nothing captures new pods there."
    /// A node still has the taint for nodes without an agent.
    NodeTainted "node-tainted" Nodes Error Check [Nodes Agents] "no node with a ready agent has the taint for nodes without one"
        "Check that the taint's controller runs; docs/node-readiness.md."
    /// A file of the installation differs from the desired state.
    InstallationDamaged "installation-damaged" Nodes Error Check [Agents Answers] "the plugin is installed on every node"
        "The agent repairs it; if it lasts, another component writes the same file, or its directory is not writable."
    /// The node's agent cannot capture pods.
    NodeDegraded "node-degraded" Nodes Error Check [Agents Answers Observations] "every node can capture pods"
        "Run millrace explain on one of its pods: it shows the remedy."
    /// A check at the agent's start has a finding.
    NodePreflight "node-preflight" Nodes Warning Both [Nodes Agents Answers] "every node passed the check of what capture needs"
        "Run install-cni check in the agent's container."
    /// No ztunnel is ready on a node with ambient mode.
    ZtunnelNotReady "ztunnel-not-ready" Nodes Error Check [Agents Answers Observations] "every node of ambient mode has a ready ztunnel"
        "Check the node's ztunnel pod."
    /// The node's network differs from the desired state.
    NodeDrift "node-drift" Nodes Error Check [Agents Answers Observations] "every node's network is as desired"
        "The agent repairs it; if it lasts, run millrace verify --node NODE."
    /// Foreign objects are in the place of ours.
    ForeignObjects "foreign-objects" Nodes Warning Check [Agents Answers Observations] "no other component uses what is ours"
        "Remove what the other component created."
    /// A pod bypasses the mesh.
    PodBypassing "pod-bypassing" Pods Error Check [Pods Namespaces Agents Answers Observations MeshNodes MeshPods] "no pod bypasses the mesh"
        "Run millrace explain NAMESPACE/POD."
    /// A pod's traffic is held.
    PodHeld "pod-held" Pods Error Check [Pods Namespaces Agents Answers Observations MeshNodes MeshPods] "no pod's traffic is held"
        "Run millrace explain NAMESPACE/POD."
    /// A captured pod differs from the desired state.
    PodDiffers "pod-differs" Pods Error Check [Pods Namespaces Agents Answers Observations MeshNodes MeshPods] "every captured pod is as desired"
        "Run millrace explain NAMESPACE/POD."
    /// A pod is being captured.
    PodPending "pod-pending" Pods Warning Check [Pods Namespaces Agents Answers Observations MeshNodes MeshPods] "no pod waits to be captured"
        "Wait; if it lasts, run millrace explain NAMESPACE/POD."
    /// A pod left the mesh, but some of our objects remain.
    PodLeaving "pod-leaving" Pods Warning Check [Pods Namespaces Agents Answers Observations MeshNodes MeshPods] "no pod is leaving the mesh"
        "Wait; if it lasts, run millrace explain NAMESPACE/POD."
    /// The state of a pod could not be determined.
    PodUnknown "pod-unknown" Pods Unknown Check [Pods Namespaces Agents Answers Observations MeshNodes MeshPods] "the state of every pod is known"
        "Run millrace explain NAMESPACE/POD."
    /// An exception requested by annotations of a pod or of its namespace is not applied.
    ExceptionRefused "exception-refused" Pods Warning Check [Pods Namespaces Agents Answers Observations MeshNodes MeshPods] "every exception from capture that pods ask for is applied"
        "Correct or remove the annotation, or let the administrator allow it: docs/in-pod.md#exceptions."
    /// A mesh pod is older than the agent on its node, which has no record of it.
    PodOlderThanPlugin "pod-older-than-plugin" Pods Error Check [Pods Namespaces Agents Answers Observations MeshNodes MeshPods] "no pod of the mesh is older than the plugin on its node"
        "Restart the pod, or let the agent repair such pods: docs/repair.md."
    /// A mesh pod is not reported by its node's agent.
    PodNotReported "pod-not-reported" Pods Unknown Check [Pods Namespaces Agents Answers Observations MeshNodes MeshPods] "every pod of the mesh is reported by its node's agent"
        "Run the check again; if it lasts, restart the agent on its node, or the pod if that agent may not list pods."
    /// Labels of a pod contradict each other.
    PodLabels "pod-labels" Pods Warning Check [Pods] "labels of pods do not contradict their sidecars"
        "Remove the label or the sidecar: a pod with a sidecar is never captured by ambient mode."
    /// A pod uses a port that ztunnel opens in its network namespace.
    ZtunnelPortTaken "ztunnel-port-taken" Pods Error Installation [Pods] "no pod has a port that ztunnel opens in it"
        "Let the application listen on another port, or keep the pod out of ambient mode by the label istio.io/dataplane-mode=none."
    /// An agent would not start with the simulated settings.
    SettingsRefused "settings-refused" Agents Error Simulation [] "an agent starts with the simulated settings"
        "Correct the value: docs/install-cni.md has the allowed ones."
    /// The effect of a changed setting is not simulated.
    SettingNotSimulated "setting-not-simulated" Agents Warning Simulation [] "every setting that would change is simulated"
        "Read what the setting does in docs/install-cni.md: the simulation is that of all others."
    /// A kernel needs iptables tools.
    KernelOld "kernel-old" Nodes Warning Installation [Nodes] "no node's kernel needs iptables tools"
        "Use the image with -ambient, which has them: docs/firewall.md."
    /// The container runtime is not covered by our tests.
    RuntimeUntested "runtime-untested" Nodes Warning Installation [Nodes] "every node's container runtime is one of those that are tested"
        "Try the installation on one such node first: docs/upgrade.md; docs/platforms.md lists what is tested."
    /// Another agent is already installed.
    AgentInstalled "agent-installed" Cluster Warning Installation [DaemonSets] "no agent is installed yet"
        "Replace it as described in docs/migrate.md: two agents on a node would conflict."
    /// Ambient mode has no ztunnel.
    NoZtunnel "no-ztunnel" Cluster Warning Installation [DaemonSets] "ztunnel is deployed, which ambient mode needs"
        "Install ztunnel before a namespace is labelled; sidecars need none."
    /// Cilium removes the configurations of other plugins.
    CiliumExclusive "cilium-exclusive" Networks Error Installation [CiliumConfig] "Cilium leaves other plugins in its chain"
        "Set Cilium's value cni.exclusive=false."
    /// Cilium resolves services before the rules in a pod.
    CiliumSocketLb "cilium-socket-lb" Networks Error Installation [CiliumConfig] "Cilium resolves no service inside of pods"
        "Set Cilium's value socketLB.hostNamespaceOnly=true."
    /// Cilium drops replies to probes of ambient pods.
    CiliumHostRouting "cilium-host-routing" Networks Warning Installation [CiliumConfig] "Cilium returns answers to probes of ambient pods"
        "For ambient mode, set Cilium's value bpf.hostLegacyRouting=true."
    /// Cilium has a ztunnel of its own.
    CiliumZtunnel "cilium-ztunnel" Networks Error Installation [CiliumConfig] "Cilium has no ztunnel of its own"
        "Use only one of the two: unset Cilium's value encryption.type=ztunnel."
    /// Calico resolves services before the rules in a pod.
    CalicoConnectTime "calico-connect-time" Networks Error Installation [FelixConfiguration] "Calico resolves no service inside of pods"
        "Set bpfConnectTimeLoadBalancing: Disabled in the FelixConfiguration."
    /// Probes of pods with AWS security groups fail.
    AwsStrictGroups "aws-strict-groups" Networks Warning Installation [DaemonSets] "AWS returns answers to probes of pods with security groups"
        "For ambient mode, set POD_SECURITY_GROUP_ENFORCING_MODE=standard, or DISABLE_TCP_EARLY_DEMUX=true on the init container."
    /// OVN-Kubernetes drops replies to probes of ambient pods.
    OvnGatewayMode "ovn-gateway-mode" Networks Warning Installation [OpenShiftNetwork Nodes] "OVN-Kubernetes returns answers to probes of ambient pods"
        "For ambient mode, set routingViaHost: true in gatewayConfig of the Cluster Network Operator, or else the gateway mode local (global.gatewayMode in the chart of OVN-Kubernetes)."
    /// NetworkPolicies block HBONE.
    PolicyBlocksHbone "policy-blocks-hbone" Policies Error Both [NetworkPolicies Pods Namespaces Agents Answers MeshNodes] "no NetworkPolicy blocks HBONE to pods of the mesh"
        "Allow ingress to TCP port 15008 in one of these policies, from the same peers as the application's ports."
    /// NetworkPolicies block HBONE from some peers.
    PolicyBlocksSome "policy-blocks-some" Policies Warning Both [NetworkPolicies Pods Namespaces Agents Answers MeshNodes] "no NetworkPolicy blocks HBONE from peers that it allows"
        "Allow ingress to TCP port 15008 from these peers too."
    /// NetworkPolicies block all inbound traffic.
    PolicyBlocksAll "policy-blocks-all" Policies Warning Both [NetworkPolicies Pods Namespaces Agents Answers MeshNodes] "no NetworkPolicy blocks everything to pods of the mesh"
        "If the pod must accept traffic, allow ingress to TCP port 15008."
    /// NetworkPolicies block HBONE to peers.
    PolicyBlocksOutbound "policy-blocks-outbound" Policies Warning Both [NetworkPolicies Pods Namespaces Agents Answers MeshNodes] "no NetworkPolicy blocks HBONE from pods of the mesh"
        "Allow egress to TCP port 15008 of the same peers, as far as they are in the mesh."
    /// NetworkPolicies do not allow probes of captured pods.
    PolicyBlocksProbes "policy-blocks-probes" Policies Warning Installation [NetworkPolicies Pods] "every NetworkPolicy allows probes of captured pods"
        "Some networks apply policies to these probes (docs/networks.md#what-every-network-must-do): allow ingress from 169.254.7.127/32, with IPv6 from fd16:9254:7127:1337:ffff:ffff:ffff:ffff/128."
}

impl Code {
    /// Whether the code is one of `millrace check --pre`.
    pub(crate) fn belongs_to_preflight(self) -> bool {
        matches!(self.scope(), CodeScope::Installation | CodeScope::Both)
    }

    /// Whether the code is one of `millrace check`.
    pub(crate) fn belongs_to_check(self) -> bool {
        matches!(self.scope(), CodeScope::Check | CodeScope::Both)
    }
}

/// The object of a finding.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct ObjectName {
    /// Kind: `Pod`, `Node`, `Namespace`, `DaemonSet`, `NetworkPolicy`, `Cluster`.
    pub kind: &'static str,
    /// Namespace; empty: cluster-scoped.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Name of the object.
    pub name: String,
}

impl ObjectName {
    pub(crate) fn node(name: &str) -> ObjectName {
        ObjectName { kind: "Node", namespace: String::new(), name: name.to_owned() }
    }

    pub(crate) fn cluster() -> ObjectName {
        ObjectName { kind: "Cluster", namespace: String::new(), name: String::new() }
    }

    pub(crate) fn in_namespace(kind: &'static str, namespace: &str, name: &str) -> ObjectName {
        ObjectName { kind, namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// Returns kind, namespace (if namespaced) and name, such as `Pod/shop/web`; `None`: the cluster.
    pub(crate) fn path(&self) -> Option<String> {
        match (self.kind, self.namespace.as_str()) {
            ("Cluster", _) => None,
            (kind, "") => Some(format!("{kind}/{}", self.name)),
            (kind, namespace) => Some(format!("{kind}/{namespace}/{}", self.name)),
        }
    }

    /// Returns the prefix of a message, such as `pod shop/web`; empty for the cluster.
    pub fn title(&self) -> String {
        let kind = match self.kind {
            "Pod" | "Node" | "Namespace" => self.kind.to_lowercase(),
            kind => kind.to_owned(),
        };
        match (self.kind, self.namespace.as_str()) {
            ("Cluster", _) => String::new(),
            (_, "") => format!("{kind} {}", self.name),
            (_, namespace) => format!("{kind} {namespace}/{}", self.name),
        }
    }
}

/// A fault or an unknown fact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Kind of the finding.
    pub code: Code,
    /// Code of the node's own check (docs/preflight.md); `None`: another kind of finding.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub check: Option<String>,
    /// Severity of the finding.
    pub severity: Severity,
    /// Object of the finding.
    pub object: ObjectName,
    /// Node, if the object is on one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Problem and its cause.
    pub message: String,
    /// Recommended action.
    pub hint: String,
    /// Link to the documentation.
    pub link: String,
}

impl Finding {
    pub(crate) fn new(code: Code, object: ObjectName, message: impl Into<String>) -> Finding {
        Finding {
            code,
            check: None,
            severity: code.severity(),
            object,
            node: None,
            message: report::sanitize_text(&message.into()),
            hint: report::link_docs(code.hint()),
            link: report::link_docs(&format!("{DOCS}#{}", code.as_str())),
        }
    }

    /// Returns a finding about a node.
    pub(crate) fn for_node(code: Code, node: &str, message: impl Into<String>) -> Finding {
        Finding::new(code, ObjectName::node(node), message).on_node(node)
    }

    /// Returns the code for filtering results: including that of the node's own check, if any.
    pub(crate) fn full_code(&self) -> String {
        let check = self.check.iter().map(String::as_str);
        iter::once(self.code.as_str()).chain(check).collect::<Vec<_>>().join("/")
    }

    /// Returns the message, and the recommended action if it differs from that of other findings with this code.
    pub(crate) fn message_with_advice(&self) -> String {
        if self.hint == report::link_docs(self.code.hint()) {
            return self.message.clone();
        }
        format!("{}. {} See {}.", self.message.trim_end_matches('.'), self.hint, self.link)
    }

    pub(crate) fn on_node(mut self, node: &str) -> Finding {
        self.node = Some(node.to_owned());
        self
    }
}

/// Adds findings about unread objects, and sorts all by code and object.
pub(crate) fn complete_findings(mut findings: Vec<Finding>, unread: &[UnreadObjects]) -> Vec<Finding> {
    findings.extend(unread.iter().map(|UnreadObjects { what, why }| {
        Finding::new(Code::NotReadable, ObjectName::cluster(), format!("{what}: {why}"))
    }));
    findings.sort_by(|a, b| (a.code, &a.object, &a.message).cmp(&(b.code, &b.object, &b.message)));
    findings
}
