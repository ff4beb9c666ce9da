//! Firewall rules as values: the desired rules of a network namespace, their `iptables-restore` input, the parsed save
//! of either iptables backend, and the change from one to the other.
//!
//! Pure. `firewall` runs the tools; this crate only computes their input and parses their output. The model has types
//! for matches and targets, never iptables options in strings, so that another engine (nf_tables over netlink) can
//! apply the same rules.
//!
//! Reading order: [`ir`] (the model), [`sidecar`] (the rule set of a sidecar pod), [`node`] (those of a node and its
//! ztunnel), [`inpod`] (those of in-pod capture: in a pod, and on its node), [`mod@print`] and [`parse`] (text),
//! [`plan`] (desired against observed), [`native`] (the same rules in native tables of nf_tables).

pub mod inpod;
pub mod ir;
mod list;
pub mod native;
pub mod node;
pub mod parse;
pub mod plan;
pub mod print;
mod recorded;
pub mod sidecar;
mod verdict;

pub use ir::{
    AddressSide, Chain, CtStates, Hook, HookJump, JumpPlace, LocalRoute, Match, MatchValue, PortRange, Rule,
    RuleSet, Table, TableRules, Target, TransportProtocol,
};
pub use list::{ObservedLine, RuleLine};
pub use parse::{SavedRule, SavedTable, SavedTables, SavedTablesBuilder};
pub use plan::{AddedRule, ChainSet, RuleChange, RulePlace, TableEdit};
pub use recorded::{RecordedRules, UnknownRecordedRule};
pub use verdict::{FirstPacket, PacketVerdict};
