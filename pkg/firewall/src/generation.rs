//! Whether an owner's rules on the node are as they were.

use std::{collections::BTreeMap, sync::Arc};

use model::Family;
use netlink::ListBounds;
use rules::{ChainSet, SavedTables};

use crate::{RulesFingerprint, inactive::inactive_places};

/// State of an owner's rules on the node. It costs little, whatever others have there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RulesGeneration {
    /// Fingerprint of all rules. `None` if the kernel could not be asked: then nothing is known.
    rules: Option<RulesFingerprint>,
    /// The owner's rules in nf_tables. `None`: they could not be read.
    own: Option<Arc<OwnRules>>,
}

#[derive(Debug, PartialEq, Eq)]
struct OwnRules {
    /// The rules, and what leads to them.
    tables: BTreeMap<Family, SavedTables>,
    /// Where the kernel does not evaluate them.
    inactive: Vec<String>,
}

impl OwnRules {
    fn read(owner: ChainSet) -> Option<OwnRules> {
        let tables = nftables::read_tables(&[owner], ListBounds::NODE).ok()?;
        let inactive = inactive_places(owner, &tables).ok()?;
        Some(OwnRules { tables, inactive })
    }
}

impl RulesGeneration {
    /// Looks at the calling thread's namespace. What nobody has changed since `before` is not read once more.
    pub fn of_node(owner: ChainSet, before: Option<&RulesGeneration>) -> RulesGeneration {
        let rules = RulesFingerprint::of_node().ok();
        let unchanged = before.filter(|before| rules.is_some() && before.rules == rules);
        let own = unchanged.and_then(|before| before.own.clone());
        let own = own.or_else(|| OwnRules::read(owner).map(Arc::new));
        RulesGeneration { rules, own }
    }

    /// The kernel could be asked: a later snapshot can be compared with it.
    pub fn is_comparable(&self) -> bool {
        self.rules.is_some()
    }

    /// Neither the owner's rules, nor what leads to them, nor whether the kernel evaluates them was changed between `self` and `later`. Where the kernel cannot tell, it
    /// is `false`.
    pub fn is_unchanged(&self, later: &RulesGeneration) -> bool {
        let (Some(then), Some(now)) = (&self.rules, &later.rules) else { return false };
        then == now || (then.same_legacy(now) && self.own.is_some() && self.own == later.own)
    }
}
