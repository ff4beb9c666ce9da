//! Node path of ambient capture: the objects that the network namespaces of the node and of its ztunnels must have so
//! that enrolled pods' traffic is redirected through ztunnel; and the ordered operations from the observed state to
//! that.
//!
//! Two slots, each a complete path into one ztunnel's network namespace, coexist during a rollout. Two bits of the
//! connection mark hold the slot in which a connection began, so that it stays there; a switch only redirects new
//! connections. `docs/ambient.md` has a figure of the node path.
//!
//! Pure. `node-capture` observes and applies.

mod config;
mod desired;
mod diff;
mod operation;
mod plan;
mod slots;
mod state;
mod want;

pub use config::{LinkNetworks, NodeConfig, RouteTables, RulePriorities, ZtunnelFallback};
pub use desired::{DesiredNode, DesiredPlace, desired_node};
pub use operation::{NetnsPlace, Operation, RouteEdit};
pub use plan::plan_operations;
pub use slots::{KernelSlots, SlotAssignment, assign_slots, prepare_slot};
pub use state::{
    DesiredState, ObservedInside, ObservedLink, ObservedState, PathRoute, PathRule, RouteTo, ZtunnelInstance,
    ZtunnelSlot,
};
pub use want::{
    Direction, LinkPair, captured_marks, find_first_priority, inside_table, is_our_inside_rule, is_our_rule,
    link_pairs, member_routes, policy_rules, watched_inside_sysctls, watched_sysctls,
};
