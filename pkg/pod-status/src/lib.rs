//! Is this pod captured? The one answer.
//!
//! [`Evidence`] is what is known of a pod at one moment, as plain values; [`Evidence::classify`] turns it into a
//! [`CaptureStatus`]. The agent fills in the evidence from its own state and the kernel, a command without an agent from the
//! kernel and from records. The annotation `ambient.istio.io/redirection`, Events, metrics, `explain`, `list`, `verify`, the
//! page and exit statuses are derived from the status, so none of them can contradict another.
//!
//! [`lifecycle`] is the life of a pod that is captured in-pod, as a state machine that yields such evidence.
//!
//! Pure: no clock, kernel, file or message is read here, and no text is interpreted.

mod evidence;
pub mod lifecycle;
mod state;

pub use evidence::{Evidence, MeshMembership, PodLife, ProxyEvidence, RulesEvidence};
pub use state::{CaptureState, CaptureStatus, Redirection, RedirectionMode};
