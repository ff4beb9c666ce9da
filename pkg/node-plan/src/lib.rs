//! The node path of ambient capture: what the node's network namespace, and that of the local ztunnel, must hold so
//! that enrolled pods' traffic goes through ztunnel; and the ordered steps from what is there to that.
//!
//! Two slots, each a complete path into one ztunnel's network namespace, stand side by side during a rollout. Two bits
//! of the connection mark remember the slot that a connection began in, so it stays there; a switch only changes
//! where new connections go. `docs/ambient.md` draws the whole.
//!
//! Pure. `nodepath` observes and applies.

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
    Direction, LinkPair, captured_marks, inside_table, is_our_inside_rule, is_our_rule, link_pairs,
    member_routes, policy_rules, watched_inside_sysctls, watched_sysctls,
};
