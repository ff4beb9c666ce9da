//! Links, addresses, routes, policy rules and kernel parameters of one network namespace: reading and changing them.
//!
//! Used by the plugin and the agent. A [`RtnetlinkHandle`] works in the netns in which it was opened (enter one through
//! `netns`). Every change is idempotent and reports whether it changed anything. This crate decides nothing, and hides
//! netlink: callers get types, and errors with messages.
//!
//! Sources: `include/uapi/linux/{rtnetlink,if_link,if_addr,fib_rules,veth,net_namespace}.h`, and the kernel functions
//! named beside the code that relies on them.

mod address;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod handle;
mod link;
mod local;
mod number;
mod route;
mod rule;
pub mod sysctl;
mod value;
mod wire;

pub use address::LinkAddress;
pub use error::Error;
pub use handle::{ChangeOutcome, RtnetlinkHandle};
pub use link::{Link, NewVeth};
pub use local::{LocalDelivery, ObservedDelivery};
pub use model::{Family, IpNet, Mark, TableId};
pub use route::{Route, RouteChange, RouteKind, RouteProtocol};
pub use rule::{OtherConditions, PolicyRule, RuleAction};
pub use value::{IpProtocol, LinkIndex, RouteScope};
