//! Node-level capture, on the kernel. Each test creates its own node; see `kit`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "all of this is tests, also what clippy does not recognise as such"
)]

#[path = "../fixtures/fixtures.rs"]
mod fixtures;

mod ambient_alone;
mod ambient_drift;
mod ambient_enrolment;
mod ambient_paths;
mod ambient_policies;
mod ambient_preflight;
mod ambient_restart;
mod ambient_reuse;
mod ambient_rollout;
mod ambient_uninstall;
mod attack_sockets;
mod attack_together;
mod debug_load;
mod page_browser;
