//! Firewall rules as values: what we want in a network namespace, how it reads as `iptables-restore` input, how
//! a save of either iptables backend reads back, and which text turns the one into the other.
//!
//! Pure. `firewall` runs the tools; this crate only computes their input and understands their output. The
//! model speaks of matches and targets as types, never of iptables words in strings, so that another engine
//! (nf_tables over netlink) can apply the same rules.
//!
//! Reading order: [`ir`] (the model), [`sidecar`] (the rule set of a sidecar pod), [`node`] (those of a node and
//! its ztunnel), [`inpod`] (those of a pod that ztunnel serves from within, and of its node), [`mod@print`] and [`parse`] (text), [`plan`] (desired against observed), [`native`] (the
//! same rules in tables of nf_tables' own).

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
