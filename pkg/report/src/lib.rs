//! State of an agent and its node as one document ([`StateReport`]), and all renderings of it.
//!
//! Pure. The document is made by `agent`, from the desired state and the kernel's, or by a command of `install-cni` from the kernel
//! and files alone. Everything shown to people, such as page, table, explanation or exit status, is derived from the document and
//! nothing else, so that all of them agree.

mod changes;
mod compare;
mod conclusions;
mod document;
mod explain;
mod findings;
mod junit;
mod network;
mod pod;
mod preflight;
mod proof;
mod sarif;
mod simulation;
mod state;
pub mod tables;
mod text;
mod yaml;

pub use changes::{NodeWatch, StateChange};
pub use compare::{Comparison, DifferenceKind, OfFamily, StateDifference};
pub use document::DocumentError;
pub use explain::{Explanation, PodVerdict, explain_pod, is_captured_with_fault, missing_ztunnel};
pub use findings::{NodeFinding, PreflightCheck, Severity, StateCause, exit_status};
pub use junit::{JunitCase, render_junit};
pub use network::{
    CidrAddress, FirewallRule, LinkState, NetworkState, PolicyRuleState, RouteState, SetMember, SysctlState,
};
pub use pod::{BypassView, KernelView, NetnsRef, PodState, StateReason, ZtunnelView};
pub use pod_status::{CaptureState, RedirectionMode};
pub use preflight::{
    AppArmorProfile, NodePreflight, Observed, PREFLIGHT_SCHEMA, PreflightCode, PreflightFact, ProbeSources,
    SeLinuxContext, TablesInUse, TokenTimes, Trial, judge_preflight, preflight_error,
};
pub use proof::{Proof, ProofPath, ProofResult, proofs_status, proofs_text};
pub use sarif::{SarifResult, SarifRule, render_sarif};
pub use simulation::{
    ChangeError, LabelChange, MAX_SETTINGS, MembershipEffect, NodeSimulation, SIMULATION_SCHEMA,
    SettingsChange, SimulatedChange, SimulatedPod, SimulatedProblem, list_ports, simulation_notes,
};
pub use state::{
    ChangeRecord, ChangeStatus, EffectiveSetting, InstalledFile, MAX_DOCUMENT, NOT_SYNCED, NodeState,
    Observer, PartHealth, PlanStep, Provenance, SCHEMA, StatePart, StateReport, Unobserved, ZtunnelState,
};
pub use text::{excerpt, format_count, is_object_name, link_docs, percent_encode, sanitize_text};
pub use yaml::to_yaml;

/// HTML page for browsers, which fetches the document from `debug/state` and explanations from `debug/explain`. Equal for every
/// node, and loads nothing from elsewhere.
pub const PAGE: &str = include_str!("page.html");
