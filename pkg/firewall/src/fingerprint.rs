//! Whether rules were changed since they were last read, without any child process.

use crate::{Error, presence::rules_generation};

/// The rules of a namespace, of both backends: two that are equal are of the same rules. Of those in nf_tables it is how
/// often they were changed, of those in legacy tables it depends on their content alone. Traffic changes neither.
///
/// A kernel before Linux 4.11 tells the state of some matches as a part of their rules (`limit`): there, it may be
/// another one although no rule was changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RulesFingerprint {
    /// Generation of nf_tables' rules. `None` if the kernel has no nf_tables.
    generation: Option<u32>,
    /// A number for the content of the legacy tables. `None` if there are none.
    legacy: Option<u64>,
}

impl RulesFingerprint {
    /// Of the calling thread's namespace. It makes no table, and costs a few questions to the kernel.
    ///
    /// # Errors
    /// The kernel could not be asked, or its answer makes no sense.
    pub fn of_this_netns() -> Result<RulesFingerprint, Error> {
        RulesFingerprint::read_within(iptables_legacy::LONGEST)
    }

    /// Like [`RulesFingerprint::of_this_netns`], but reads legacy tables as long as a node may have them.
    ///
    /// # Errors
    /// As [`RulesFingerprint::of_this_netns`].
    pub fn of_node() -> Result<RulesFingerprint, Error> {
        RulesFingerprint::read_within(iptables_legacy::LONGEST_OF_NODE)
    }

    fn read_within(longest: usize) -> Result<RulesFingerprint, Error> {
        Ok(RulesFingerprint {
            generation: rules_generation()?,
            legacy: iptables_legacy::tables_fingerprint(longest)?,
        })
    }

    /// How often rules of nf_tables were changed; `None`: the kernel has no nf_tables.
    pub fn generation(&self) -> Option<u32> {
        self.generation
    }

    /// There are legacy tables.
    pub fn has_legacy(&self) -> bool {
        self.legacy.is_some()
    }

    /// The legacy tables hold the same.
    pub(crate) fn same_legacy(&self, other: &RulesFingerprint) -> bool {
        self.legacy == other.legacy
    }
}
