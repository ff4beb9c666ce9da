//! In-pod capture, on the kernel. Each test creates its own node; see `kit`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "all of this is tests, also what clippy does not recognise as such"
)]

#[path = "../fixtures/fixtures.rs"]
mod fixtures;

mod attack_annotations;
mod attack_bypass;
mod attack_flap;
mod attack_identity;
mod attack_lists;
mod attack_locks;
mod attack_probe_source;
mod attack_records;
mod attack_rules;
mod attack_second_agent;
mod attack_tables;
mod attack_ztunnel_socket;
mod faults_descriptors;
mod faults_netlink;
mod faults_newer;
mod faults_no_ipv6;
mod faults_pods;
mod inpod_auto;
mod inpod_branch;
mod inpod_check;
mod inpod_drift;
mod inpod_exceptions;
mod inpod_existing;
mod inpod_history;
mod inpod_kube_proxy;
mod inpod_lifecycle;
mod inpod_modern;
mod inpod_native;
mod inpod_options;
mod inpod_paths;
mod inpod_pods;
mod inpod_preflight;
mod inpod_probe_source;
mod inpod_proof;
mod inpod_restart;
mod inpod_simulate;
mod inpod_uninstall;
