//! The messages on our Unix sockets in `/var/run/istio-cni/`, as values: for now the log records that the plugin posts to
//! `log.sock`.
//!
//! Pure: values to text and back. It must not open sockets or read the clock. Called by the plugin, which sends, and by
//! the agent, which receives.

mod log;
mod time;

pub use log::{Level, LogLineError, LogRecord, parse_post_body, post_body};
pub use time::rfc3339_micros;
