//! An owner's rules as single lines, for reports and comparisons.

use crate::{
    ir::{RuleSet, Table},
    parse::SavedTables,
    plan::ChainSet,
};

/// A rule in its chain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RuleLine {
    /// The table.
    pub table: Table,
    /// The chain, built-in or not.
    pub chain: String,
    /// Text after the chain's name, in our format if it is a rule that we could have created.
    pub rule: String,
}

/// A rule of a save.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedLine {
    /// Form for comparisons.
    pub line: RuleLine,
    /// Text after the chain's name, exactly as in the save.
    pub text: String,
}

impl RuleSet {
    /// Returns all rules in the order of a save: table by table, first the jumps, then each chain.
    pub fn rule_lines(&self) -> Vec<RuleLine> {
        let mut lines = Vec::new();
        for (table, rules) in &self.tables {
            let mut push = |chain: &str, rule: String| {
                lines.push(RuleLine { table: *table, chain: chain.to_owned(), rule });
            };
            rules.jumps.iter().for_each(|jump| push(jump.hook.as_str(), jump.rule.to_string()));
            for (chain, rules) in &rules.chains {
                rules.iter().for_each(|rule| push(&chain.0, rule.to_string()));
            }
        }
        lines
    }
}

impl ChainSet {
    /// Returns this owner's rules of a namespace: those in its chains, and those that jump there.
    pub fn owned_lines(self, observed: &SavedTables) -> Vec<ObservedLine> {
        let mut lines = Vec::new();
        for (table, saved) in &observed.tables {
            let jumps = saved.rules_into_owned_chains(self).map(|(_, rule)| rule);
            let inside = saved.rules.iter().filter(|rule| self.contains(&rule.chain));
            lines.extend(jumps.chain(inside).map(|found| {
                let rule = found.rule.as_ref().map_or_else(|| found.text.clone(), ToString::to_string);
                let line = RuleLine { table: *table, chain: found.chain.clone(), rule };
                ObservedLine { line, text: found.text.clone() }
            }));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inpod::{InPodRulesConfig, PodOptions, pod_rules};

    #[test]
    fn what_is_wanted_and_what_a_save_shows_of_it_are_the_same_lines() {
        let wanted = pod_rules(&InPodRulesConfig::default(), &PodOptions::default(), model::Family::V4);
        let text = ChainSet::IN_POD.apply(&wanted, &SavedTables::default()).restore_text();
        let text: String =
            text.lines().map(|line| line.replace("-I PREROUTING 1", "-A PREROUTING") + "\n").collect();
        let text: String = text.lines().map(|line| line.replace("-I OUTPUT 1", "-A OUTPUT") + "\n").collect();
        let foreign = "*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -p tcp -j DROP\nCOMMIT\n";
        let saved = SavedTables::parse(&(text + foreign)).unwrap();
        let sorted = |mut lines: Vec<RuleLine>| {
            lines.sort();
            lines
        };
        assert!(wanted.rule_lines().len() > 10);
        let seen = ChainSet::IN_POD.owned_lines(&saved).into_iter().map(|seen| seen.line).collect();
        assert_eq!(sorted(seen), sorted(wanted.rule_lines()));
        assert_eq!(ChainSet::PROBES.owned_lines(&saved), Vec::new());
    }
}
