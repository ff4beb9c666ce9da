//! What the daemon tells about itself: log lines in Istio's format, metrics, health, its state for people who look for
//! a fault, and the socket that takes the plugin's log lines.
//!
//! It runs in few megabytes beside the daemon's work: nothing here ticks, whatever a client can make us hold is bounded,
//! and nobody who is slow, silent or gone can stop the daemon. It must not know what the daemon does: health, metrics
//! and state are handed to it. It must not end the process or panic because a line could not be written.
//!
//! Called by `install-cni`; the other crates of the daemon log through `tracing`, with a scope of Istio's as target
//! (`tracing::info!(target: "install", …)`).

mod connections;
pub mod debug;
pub mod http;
pub mod local;
pub mod log_server;
pub mod logging;
pub mod metrics;
