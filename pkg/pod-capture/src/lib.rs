//! In-pod capture on the kernel's side: the rules and the policy route in the namespace of a captured pod, the set and
//! the rules on the node that let its probes pass, and the namespaces of running pods.
//!
//! Each operation observes first and changes only what differs, so repeating one changes nothing, and objects of an
//! earlier agent are adopted. This crate decides nothing about pods (`enrolment` does), and does not know ztunnel
//! (`zds` does).

mod addresses;
mod branch;
mod error;
mod existing;
mod find;
mod listener;
mod node;
mod node_network;
mod overrule;
mod pod;
mod taken;

pub use addresses::netns_addresses;
pub use conntrack::ConnectionsReport;
pub use error::Error;
pub use existing::{BypassingConnections, JoiningSockets, is_dns_received, joining_sockets};
pub use find::{
    NetnsAnswer, NetnsFinder, NetnsMatch, NetnsQuery, find_pod_netns, process_netns, recorded_netns,
};
pub use listener::has_listener;
pub use node::{NodeProbes, ProbeRules, probe_set_name};
pub use pod::{
    CaptureReport, PodRulesSnapshot, PodRulesSpec, capture_pod, captured_families, observe_each, observe_pod,
    release_pod,
};
pub use taken::find_taken_numbers;
