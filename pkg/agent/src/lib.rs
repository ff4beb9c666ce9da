//! Node agent of ambient mode: receives facts and the plugin's requests, and keeps the node's pods captured.
//!
//! One thread ([`Reconciler`]) holds all state. Everything else sends it messages ([`AgentHandle`]); it observes, plans, applies,
//! verifies and reports. It never waits for the API server. The plugin's socket has threads of its own, which wait so that the
//! reconciler need not.
//!
//! Capture is performed by a [`CaptureMode`], which the daemon passes in; this crate knows no implementation.

mod agent_state;
mod annotation;
mod capture_mode;
mod history;
mod history_file;
mod ledger;
mod membership_pace;
mod mesh_pods;
mod metrics;
mod notice;
mod plugin_metrics;
mod reconciler;
mod records;
mod sidecars_only;
mod snapshot;
mod socket;
mod status;
mod watch_health;

pub use agent_state::{AgentState, ChangedPods};
pub use annotation::{AnnotationSink, AnnotationUpdate};
pub use capture_mode::{CaptureMode, CaptureReply, CaptureResult, PodEnrolment};
pub use history::{ChangeHistory, HistoryEntry, join_reasons, summarize_steps, to_milliseconds};
pub use history_file::read_history;
pub use ledger::{AttachmentLedger, PodAttachment};
pub use mesh_pods::MeshPodMetrics;
pub use metrics::AgentMetrics;
pub use notice::{NoticeSink, NoticeTracker, RulesPlace};
pub use plugin_metrics::PluginMetrics;
pub use pod_status::Redirection;
pub use reconciler::{AgentHandle, AgentOutputs, ReconcileScope, Reconciler, ReconcilerInbox};
pub use records::RecordIndex;
pub use sidecars_only::SidecarsOnly;
pub use snapshot::{AgentSnapshot, CaptureSnapshot, EnrolledPodView, KnownPod};
pub use socket::{AgentServer, AgentService, FetchedPod, PodFetcher};
pub use status::AgentStatus;
pub use watch_health::StaleCollection;
