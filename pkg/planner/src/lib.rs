//! What should happen to a pod, and why: the one decision that the plugin and the agent share.
//!
//! Pure. A decision is made in two stages, so that nobody asks for facts that are not needed:
//! [`enrolment::decide_early`] from what the runtime's call alone tells, then [`enrolment::decide`] from the pod.
//! Each outcome carries its reason. [`placement`] tells an upgrade of the agent from its removal.
//!
//! What the agent knows is a [`FactIndex`] of facts. From it follow who is a member of the mesh ([`ambient`], the same
//! predicate as at ADD) and which proxy serves the node ([`ztunnel`]).

pub mod ambient;
pub mod annotations;
pub mod enrolment;
pub mod exceptions;
pub mod facts;
pub mod inpod;
mod lists;
pub mod node;
pub mod placement;
pub mod reason;
pub mod selector;
pub mod ztunnel;

pub use ambient::AmbientStanding;
pub use annotations::InvalidAnnotation;
pub use enrolment::{EnrolmentPolicy, PodDecision, RuntimeCall, SidecarRedirect, decide, decide_early};
pub use facts::{DoubtedObjects, Fact, FactIndex};
pub use reason::{EnrolmentReason, SkipReason};
pub use ztunnel::{ZtunnelCandidate, ZtunnelSelector};
