//! The ambient node's agent: takes in facts and the plugin's requests, and keeps the node's network namespace as they
//! want it.
//!
//! One thread owns that namespace. Everything else sends it messages ([`AgentHandle`]); it looks, plans, does, looks again,
//! and tells what came of it. It never waits for the API server. The plugin's socket is served by threads of their own,
//! which wait in its place.

mod agent_state;
mod auto;
mod capture_mode;
mod error;
mod history;
mod inpod;
mod inspect;
mod ledger;
mod metrics;
mod node;
mod notice;
mod pause;
mod reconciler;
mod settings;
mod socket;
mod status;
mod uninstall;

pub use error::Error;
pub use history::now;
pub use inspect::{Inspector, Plain, add_failures, look_alone, prune_records, read_records};
pub use ledger::{Attachment, Ledger};
pub use metrics::Metrics;
pub use notice::{About, Notice, NoticeLevel, Notify};
pub use pod_status::Redirection;
pub use reconciler::{AgentHandle, Inbox, Reconciler};
pub use settings::{AnnotationUpdate, CaptureConfig, InPodConfig, Lookup, Settings, Tell};
pub use socket::{Server, ServerError, Service};
pub use status::Status;
pub use uninstall::uninstall;
