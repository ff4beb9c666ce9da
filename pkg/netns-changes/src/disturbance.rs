//! Changes of a network namespace, from the first notification to the observation that they lead to.

use std::time::Instant;

use crate::{Change, ChangeKinds, Writer};

/// At least one change of a network namespace that an observation follows.
#[derive(Clone, Debug)]
pub struct NetnsDisturbance {
    /// When it was noticed first.
    pub noticed: Instant,
    kinds: ChangeKinds,
    generation: Option<u32>,
    writer: Option<Writer>,
}

impl NetnsDisturbance {
    /// Begins with this change, which is noticed now.
    pub fn new<K>(change: Change<K>) -> NetnsDisturbance {
        let Change { kinds, generation, writer, .. } = change;
        NetnsDisturbance { noticed: Instant::now(), kinds, generation, writer }
    }

    /// Both: the first time that it was noticed, and the last writer.
    #[must_use]
    pub fn merge_with(self, later: NetnsDisturbance) -> NetnsDisturbance {
        NetnsDisturbance {
            noticed: self.noticed,
            kinds: self.kinds | later.kinds,
            generation: later.generation.or(self.generation),
            writer: later.writer.or(self.writer),
        }
    }

    /// All of it was observed: only firewall rules changed, and these were read since. So are those that we changed ourselves.
    pub fn was_observed(&self, generation: Option<u32>) -> bool {
        self.kinds == ChangeKinds::FIREWALL && generation.is_some() && self.generation == generation
    }

    /// The kind of objects that changed, as a label of metrics.
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

    /// Returns the process that changed firewall rules, by name and ID, for people.
    pub fn writer_name(&self) -> Option<String> {
        self.writer.as_ref().map(|writer| format!("{} (process {})", writer.name, writer.pid))
    }
}
