//! `millrace check`: all checks with their findings, and the verdict.

mod agents;
mod basis;
mod labels;
mod lookup;
mod mesh_pods;
mod nodes;
mod policies;

use report::{CaptureState, exit_status};
use serde::Serialize;

pub(crate) use basis::Missing;
pub(crate) use labels::findings as label_findings;
pub(crate) use lookup::Lookup;
pub use mesh_pods::unreported_pods;
pub use nodes::uncovered_nodes;
pub(crate) use nodes::{preflight_findings, unchecked_node};
pub(crate) use policies::findings_at as policy_findings;

use crate::{
    cluster::{Cluster, NodeMessage},
    finding::{Code, Finding, Section, Severity, complete_findings},
};

/// Overall result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Nothing is unhealthy, and everything could be determined.
    Healthy,
    /// At least one finding is an error.
    Unhealthy,
    /// Nothing unhealthy was found, but not everything could be determined.
    Unknown,
}

impl CheckReport {
    /// Returns the exit status for scripts: 0 if all severities are below `least`; else 2 if something is unknown and nothing is
    /// unhealthy, and 1 in every other case.
    pub fn status(&self, least: Severity) -> u8 {
        exit_status(self.checks.iter().filter_map(|line| line.severity).max(), least)
    }
}

/// Output of `millrace check`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CheckReport {
    /// Name and version of the schema.
    pub schema: &'static str,
    /// Overall result.
    pub verdict: Verdict,
    /// Whether some nodes did not answer, or some objects could not be read.
    pub partial: bool,
    /// Numbers of checked objects.
    pub counts: Counts,
    /// All checks with their results.
    pub checks: Vec<CheckLine>,
    /// All findings, sorted by code and object.
    pub findings: Vec<Finding>,
    /// Captured pods with traffic excluded from the mesh by intent, by name.
    pub excepted: Vec<ExceptedPod>,
    /// Nodes whose agent did not answer.
    pub unanswered: Vec<NodeMessage>,
}

/// A captured pod with traffic excluded from the mesh by intent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct ExceptedPod {
    /// Pod as `NAMESPACE/NAME`.
    pub pod: String,
    /// Excluded traffic, one text for each kind.
    pub exceptions: Vec<String>,
}

/// Numbers of checked objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Nodes of the cluster; `None`: they could not be read.
    pub nodes: Option<usize>,
    /// Agent pods.
    pub agents: usize,
    /// Nodes whose agent answered.
    pub answered: usize,
    /// Pods reported by these agents.
    pub pods: usize,
    /// Captured pods among those reported.
    pub captured: usize,
    /// Captured pods with traffic excluded from the mesh by intent.
    pub excepted: usize,
    /// Reported pods that bypass the mesh.
    pub bypassing: usize,
}

/// A check and its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CheckLine {
    /// Code of its findings.
    pub code: Code,
    /// Section of the output.
    pub section: Section,
    /// Condition that holds if the check passed.
    pub title: &'static str,
    /// Highest severity of its findings, at least `Unknown` if data that it is based on is missing; `None`: it passed.
    pub severity: Option<Severity>,
    /// Number of its findings.
    pub findings: usize,
    /// Reasons why it could not be determined completely; empty: it could.
    pub unknown: Vec<String>,
}

/// Runs all checks.
pub fn check(cluster: &Cluster) -> CheckReport {
    let lookup = Lookup::new(cluster);
    let mut findings = agents::findings(&lookup);
    findings.extend(labels::findings(&lookup));
    findings.extend(nodes::findings(&lookup));
    findings.extend(mesh_pods::findings(&lookup));
    findings.extend(policies::findings(&lookup));
    let findings = complete_findings(findings, &cluster.unread);
    let is_silent = findings.iter().any(|finding| finding.code == Code::AgentSilent);
    let unanswered = cluster.unanswered_nodes();
    let excepted = excepted_pods(cluster);
    let missing = Missing { cluster, findings: &findings };
    let codes = Code::ALL.iter().filter(|code| code.belongs_to_check());
    let checks = check_lines(codes, &findings, |code| missing.reasons_for(code));
    CheckReport {
        schema: "millrace.check/v1",
        verdict: overall_verdict(&checks),
        partial: is_silent || !cluster.unread.is_empty(),
        counts: cluster_counts(cluster, &excepted),
        checks,
        findings,
        excepted,
        unanswered,
    }
}

pub(crate) fn overall_verdict(checks: &[CheckLine]) -> Verdict {
    match checks.iter().filter_map(|line| line.severity).max() {
        Some(Severity::Error) => Verdict::Unhealthy,
        Some(Severity::Unknown) => Verdict::Unknown,
        Some(Severity::Warning) | None => Verdict::Healthy,
    }
}

fn excepted_pods(cluster: &Cluster) -> Vec<ExceptedPod> {
    let all = cluster.state_reports().flat_map(|(_, state)| &state.pods);
    let excepted = all.filter(|pod| pod.capture == CaptureState::Captured && !pod.exceptions.is_empty());
    let mut excepted: Vec<ExceptedPod> =
        excepted.map(|pod| ExceptedPod { pod: pod.title(), exceptions: pod.exceptions.clone() }).collect();
    excepted.sort();
    excepted
}

fn cluster_counts(cluster: &Cluster, excepted: &[ExceptedPod]) -> Counts {
    let pods = |capture: Option<CaptureState>| {
        let all = cluster.state_reports().flat_map(|(_, state)| &state.pods);
        all.filter(|pod| capture.is_none_or(|capture| capture == pod.capture)).count()
    };
    Counts {
        nodes: cluster.node_count(cluster.nodes.len()),
        agents: cluster.agents.len(),
        answered: cluster.state_reports().count(),
        pods: pods(None),
        captured: pods(Some(CaptureState::Captured)),
        excepted: excepted.len(),
        bypassing: pods(Some(CaptureState::Bypassing)),
    }
}

/// Returns the checks with these codes. `unknown`: reasons why one could not be determined completely.
pub(crate) fn check_lines<'a>(
    codes: impl Iterator<Item = &'a Code>,
    findings: &[Finding],
    unknown: impl Fn(Code) -> Vec<String>,
) -> Vec<CheckLine> {
    let line = |code: &Code| {
        let of_code = || findings.iter().filter(|finding| finding.code == *code);
        let unknown = unknown(*code);
        let at_least = (!unknown.is_empty()).then_some(Severity::Unknown);
        CheckLine {
            code: *code,
            section: code.section(),
            title: code.check(),
            severity: of_code().map(|finding| finding.severity).max().max(at_least),
            findings: of_code().count(),
            unknown,
        }
    };
    codes.map(line).collect()
}

#[cfg(test)]
#[expect(clippy::needless_pass_by_value, reason = "json!(..) stands in the calls")]
mod tests;
