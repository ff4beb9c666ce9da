//! Data that each check is based on, and the parts that are missing: a check without a finding has passed only if all of it was
//! read.

use std::collections::BTreeSet;

use crate::{
    cluster::Cluster,
    finding::{Basis, Code, Finding, Severity},
};

/// Missing data, according to the cluster and the findings.
pub(crate) struct Missing<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) findings: &'a [Finding],
}

impl Missing<'_> {
    /// Returns the reasons why a check could not be determined completely; empty: it could.
    pub(super) fn reasons_for(&self, code: Code) -> Vec<String> {
        code.bases().iter().filter_map(|basis| self.missing_reason(*basis)).collect()
    }

    /// Returns reasons like [`Missing::reasons_for`], for checks before agents are installed.
    pub(crate) fn missing_objects(&self, code: Code) -> Vec<String> {
        use Basis::{Agents, Answers, MeshNodes, MeshPods, Observations};
        let of_agents = [Agents, Answers, Observations, MeshNodes, MeshPods];
        let objects = code.bases().iter().filter(|basis| !of_agents.contains(basis));
        objects.filter_map(|basis| self.missing_reason(*basis)).collect()
    }

    fn missing_reason(&self, basis: Basis) -> Option<String> {
        match basis {
            Basis::Agents if !self.cluster.agents.is_empty() || !self.cluster.answers.is_empty() => None,
            Basis::Agents => Some("no agent was found".to_owned()),
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
            Basis::MeshPods => {
                self.node_count_reason(Code::PodNotReported, "nodes know nothing about pods of the mesh")
            }
            objects => self.unread_reason(objects),
        }
    }

    fn unread_reason(&self, kind: Basis) -> Option<String> {
        let unread = self.cluster.unread.iter().find(|unread| unread.what == kind.as_str())?;
        Some(format!("{kind} could not be read: {}", report::sanitize_text(&unread.why)))
    }

    /// Returns the number of nodes with this finding as a reason, unless it is only a warning.
    fn node_count_reason(&self, code: Code, message: &str) -> Option<String> {
        let of_code = self.findings.iter().filter(|finding| finding.code == code);
        let of_code = of_code.filter(|finding| finding.severity >= Severity::Unknown);
        let nodes: BTreeSet<&str> = of_code.filter_map(|finding| finding.node.as_deref()).collect();
        (!nodes.is_empty()).then(|| format!("{} {message}", nodes.len()))
    }
}
