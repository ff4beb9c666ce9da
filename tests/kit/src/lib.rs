//! The base of integration tests, demo and benchmarks: nodes and pods made of network namespaces, a container runtime that runs CNI
//! chains as containerd does, traffic whose servers report what they saw, and a real API server. Everything uses the kernel, so it
//! only works inside `hack/sandbox`, in which cargo runs every test and binary.
//!
//! It must not contain logic of Millrace: a test that takes its expectation from the code under test proves nothing. So namespaces
//! are created here by hand, not by `pkg/netns`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "test code: a broken set-up shall stop the test at once, where it broke, in words"
)]

mod api;
mod artefacts;
mod attack;
mod client;
mod container;
mod fake_api;
mod helper;
mod inpod;
pub mod istio;
mod kubelet;
mod live;
mod log;
mod manifests;
mod netns;
mod node;
mod pki;
pub mod plugin_rules;
mod pod;
mod process;
mod process_table;
mod rule_crowd;
mod runtime;
mod service;
mod traffic;
mod user_netns;
mod wait;
mod watch;
mod ztunnel;

pub use api::{
    ApiServer, Auth, Request, StoredPod, has_segment, is_streaming_list, is_watch, kubeconfig, parameter,
};
pub use artefacts::{
    binary, copy_program, has_other_users, kit_traffic, sandboxed, skip, write_script, write_without_ipv6,
};
pub use attack::{HalfOpen, LegacyLock, LockHolder};
pub use base64;
pub use client::{Answer, Client};
pub use container::{Container, Daemon, NETWORK_CONFIG, logged};
pub use fake_api::{FakeApi, FakeEvents, FakeReply, FakeRequest};
pub use inpod::{InpodOptions, InpodZtunnel, Workload, WorkloadState, ZdsMessage};
pub use kubelet::{Forwarded, ForwardedReply, ForwardedStart, SimulatedKubelet};
pub use live::{Broken, Live, LiveConnections, LiveReport, Opened};
pub use log::{LogLine, has_line, has_logged, log_lines};
pub use manifests::{Manifests, NODE_NAME};
pub use netns::Netns;
pub use node::{Families, Node, NodeOptions};
pub use pki::{Certificate, ISSUER, Pki};
pub use pod::{Pod, PodSandbox};
pub use process::{PluginOutput, exec_plugin};
pub use process_table::ProcessTable;
pub use rule_crowd::{fill_with_rules, fill_with_services};
pub use runtime::{Added, Call, ChainError, Runtime};
pub use service::{ProxyMode, Service, wants_ipvs};
pub use tempfile::TempDir;
pub use traffic::{
    Client as TrafficClient, Echo, Failure, FailureKind, Proto, Seen, Serve, become_user, connect,
};
pub use user_netns::UserNetns;
pub use wait::{Condition, SetOnDrop, found_within, holds_for, until, until_steady, until_within};
pub use watch::{Counts, UplinkWatch};
pub use ztunnel::{Relayed, Via, Ztunnel, ZtunnelOptions};
