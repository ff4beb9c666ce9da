//! Node path of ambient capture in the kernel: observes the objects of `node_plan`, and applies its operations.
//!
//! Called by the agent, one thread of which owns a [`NodePath`], and by the plugin, which enrols a pod by itself when
//! the agent is unavailable ([`EnrolledMembers`]). This crate decides nothing, and keeps no state that the kernel does
//! not show.

mod apply;
mod convert;
mod error;
mod inside;
mod locate;
mod members;
mod observe;
mod overrule;
mod restore;
mod ztunnel_watcher;

pub use error::Error;
pub use locate::LocatedPod;
pub use members::{EnrolledMembers, set_names};
pub use observe::NodePath;
pub use ztunnel_watcher::ZtunnelWatcher;
