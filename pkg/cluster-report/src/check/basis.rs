//! What each check rests on, and what of that is missing: a check without a finding has passed only if all of it was read.

use std::collections::BTreeSet;

use crate::{
    cluster::Cluster,
    finding::{Code, Finding},
};

/// Data that a check rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Basis {
    /// Objects of the API of this kind, in the words of [`crate::Unread::what`].
    Objects(&'static str),
    /// Pods of agents, and at least one.
    Agents,
    /// The answer of every agent.
    Answers,
    /// A complete observation of every node with an agent.
    Observations,
    /// An agent on every node that runs pods of the mesh.
    MeshNodes,
}

const PODS: Basis = Basis::Objects("pods");
const NAMESPACES: Basis = Basis::Objects("namespaces");
const NODES: Basis = Basis::Objects("nodes");

fn required_bases(code: Code) -> &'static [Basis] {
    use Basis::{Agents, Answers, MeshNodes, Objects, Observations};
    match code {
        // The last two are of simulations alone.
        Code::NotReadable | Code::NoAgents | Code::SettingsRefused | Code::SettingNotSimulated => &[],
        Code::RolloutIncomplete => &[Objects("daemonsets")],
        Code::NamespaceLabels => &[NAMESPACES],
        Code::PodLabels => &[PODS],
        Code::AgentNotReady | Code::AgentSilent => &[Agents],
        Code::VersionsDiffer
        | Code::AgentUnhealthy
        | Code::NotSynced
        | Code::NotObserved
        | Code::NoRecords
        | Code::NodePreflight
        | Code::InstallationDamaged => &[Agents, Answers],
        Code::NodeWithoutAgent | Code::NodeTainted => &[NODES, Agents],
        Code::MeshWithoutAgent => &[PODS, NAMESPACES, NODES, Agents],
        Code::NodeDegraded | Code::ZtunnelNotReady | Code::NodeDrift | Code::ForeignObjects => {
            &[Agents, Answers, Observations]
        }
        Code::PodBypassing
        | Code::PodHeld
        | Code::PodDiffers
        | Code::PodPending
        | Code::PodLeaving
        | Code::PodUnknown
        | Code::ExceptionRefused
        | Code::PodOlderThanPlugin
        | Code::PodNotReported => &[PODS, NAMESPACES, Agents, Answers, Observations, MeshNodes],
        Code::KernelOld | Code::RuntimeUntested => &[NODES],
        Code::AgentInstalled | Code::NoZtunnel | Code::AwsStrictGroups => &[Objects("daemonsets")],
        Code::CiliumExclusive | Code::CiliumSocketLb | Code::CiliumHostRouting | Code::CiliumZtunnel => {
            &[Objects("ConfigMap cilium-config")]
        }
        Code::CalicoConnectTime => &[Objects("FelixConfiguration default")],
        Code::OvnGatewayMode => &[Objects("OpenShift network cluster")],
        Code::PolicyBlocksHbone | Code::PolicyBlocksSome | Code::PolicyBlocksAll => {
            &[Objects("networkpolicies"), PODS, NAMESPACES, Agents, Answers, MeshNodes]
        }
    }
}

/// The bases that are missing, according to the cluster and the findings.
pub(crate) struct Missing<'a> {
    cluster: &'a Cluster,
    findings: &'a [Finding],
}

impl<'a> Missing<'a> {
    pub(crate) fn new(cluster: &'a Cluster, findings: &'a [Finding]) -> Missing<'a> {
        Missing { cluster, findings }
    }

    /// Why a check could not be determined completely; empty: it could.
    pub(super) fn reasons_for(&self, code: Code) -> Vec<String> {
        required_bases(code).iter().filter_map(|basis| self.missing_reason(*basis)).collect()
    }

    /// As [`Missing::reasons_for`], where nothing of agents is expected.
    pub(crate) fn objects_of(&self, code: Code) -> Vec<String> {
        let objects = required_bases(code).iter().filter(|basis| matches!(basis, Basis::Objects(_)));
        objects.filter_map(|basis| self.missing_reason(*basis)).collect()
    }

    fn missing_reason(&self, basis: Basis) -> Option<String> {
        match basis {
            Basis::Objects(kind) => self.unread_reason(kind),
            Basis::Agents if !self.cluster.agents.is_empty() || !self.cluster.answers.is_empty() => None,
            Basis::Agents => self.unread_reason("agents").or_else(|| Some("no agent was found".to_owned())),
            Basis::Answers => self.node_count_reason(
                Code::AgentSilent,
                &format!("of {} agents did not answer", self.cluster.answers.len()),
            ),
            Basis::Observations => {
                let of = |code, message| self.node_count_reason(code, message);
                let unread = of(Code::NotSynced, "agents have not read their pods and namespaces");
                let unobserved = of(Code::NotObserved, "nodes were not observed completely");
                let all: Vec<String> = unread.into_iter().chain(unobserved).collect();
                (!all.is_empty()).then(|| all.join(", "))
            }
            Basis::MeshNodes => {
                self.node_count_reason(Code::MeshWithoutAgent, "nodes with pods of the mesh run no agent")
            }
        }
    }

    fn unread_reason(&self, kind: &str) -> Option<String> {
        let unread = self.cluster.unread.iter().find(|unread| unread.what == kind)?;
        Some(format!("{kind} could not be read: {}", report::sanitize_text(&unread.why)))
    }

    /// How many nodes have this finding.
    fn node_count_reason(&self, code: Code, message: &str) -> Option<String> {
        let of_code = self.findings.iter().filter(|finding| finding.code == code);
        let nodes: BTreeSet<&str> = of_code.filter_map(|finding| finding.node.as_deref()).collect();
        (!nodes.is_empty()).then(|| format!("{} {message}", nodes.len()))
    }
}
