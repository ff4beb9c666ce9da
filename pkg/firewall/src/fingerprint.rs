//! Detection of rule changes since the last read, without any child process.

use crate::{Error, presence::rules_generation};

/// Fingerprint of the rules of a namespace in both backends: equal fingerprints mean equal rules. For nf_tables it is
/// the generation, for legacy tables a hash of their content. Traffic changes neither.
///
/// Before Linux 4.11 the kernel reports the state of some matches (`limit`) as part of their rules: there, the
/// fingerprint may differ although no rule was changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RulesFingerprint {
    /// Generation of nf_tables' rules. `None` if the kernel has no nf_tables.
    generation: Option<u32>,
    /// Hash of the content of the legacy tables. `None` if there are none.
    legacy: Option<u64>,
}

impl RulesFingerprint {
    /// Reads the calling thread's namespace. Creates no table, and costs a few requests to the kernel.
    ///
    /// # Errors
    /// The kernel could not be queried, or its answer is malformed.
    pub fn observe_netns() -> Result<RulesFingerprint, Error> {
        RulesFingerprint::read_within(None, iptables_legacy::LONGEST)
    }

    /// Like [`RulesFingerprint::observe_netns`], but with the larger limit for a node's legacy tables. `known`: one with
    /// the same generation of nf_tables.
    ///
    /// # Errors
    /// As [`RulesFingerprint::observe_netns`].
    pub(crate) fn for_node(known: Option<&RulesFingerprint>) -> Result<RulesFingerprint, Error> {
        RulesFingerprint::read_within(known, iptables_legacy::LONGEST_OF_NODE)
    }

    fn read_within(known: Option<&RulesFingerprint>, longest: usize) -> Result<RulesFingerprint, Error> {
        let generation = known.map_or_else(rules_generation, |known| Ok(known.generation))?;
        Ok(RulesFingerprint { generation, legacy: iptables_legacy::tables_fingerprint(longest)? })
    }

    /// Returns the generation of nf_tables; `None`: the kernel has no nf_tables.
    pub fn generation(&self) -> Option<u32> {
        self.generation
    }

    /// Returns whether there are legacy tables.
    pub fn has_legacy(&self) -> bool {
        self.legacy.is_some()
    }

    /// Returns whether the legacy tables have the same content.
    pub(crate) fn same_legacy(&self, other: &RulesFingerprint) -> bool {
        self.legacy == other.legacy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each request makes a kernel without nf_tables search for a module.
    #[test]
    fn a_known_generation_is_not_requested() {
        for generation in [None, Some(u32::MAX)] {
            let known = RulesFingerprint { generation, legacy: None };
            assert_eq!(RulesFingerprint::for_node(Some(&known)).unwrap().generation(), generation);
        }
    }
}
