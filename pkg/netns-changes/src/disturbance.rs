//! Changes of a network namespace, from the first notification to the observation that follows.

use std::time::Instant;

use crate::{Change, ChangeKinds, Writer, notification::later_writer};

/// One or more changes of a network namespace that lead to an observation.
#[derive(Clone, Debug)]
pub struct NetnsDisturbance {
    /// When the first one was noticed.
    pub noticed: Instant,
    kinds: ChangeKinds,
    generation: Option<u32>,
    writer: Option<Writer>,
}

impl NetnsDisturbance {
    /// Creates a disturbance from this change, which is noticed now.
    pub fn new<K>(change: Change<K>) -> NetnsDisturbance {
        let Change { kinds, generation, writer, .. } = change;
        NetnsDisturbance { noticed: Instant::now(), kinds, generation, writer }
    }

    /// Merges both: the first time of notice, and the last writer, unless it is a thread of ours.
    #[must_use]
    pub fn merge_with(self, later: NetnsDisturbance) -> NetnsDisturbance {
        NetnsDisturbance {
            noticed: self.noticed,
            kinds: self.kinds | later.kinds,
            generation: later.generation.or(self.generation),
            writer: later_writer(self.writer, later.writer),
        }
    }

    /// Returns whether all changes were observed: only firewall rules changed, and these were read since. Includes
    /// changes that we made ourselves.
    pub fn was_observed(&self, generation: Option<u32>) -> bool {
        self.kinds == ChangeKinds::FIREWALL && generation.is_some() && self.generation == generation
    }

    /// Returns the part that was not observed, without the writer of firewall rules that were read since. `None`: all of
    /// it was, as with [`NetnsDisturbance::was_observed`].
    pub fn without_observed(self, generation: Option<u32>) -> Option<NetnsDisturbance> {
        if generation.is_none() || self.generation != generation {
            return Some(self);
        }
        let kinds = self.kinds.without_kinds(ChangeKinds::FIREWALL);
        (!kinds.is_empty()).then_some(NetnsDisturbance { kinds, generation: None, writer: None, ..self })
    }

    /// Returns the kind of objects that changed, as a label of metrics.
    pub fn metric_label(&self) -> &'static str {
        const LABELS: [(ChangeKinds, &str); 5] = [
            (ChangeKinds::FIREWALL, "firewall"),
            (ChangeKinds::POLICY_RULES, "policy_rules"),
            (ChangeKinds::ROUTES, "routes"),
            (ChangeKinds::ADDRESSES, "addresses"),
            (ChangeKinds::LINKS, "links"),
        ];
        LABELS.iter().find(|(kind, _)| self.kinds.contains(*kind)).map_or("unknown", |(_, label)| label)
    }

    /// Returns the process that changed firewall rules, by name and ID, for reports.
    pub fn writer_name(&self) -> Option<String> {
        self.writer.as_ref().map(|writer| format!("{} (process {})", writer.name, writer.pid))
    }
}
