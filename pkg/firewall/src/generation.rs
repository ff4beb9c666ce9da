//! Detection of changes of an owner's rules on the node.

use std::{collections::BTreeMap, sync::Arc};

use model::Family;
use netlink::ListBounds;
use rules::{ChainSet, SavedTables};

use crate::{RulesFingerprint, inactive::inactive_places};

/// State of an owner's rules on the node, at low cost whatever foreign rules exist.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RulesGeneration {
    /// Fingerprint of all rules. `None`: the kernel could not be queried, so nothing is known.
    rules: Option<RulesFingerprint>,
    /// The owner's rules in nf_tables. `None`: could not be read.
    own: Option<Arc<OwnRules>>,
}

#[derive(Debug, PartialEq, Eq)]
struct OwnRules {
    /// The rules, and the jumps to them.
    tables: BTreeMap<Family, SavedTables>,
    /// Tables and chains that the kernel does not evaluate.
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
    /// Reads the calling thread's namespace. Rules that have not changed since `before` are not read again.
    /// `same_generation`: the generation of nf_tables is known to be that of `before`.
    pub fn for_node(
        owner: ChainSet,
        before: Option<&RulesGeneration>,
        same_generation: bool,
    ) -> RulesGeneration {
        let known = before.filter(|_| same_generation).and_then(|before| before.rules.as_ref());
        let rules = RulesFingerprint::for_node(known).ok();
        let unchanged = before.filter(|before| rules.is_some() && before.rules == rules);
        let own = unchanged.and_then(|before| before.own.clone());
        let own = own.or_else(|| {
            let _ = rules.as_ref()?.generation()?; // without nf_tables there are none, and a request starts `modprobe`
            OwnRules::read(owner).map(Arc::new)
        });
        RulesGeneration { rules, own }
    }

    /// Returns whether the kernel could be queried, so that a later snapshot can be compared with this one.
    pub fn is_comparable(&self) -> bool {
        self.rules.is_some()
    }

    /// Returns whether the owner's rules, the jumps to them, and their evaluation by the kernel did not change between
    /// `self` and `later`; `false` if that is unknown.
    pub fn is_unchanged(&self, later: &RulesGeneration) -> bool {
        let (Some(then), Some(now)) = (&self.rules, &later.rules) else { return false };
        then == now || (then.same_legacy(now) && self.own.is_some() && self.own == later.own)
    }
}
