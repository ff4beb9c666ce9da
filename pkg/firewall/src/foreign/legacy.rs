//! Effects of foreign rules in the tables of the kernel's ip_tables.

use model::{Family, Mark};
use rules::ChainSet;

use super::{
    IPTABLES, MOST_EFFECTS, NAT,
    effect::{FoundEffect, from_target},
};
use crate::Error;

/// Returns the effects of foreign rules in these tables. Rules of `raw` and `mangle` precede ours, and so do those of
/// `nat` if ours are in the other backend. `is_compared`: chains with our names are compared with the desired state.
pub(super) fn find_effects(
    owner: ChainSet,
    is_compared: bool,
    marks: &[Mark],
    family: Family,
) -> Result<Vec<FoundEffect>, Error> {
    let (mut found, mut in_nat, mut is_ours) = (Vec::new(), Vec::new(), false);
    iptables_legacy::read_rules(family, |table, rule| {
        let is_owned = is_compared && owner.contains(rule.chain);
        is_ours |= table == NAT && is_owned;
        // By then the decision about leaving packets has been made, and that about forwarded ones when they arrived.
        let is_late = ["INPUT", "FORWARD", "POSTROUTING"].contains(&rule.chain);
        if is_late || is_owned || !IPTABLES.contains(&table) {
            return;
        }
        let of = if table == NAT { &mut in_nat } else { &mut found };
        if of.len() > MOST_EFFECTS {
            return;
        }
        let place = format!("{family} {table} {} of the legacy tables", super::printable_name(rule.chain));
        of.extend(
            from_target(rule.target, rule.target_data, marks).map(|effect| FoundEffect { place, effect }),
        );
    })?;
    if !is_ours {
        found.extend(in_nat);
    }
    Ok(found)
}
