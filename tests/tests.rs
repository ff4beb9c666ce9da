//! All tests that need a kernel, a container runtime or an API server, in one program. Each makes its own
//! node; see `kit`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "all of this is tests, also what clippy does not recognise as such"
)]

#[path = "tests/ambient_alone.rs"]
mod ambient_alone;
#[path = "tests/ambient_api.rs"]
mod ambient_api;
#[path = "tests/ambient_enrolment.rs"]
mod ambient_enrolment;
#[path = "tests/ambient_paths.rs"]
mod ambient_paths;
#[path = "tests/ambient_policies.rs"]
mod ambient_policies;
#[path = "tests/ambient_restart.rs"]
mod ambient_restart;
#[path = "tests/ambient_reuse.rs"]
mod ambient_reuse;
#[path = "tests/ambient_rollout.rs"]
mod ambient_rollout;
#[path = "tests/ambient_stage.rs"]
mod ambient_stage;
#[path = "tests/ambient_uninstall.rs"]
mod ambient_uninstall;
#[path = "tests/architecture.rs"]
mod architecture;
#[path = "tests/attack_annotations.rs"]
mod attack_annotations;
#[path = "tests/attack_bypass.rs"]
mod attack_bypass;
#[path = "tests/attack_lists.rs"]
mod attack_lists;
#[path = "tests/attack_locks.rs"]
mod attack_locks;
#[path = "tests/attack_probe_source.rs"]
mod attack_probe_source;
#[path = "tests/attack_rules.rs"]
mod attack_rules;
#[path = "tests/attack_second_agent.rs"]
mod attack_second_agent;
#[path = "tests/attack_sockets.rs"]
mod attack_sockets;
#[path = "tests/attack_together.rs"]
mod attack_together;
#[path = "tests/clean.rs"]
mod clean;
#[path = "tests/commands_cli.rs"]
mod commands_cli;
#[path = "tests/dashboards.rs"]
mod dashboards;
#[path = "tests/debug_load.rs"]
mod debug_load;
#[path = "tests/debug_state.rs"]
mod debug_state;
#[path = "tests/events_api.rs"]
mod events_api;
#[path = "tests/explain_cli.rs"]
mod explain_cli;
#[path = "tests/facts_api.rs"]
mod facts_api;
#[path = "tests/faults_descriptors.rs"]
mod faults_descriptors;
#[path = "tests/faults_netlink.rs"]
mod faults_netlink;
#[path = "tests/faults_newer.rs"]
mod faults_newer;
#[path = "tests/faults_no_ipv6.rs"]
mod faults_no_ipv6;
#[path = "tests/faults_pods.rs"]
mod faults_pods;
#[path = "tests/inpod_api.rs"]
mod inpod_api;
#[path = "tests/inpod_auto.rs"]
mod inpod_auto;
#[path = "tests/inpod_branch.rs"]
mod inpod_branch;
#[path = "tests/inpod_drift.rs"]
mod inpod_drift;
#[path = "tests/inpod_existing.rs"]
mod inpod_existing;
#[path = "tests/inpod_lifecycle.rs"]
mod inpod_lifecycle;
#[path = "tests/inpod_modern.rs"]
mod inpod_modern;
#[path = "tests/inpod_options.rs"]
mod inpod_options;
#[path = "tests/inpod_paths.rs"]
mod inpod_paths;
#[path = "tests/inpod_pods.rs"]
mod inpod_pods;
#[path = "tests/inpod_restart.rs"]
mod inpod_restart;
#[path = "tests/inpod_stage.rs"]
mod inpod_stage;
#[path = "tests/inpod_uninstall.rs"]
mod inpod_uninstall;
#[path = "tests/install_api.rs"]
mod install_api;
#[path = "tests/install_cli.rs"]
mod install_cli;
#[path = "tests/install_conflict.rs"]
mod install_conflict;
#[path = "tests/install_crash.rs"]
mod install_crash;
#[path = "tests/install_faults.rs"]
mod install_faults;
#[path = "tests/install_first.rs"]
mod install_first;
#[path = "tests/install_heal.rs"]
mod install_heal;
#[path = "tests/install_manifests.rs"]
mod install_manifests;
#[path = "tests/install_modes.rs"]
mod install_modes;
#[path = "tests/install_stage.rs"]
mod install_stage;
#[path = "tests/iptables_cli.rs"]
mod iptables_cli;
#[path = "tests/istio_charts.rs"]
mod istio_charts;
#[path = "tests/kit_api.rs"]
mod kit_api;
#[path = "tests/kit_inpod.rs"]
mod kit_inpod;
#[path = "tests/kit_network.rs"]
mod kit_network;
#[path = "tests/kit_runtime.rs"]
mod kit_runtime;
#[path = "tests/kit_ztunnel.rs"]
mod kit_ztunnel;
#[path = "tests/least_privilege.rs"]
mod least_privilege;
#[path = "tests/millrace_cli.rs"]
mod millrace_cli;
#[path = "tests/node_taint.rs"]
mod node_taint;
#[path = "tests/page_browser.rs"]
mod page_browser;
#[path = "tests/plugin_api.rs"]
mod plugin_api;
#[path = "tests/plugin_calls.rs"]
mod plugin_calls;
#[path = "tests/plugin_crash.rs"]
mod plugin_crash;
#[path = "tests/plugin_log.rs"]
mod plugin_log;
#[path = "tests/plugin_records.rs"]
mod plugin_records;
#[path = "tests/plugin_refusal.rs"]
mod plugin_refusal;
#[path = "tests/plugin_replay.rs"]
mod plugin_replay;
#[path = "tests/plugin_rollout.rs"]
mod plugin_rollout;
#[path = "tests/pod_repair.rs"]
mod pod_repair;
#[path = "tests/rules_node.rs"]
mod rules_node;
#[path = "tests/sidecar_kernel.rs"]
mod sidecar_kernel;
#[path = "tests/sidecar_traffic.rs"]
mod sidecar_traffic;
