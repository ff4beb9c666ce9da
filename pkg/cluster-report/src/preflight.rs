//! `millrace check --pre`: obstacles to an installation, before any agent exists, determined from API objects and from node checks
//! run by pods.
//!
//! Options of networks are those of docs/networks.md, which has the source of each.

mod networks;

use std::collections::BTreeMap;

use model::{DaemonSet, Namespace, Node};
use report::{PreflightCheck, RedirectionMode, exit_status};
use serde::Serialize;
use serde_json::Value;

use crate::{
    check::{
        CheckLine, Missing, Verdict, check_lines, overall_verdict, policy_findings, preflight_findings,
        unchecked_node,
    },
    cluster::{Cluster, DATAPLANE_MODE, mesh_membership},
    finding::{Code, Finding, ObjectName, Severity, complete_findings},
    objects::{Pod, is_linux},
    policy::default_probe_source,
    ztunnel_ports::declared_finding,
};

/// Page about networks.
pub(crate) const NETWORKS: &str = "docs/networks.md";
/// Name of the agents' DaemonSet, also in Istio's charts.
const AGENT: &str = "istio-cni-node";
/// Name of ztunnel's DaemonSet in Istio's chart.
const ZTUNNEL: &str = "ztunnel";
/// Linux version from which on no iptables tools are needed (docs/firewall.md).
const KERNEL: (u32, u32) = (4, 18);

/// Advice for what a pod could not determine: no agent container exists yet that could.
const UNKNOWN_YET: &str = "Remove the reason and repeat the check, or run install-cni check in the agent's container after the installation.";

/// Condition that holds if the check of some of the nodes passed.
const SAMPLED: &str = "every checked node passed the check of what capture needs";

/// Objects of the cluster's network and of the mesh, reduced to what findings need.
#[derive(Clone, Debug, Default)]
pub struct NetworkObjects {
    /// All DaemonSets.
    pub daemon_sets: Vec<DaemonSet>,
    /// ConfigMap `cilium-config`.
    pub cilium: Option<Value>,
    /// Calico's FelixConfiguration `default`.
    pub felix: Option<Value>,
    /// Configuration of OpenShift's Cluster Network Operator.
    pub openshift: Option<Value>,
}

/// Node checks run by pods, by node; an error: why a node could not be checked.
pub type NodeChecks = BTreeMap<String, Result<Vec<PreflightCheck>, String>>;

/// Output of `millrace check --pre`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PreflightReport {
    /// Name and version of the schema.
    pub schema: &'static str,
    /// Overall result.
    pub verdict: Verdict,
    /// Number of nodes on which the agent would run; `None`: nodes could not be read.
    pub nodes: Option<usize>,
    /// Number of nodes that a pod has checked.
    pub checked: usize,
    /// All checks with their results.
    pub checks: Vec<CheckLine>,
    /// All findings, sorted by code and object.
    pub findings: Vec<Finding>,
}

impl PreflightReport {
    /// Returns the exit status for scripts, as [`crate::CheckReport::status`].
    pub fn status(&self, least: Severity) -> u8 {
        exit_status(self.checks.iter().filter_map(|line| line.severity).max(), least)
    }
}

/// Returns the nodes on which the agent would run.
pub fn installation_nodes(cluster: &Cluster) -> Vec<&Node> {
    cluster.nodes.iter().filter(|node| is_linux(node)).collect()
}

