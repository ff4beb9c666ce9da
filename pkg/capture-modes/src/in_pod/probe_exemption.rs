//! The state of the exemption of the node's probes.

use std::time::Instant;

use model::{MemberAddresses, Reason};
use pod_capture::NodeProbes;

use crate::node_watch::{NodeDisturbance, NodeDrift, NodeWatch};

/// State of the sets and rules that exempt the node's probes.
pub(super) struct ProbeExemption {
    pub(super) probes: NodeProbes,
    /// The pods whose probes shall be exempt.
    pub(super) addresses: MemberAddresses,
    /// Changes of sets and rules by other components.
    pub(super) drift: NodeDrift,
    /// Reports these changes until it is dropped.
    pub(super) watch: NodeWatch,
    /// Whether a worker is applying the rules.
    pub(super) busy: bool,
    /// Whether applying the rules was attempted at least once.
    pub(super) was_tried: bool,
    /// When a foreign change of the rules was noticed, for the next observation.
    pub(super) rules_changed: Option<NodeDisturbance>,
    /// When a foreign change of the sets was noticed, for the next pass, which compares them.
    pub(super) sets_changed: Option<Instant>,
    /// Error that keeps the sets from being maintained.
    pub(super) sets: Option<Reason>,
    /// Error that keeps the rules from being maintained.
    pub(super) rules: Option<Reason>,
}

impl ProbeExemption {
    pub(super) fn new(probes: NodeProbes, watch: NodeWatch, now: Instant) -> ProbeExemption {
        ProbeExemption {
            probes,
            addresses: MemberAddresses::new(),
            drift: NodeDrift::new(now),
            watch,
            busy: false,
            was_tried: false,
            rules_changed: None,
            sets_changed: None,
            sets: None,
            rules: None,
        }
    }

    /// Forgets pods and changes, because the other capture mode removes sets and rules. Nothing restores them before a
    /// pass of this mode applies the rules again.
    pub(super) fn suspend(&mut self, now: Instant) {
        self.addresses.clear();
        self.drift = NodeDrift::new(now);
        (self.busy, self.was_tried, self.rules_changed, self.sets_changed) = (false, false, None, None);
    }

    /// Returns why probes are not exempt, if they are not.
    pub(super) fn current_problem(&self) -> Option<Reason> {
        let of = self.sets.as_ref().or(self.rules.as_ref());
        of.map(|error| format!("the node's probes are not exempt: {error}").into())
    }
}
