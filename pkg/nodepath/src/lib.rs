//! The node path of ambient capture in the kernel: looks at all that `node_plan` speaks of, and does its steps.
//!
//! Called by the agent, whose one owner thread holds a [`NodePath`], and by the plugin, which enrols a pod alone when
//! the agent is unavailable ([`EnrolledMembers`]). It decides nothing, and remembers nothing as done that the kernel does not show.

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
