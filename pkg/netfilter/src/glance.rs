//! Whether an owner's rules are as they were, without any tool.

use std::sync::Arc;

use crate::{Error, OwnRules, RulesFingerprint, own::WantedRules};

/// State of an owner's rules, as far as it can be read at little cost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RulesSnapshot {
    /// Fingerprint of the namespace's rules. `None` if the kernel was not asked, or could not be: then nothing is known.
    rules: Option<RulesFingerprint>,
    own: Option<Arc<OwnRules>>,
}

impl RulesSnapshot {
    /// Looks at the calling thread's namespace, a pod's. What nobody has changed since `before` is not read once more.
    #[must_use]
    pub fn take(wanted: &WantedRules<'_>, before: Option<&RulesSnapshot>) -> RulesSnapshot {
        RulesSnapshot::with(RulesFingerprint::of_this_netns().ok(), wanted, before)
    }

    /// Like [`RulesSnapshot::take`], but for the node's namespace.
    #[must_use]
    pub fn of_node(wanted: &WantedRules<'_>, before: Option<&RulesSnapshot>) -> RulesSnapshot {
        RulesSnapshot::with(RulesFingerprint::of_node().ok(), wanted, before)
    }

    fn with(
        rules: Option<RulesFingerprint>,
        wanted: &WantedRules<'_>,
        before: Option<&RulesSnapshot>,
    ) -> RulesSnapshot {
        let unchanged = before.filter(|before| rules.is_some() && before.rules == rules);
        let own = unchanged.and_then(|before| before.own.clone());
        let own = own.or_else(|| OwnRules::of_this_netns(wanted).ok().map(Arc::new));
        RulesSnapshot { rules, own }
    }

    /// Takes a snapshot of rules that were just made, and cannot be read one by one. The second value is a text on what is
    /// wrong with them, as far as can be determined.
    ///
    /// # Errors
    /// As [`OwnRules::of_this_netns`].
    pub fn of_made(wanted: &WantedRules<'_>) -> Result<(RulesSnapshot, Option<String>), Error> {
        let own = OwnRules::of_this_netns(wanted)?;
        let lack = own.lacks(wanted);
        Ok((RulesSnapshot { rules: None, own: Some(Arc::new(own)) }, lack))
    }

    /// The generation of nf_tables' rules, where the kernel could be asked and has one.
    #[must_use]
    pub fn generation(&self) -> Option<u32> {
        self.rules.as_ref()?.generation()
    }

    /// The kernel could be asked: a later snapshot can be compared with it.
    #[must_use]
    pub fn is_comparable(&self) -> bool {
        self.rules.is_some()
    }

    /// Nobody has changed any rule between `self` and `later`, as far as the kernel can tell.
    #[must_use]
    pub fn is_untouched(&self, later: &RulesSnapshot) -> bool {
        self.rules.is_some() && self.rules == later.rules
    }

    /// Neither the owner's rules nor what leads to them was changed between `self` and `later`. Where the kernel cannot tell, it
    /// is `false`: whoever wants to know has to ask the tools.
    #[must_use]
    pub fn is_unchanged(&self, later: &RulesSnapshot) -> bool {
        let (Some(then), Some(now)) = (&self.rules, &later.rules) else { return false };
        let same_own =
            || self.own.as_ref().zip(later.own.as_ref()).is_some_and(|(then, now)| then.is_same(now));
        then == now || (then.same_legacy(now) && same_own())
    }

    /// No rules at all, of nobody, were changed between the fingerprint and this.
    #[must_use]
    pub fn is_of(&self, fingerprint: &RulesFingerprint) -> bool {
        self.rules.as_ref() == Some(fingerprint)
    }

    /// The owner's rules, where they could be read.
    #[must_use]
    pub fn own(&self) -> Option<&OwnRules> {
        self.own.as_deref()
    }
}
