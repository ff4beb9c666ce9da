//! What should happen to a pod, and why: the one decision that the plugin and the agent share.
//!
//! Pure. A decision is made in two stages, so that nobody asks for facts that are not needed:
//! [`decide_early`] from what the runtime's call alone tells, then [`decide`] from the pod.
//! Each outcome carries its reason.
//!
//! What the agent knows is a [`FactIndex`] of facts. From it follow who is a member of the mesh ([`ambient`], the same
//! predicate as at ADD) and which proxy serves the node ([`ztunnel`]).

pub mod ambient;
pub mod annotations;
mod decision;
pub mod exceptions;
pub mod facts;
pub mod inpod;
mod lists;
pub mod reason;
pub mod selector;
pub mod ztunnel;

pub use ambient::{AMBIENT_REDIRECTION, AmbientStanding, DATAPLANE_MODE};
pub use annotations::InvalidAnnotation;
pub use decision::{
    EnrolmentPolicy, INJECT, PodDecision, RuntimeCall, STATUS, SidecarRedirect, decide, decide_early,
    needs_namespace,
};
pub use facts::{Fact, FactIndex, UnconfirmedObjects, WatchedCollection};
pub use reason::{EnrolmentReason, SkipReason};
pub use ztunnel::{ZtunnelCandidate, ZtunnelSelector};
