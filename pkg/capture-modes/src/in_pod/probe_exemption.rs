//! The state of the exemption of the node's probes.

use std::time::Instant;

use inpod::NodeProbes;
use model::{MemberAddresses, Reason};

use crate::node_watch::{NodeDisturbance, NodeDrift, NodeWatch};

/// State of the sets and rules that exempt the node's probes.
#[derive(Debug)]
pub(super) struct ProbeExemption {
    pub(super) probes: NodeProbes,
    /// The pods whose probes are to be exempt.
    pub(super) addresses: MemberAddresses,
    /// Changes of sets and rules by others.
    pub(super) drift: NodeDrift,
    /// Reports these until it is dropped.
    _watch: Option<NodeWatch>,
    /// A worker is applying them.
    pub(super) busy: bool,
    /// They have been applied at least once, successfully or not.
    pub(super) was_tried: bool,
    /// When it was noticed that another component changed the rules, which the next observation looks into.
    pub(super) rules_changed: Option<NodeDisturbance>,
    /// When it was noticed that another component changed the sets, which the next pass compares.
    pub(super) sets_changed: Option<Instant>,
    /// Why the sets cannot be maintained.
    pub(super) sets: Option<Reason>,
    /// Why the rules cannot be maintained.
    pub(super) rules: Option<Reason>,
}

impl ProbeExemption {
    pub(super) fn new(probes: NodeProbes, watch: Option<NodeWatch>, now: Instant) -> ProbeExemption {
        ProbeExemption {
            probes,
            addresses: MemberAddresses::new(),
            drift: NodeDrift::new(now),
            _watch: watch,
            busy: false,
            was_tried: false,
            rules_changed: None,
            sets_changed: None,
            sets: None,
            rules: None,
        }
    }

    /// Why probes are not exempt, if they are not.
    pub(super) fn current_problem(&self) -> Option<Reason> {
        let of = self.sets.as_ref().or(self.rules.as_ref());
        of.map(|error| format!("the node's probes are not exempt: {error}").into())
    }
}
