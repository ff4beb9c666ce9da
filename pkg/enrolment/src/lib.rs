//! Decision on a pod, with its reason, shared by the plugin and the agent.
//!
//! Pure. A decision has two stages, so that facts are requested only if needed: [`decide_early`] uses the runtime's call alone,
//! then [`decide`] the pod. Each outcome carries its reason.
//!
//! The agent's knowledge is a [`FactIndex`] of facts. Membership in the mesh ([`ambient`], the same predicate as at ADD) and the
//! node's proxy ([`ztunnel`]) are derived from it.

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