/// Checks a cluster before an installation. `cluster` has nodes, pods, policies, and what could not be read; `None`: node checks by
/// pods were not requested.
pub fn check_before_installation(
    cluster: &Cluster,
    objects: &NetworkObjects,
    node_checks: Option<&NodeChecks>,
) -> PreflightReport {
    let nodes = installation_nodes(cluster);
    let mut findings: Vec<Finding> = nodes.iter().flat_map(|node| node_findings(node)).collect();
    findings.extend(mesh_findings(objects, cluster.has_read("daemonsets")));
    findings.extend(networks::findings(objects, &nodes));
    let of_nodes = node_checks.into_iter().flatten().flat_map(|(node, checks)| match checks {
        Ok(checks) => preflight_findings(node, checks),
        Err(why) => vec![unchecked_node(node, why)],
    });
    findings.extend(of_nodes.map(|finding| match finding.severity {
        Severity::Unknown => Finding { hint: UNKNOWN_YET.to_owned(), ..finding },
        Severity::Warning | Severity::Error => finding,
    }));
    let pods = || cluster.pods.iter().filter(|pod| may_join(pod));
    findings.extend(pods().filter_map(declared_finding));
    let pods = pods().map(|pod| (pod, Some(default_probe_source(pod))));
    let blocked = policy_findings(pods, &cluster.policies, "that a label would bring into the mesh");
    // Until the installation nothing is blocked.
    findings.extend(blocked.into_iter().map(|finding| Finding { severity: Severity::Warning, ..finding }));
    let findings = complete_findings(findings, &cluster.unread);
    let missing = Missing { cluster, findings: &findings };
    let is_meant = |code: &&Code| {
        code.belongs_to_preflight() && (**code != Code::NodePreflight || node_checks.is_some())
    };
    let codes = Code::ALL.iter().filter(is_meant);
    let mut checks = check_lines(codes, &findings, |code| missing.missing_objects(code));
    if node_checks.is_some_and(|checks| checks.len() < nodes.len()) {
        let of_nodes = checks.iter_mut().filter(|line| line.code == Code::NodePreflight);
        of_nodes.for_each(|line| line.title = SAMPLED);
    }
    PreflightReport {
        schema: "millrace.preflight/v1",
        verdict: overall_verdict(&checks),
        nodes: cluster.node_count(nodes.len()),
        checked: node_checks.into_iter().flatten().filter(|(_, checks)| checks.is_ok()).count(),
        checks,
        findings,
    }
}

/// Whether a label can bring the pod into ambient mode. The chart excludes kube-system by default.
fn may_join(pod: &Pod) -> bool {
    let mut labelled = Namespace::default();
    let _ = labelled.metadata.labels.insert(DATAPLANE_MODE.to_owned(), "ambient".to_owned());
    mesh_membership(pod, Some(&labelled)) == Some(RedirectionMode::InPod)
        && pod.metadata.namespace != "kube-system"
}

fn node_findings(node: &Node) -> impl Iterator<Item = Finding> {
    let (name, info) = (&node.metadata.name, &node.status.node_info);
    let (kernel, runtime) = (&info.kernel_version, &info.container_runtime_version);
    let is_old = parse_version(kernel).is_some_and(|found| found < KERNEL);
    let old =
        is_old.then(|| Finding::for_node(Code::KernelOld, name, format!("its kernel is Linux {kernel}")));
    let message = format!("its container runtime is {runtime}");
    let is_untested = !runtime.is_empty() && !is_tested(runtime);
    let untested = is_untested.then(|| Finding::for_node(Code::RuntimeUntested, name, message));
    old.into_iter().chain(untested)
}

/// Whether a container runtime is tested, according to docs/platforms.md: containerd from 1.6, CRI-O from 1.34.
fn is_tested(runtime: &str) -> bool {
    let at_least = |name: &str, least| {
        runtime.strip_prefix(name).and_then(parse_version).is_some_and(|version| version >= least)
    };
    at_least("containerd://", (1, 6)) || at_least("cri-o://", (1, 34))
}

/// Returns the first two numbers of a version.
fn parse_version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.trim_start_matches('v').split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn mesh_findings(objects: &NetworkObjects, knows_daemon_sets: bool) -> Vec<Finding> {
    let of_name =
        |name: &'static str| objects.daemon_sets.iter().filter(move |found| found.metadata.name == name);
    let installed = of_name(AGENT).map(|found| {
        let image = found.spec.template.spec.containers.first().map_or("", |container| &container.image);
        let meta = &found.metadata;
        let object = ObjectName::in_namespace("DaemonSet", &meta.namespace, &meta.name);
        Finding::new(Code::AgentInstalled, object, format!("it runs the image {image}"))
    });
    let mut findings: Vec<Finding> = installed.collect();
    if knows_daemon_sets && of_name(ZTUNNEL).next().is_none() {
        let message = "there is no DaemonSet ztunnel in any namespace";
        findings.push(Finding::new(Code::NoZtunnel, ObjectName::cluster(), message));
    }
    findings
}

#[cfg(test)]
#[expect(clippy::needless_pass_by_value, reason = "json!(..) stands in the calls")]
mod tests;
