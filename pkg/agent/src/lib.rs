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
mod ledger;
mod metrics;
mod node;
mod notice;
mod open;
mod reconciler;
mod records;
mod settings;
mod snapshot;
mod socket;
mod status;
mod uninstall;

pub use agent_state::{AgentState, life};
pub use capture_mode::{CaptureMode, CaptureReply, CaptureResult, PodEnrolment};
pub use error::Error;
pub use history::{ChangeHistory, HistoryEntry, milliseconds, summary};
pub use ledger::{AttachmentLedger, PodAttachment};
pub use metrics::AgentMetrics;
pub use node::{found as found_on_node, open_path};
pub use notice::{AgentNotice, NoticeLevel, NoticeSink, NoticeSubject, NoticeTracker};
pub use open::open;
pub use pod_status::Redirection;
pub use reconciler::{AgentHandle, ReconcileScope, Reconciler, ReconcilerInbox};
pub use records::{prune as prune_records, read as read_records};
pub use settings::{AgentSettings, AnnotationSink, AnnotationUpdate, CaptureConfig, InPodConfig, PodFetcher};
pub use snapshot::{AgentSnapshot, CaptureSnapshot, EnrolledPodView, KnownPod};
pub use socket::{AgentServer, AgentService, ServerError};
pub use status::AgentStatus;
pub use uninstall::uninstall;
