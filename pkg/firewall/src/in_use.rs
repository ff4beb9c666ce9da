//! Legacy tables that are in use, whoever uses them.

use std::collections::BTreeSet;

use iptables_legacy::{IptablesTools, ToolKind, ToolVerb};
use model::Family;

use crate::Error;

/// Returns the names of the chains that have rules in legacy tables of the calling thread's network namespace, in both families.
///
/// # Errors
/// The kernel could not be asked, its answer makes no sense, or a table is longer than any pod's.
pub fn legacy_chains() -> Result<BTreeSet<String>, Error> {
    let mut chains = BTreeSet::new();
    for family in Family::BOTH {
        iptables_legacy::read_rules(family, |_, rule| {
            chains.insert(rule.chain.to_owned());
        })?;
    }
    Ok(chains)
}

/// Whether there is a tool that changes legacy tables.
#[must_use]
pub fn has_legacy_tool() -> bool {
    IptablesTools::from_environment().find_tool(ToolKind::Legacy, Family::V4, ToolVerb::Restore).is_ok()
}
