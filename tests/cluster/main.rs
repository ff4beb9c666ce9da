//! The agent with a real API server, and its reports to people. Each test creates its own node; see `kit`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "all of this is tests, also what clippy does not recognise as such"
)]

#[path = "../fixtures/fixtures.rs"]
mod fixtures;

mod ambient_api;
mod chart;
mod dashboards;
mod debug_state;
mod events_api;
mod explain_cli;
mod facts_api;
mod inpod_api;
mod install_api;
mod install_manifests;
mod istio_charts;
mod least_privilege;
mod node_taint;
mod pod_repair;
mod sidecar_agent;
