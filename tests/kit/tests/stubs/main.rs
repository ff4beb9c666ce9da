//! Behaviour of the kit's stand-ins, and of its waits: networks, runtimes, API servers, ztunnels and agents behave as the tests
//! require.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    reason = "all of this is tests, also what clippy does not recognise as such"
)]

mod api;
mod inpod;
mod network;
mod runtime;
mod waiting;
mod ztunnel;
