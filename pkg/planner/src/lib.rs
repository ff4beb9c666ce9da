//! What should happen to a pod, and why: the one decision that the plugin and the agent share.
//!
//! Pure. A decision is made in two stages, so that nobody asks for facts that are not needed:
//! [`enrolment::decide_early`] from what the runtime's call alone tells, then [`enrolment::decide`] from the pod.
//! Each outcome carries its reason. [`placement`] tells an upgrade of the agent from its removal.

pub mod annotations;
pub mod enrolment;
pub mod placement;

pub use annotations::InvalidAnnotation;
pub use enrolment::{Call, Decision, Enrolled, Passed, Policy, Redirect, decide, decide_early};
