//! All tests that need a kernel, a container runtime or an API server, in one program. Each makes its own
//! node; see `kit`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "all of this is tests, also what clippy does not recognise as such"
)]

#[path = "tests/clean.rs"]
mod clean;
#[path = "tests/install_first.rs"]
mod install_first;
#[path = "tests/iptables_cli.rs"]
mod iptables_cli;
#[path = "tests/kit_api.rs"]
mod kit_api;
#[path = "tests/kit_network.rs"]
mod kit_network;
#[path = "tests/kit_runtime.rs"]
mod kit_runtime;
#[path = "tests/plugin_api.rs"]
mod plugin_api;
#[path = "tests/plugin_calls.rs"]
mod plugin_calls;
#[path = "tests/plugin_crash.rs"]
mod plugin_crash;
#[path = "tests/plugin_log.rs"]
mod plugin_log;
#[path = "tests/plugin_replay.rs"]
mod plugin_replay;
#[path = "tests/sidecar_kernel.rs"]
mod sidecar_kernel;
#[path = "tests/sidecar_traffic.rs"]
mod sidecar_traffic;
