//! Telemetry of the daemon: log lines in Istio's format, metrics, health, its state for troubleshooting, and the socket that
//! receives the plugin's log lines.
//!
//! Uses few megabytes beside the daemon's work: there are no periodic timers, all memory that a client can occupy is bounded, and
//! no slow, silent or vanished client can block the daemon. The crate must not know what the daemon does: health, metrics and state
//! are passed to it. It must not end the process or panic because a line could not be written.
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
