//! Capture status of a pod, derived in one place.
//!
//! [`Evidence`] is the knowledge about a pod at one moment, as plain values; [`Evidence::classify`] derives a [`CaptureStatus`].
//! The agent fills in the evidence from its own state and the kernel, a command without an agent from the kernel and from records.
//! The annotation `ambient.istio.io/redirection`, Events, metrics, `explain`, `list`, `verify`, the page and exit statuses are
//! derived from the status, so none of them can contradict another.
//!
//! [`lifecycle`] is the life cycle of a pod with in-pod capture, as a state machine that yields such evidence.
//!
//! Pure: no clock, kernel, file or message is read here, and no text is interpreted.

mod evidence;
pub mod lifecycle;
mod state;

pub use evidence::{Evidence, MeshMembership, PodLife, ProxyEvidence, RulesEvidence};
pub use state::{CaptureState, CaptureStatus, Redirection, RedirectionMode};
