//! The installer and the agent's command line: files that it installs on a node, maintains and removes. Each test creates its own
//! node; see `kit`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "all of this is tests, also what clippy does not recognise as such"
)]

#[path = "../fixtures/fixtures.rs"]
mod fixtures;

mod architecture;
mod commands_cli;
mod import_cycles;
mod install_cli;
mod install_conflict;
mod install_crash;
mod install_faults;
mod install_first;
mod install_heal;
mod install_modes;
mod uninstall;
