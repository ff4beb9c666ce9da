//! The plugin, `istio-iptables` and `istio-clean-iptables`: rules of pods with a sidecar, and traffic under them. Each test creates
//! its own node; see `kit`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "all of this is tests, also what clippy does not recognise as such"
)]

#[path = "../fixtures/fixtures.rs"]
mod fixtures;

mod beside_istio;
mod clean;
mod engine;
mod example;
mod iptables_cli;
mod native;
mod plugin_agent;
mod plugin_api;
mod plugin_calls;
mod plugin_check;
mod plugin_crash;
mod plugin_log;
mod plugin_records;
mod plugin_refusal;
mod plugin_replay;
mod plugin_rollout;
mod rules_node;
mod sidecar_kernel;
mod sidecar_proof;
mod sidecar_traffic;
