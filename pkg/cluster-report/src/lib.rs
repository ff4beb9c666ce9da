//! Diagnosis of a cluster's mesh nodes and pods: findings, rows and a verdict, derived from slim API objects and the answers of
//! each node's agent.
//!
//! Pure, and without requests: `cmd/millrace` reads the objects, queries the agents, and prints what is returned here.

mod check;
mod cluster;
mod finding;
mod junit;
mod objects;
mod policy;
mod preflight;
mod rows;
mod sarif;
mod simulate;
mod text;
mod ztunnel_ports;

pub use check::{
    CheckLine, CheckReport, Counts, ExceptedPod, Verdict, check, uncovered_nodes, unreported_pods,
};
pub use cluster::{Cluster, NodeAnswer, NodeMessage, UnreadObjects, mesh_membership};
pub use finding::{Code, DOCS, Finding, ObjectName, Section, Severity};
pub use junit::render_junit;
pub use objects::{Container, ContainerPort, Pod, PodSpec, Probe, ProbeTarget};
pub use policy::{
    Blocked, HBONE, IpBlock, NetworkPolicy, Peer, PolicyPort, PolicyRule, PolicySpec, PortName, Selector,
    policy_effect,
};
pub use preflight::{
    NetworkObjects, NodeChecks, PreflightReport, check_before_installation, installation_nodes,
};
pub use rows::{NodeDifferences, PodList, PodRow, VerifyReport, pod_list, verify_cluster};
pub use sarif::render_sarif;
pub use simulate::{NodeReply, SimulatedProbe, SimulatedRow, SimulationReport, simulate_change};
pub use text::{
    check_text, list_text, not_known_text, partial_text, preflight_text, simulation_text, verify_text,
};
