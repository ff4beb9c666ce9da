//! An owner's rules as text for storage: those of both families in one, because they are nearly the same.

use std::{collections::BTreeMap, fmt};

use model::Family;

use crate::{
    ir::{Chain, Hook, HookJump, JumpPlace, RuleSet, Table},
    parse::{self, SavedTables},
    plan::ChainSet,
};

/// Line for a chain itself, before its rules (`iptables -N`).
const CHAIN: &str = "-N";
/// Prefix of a jump before all other rules of a built-in chain (`iptables -I`).
const FIRST: &str = "-I ";

/// Rules by place, such as `nat ISTIO_OUTPUT`: one line for each, in order. A line is a rule in iptables format after
/// the chain's name; `-N` means that the chain exists and is the owner's. The prefix `-4 ` or `-6 ` restricts a line to
/// one family, as in a file for `iptables-restore`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedRules(BTreeMap<String, String>);

/// A line that this version does not understand.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the recorded rule {line:?} of {place} is not understood")]
pub struct UnknownRecordedRule {
    /// Table and chain.
    pub place: String,
    /// The line.
    pub line: String,
}

impl RecordedRules {
    /// Records rules. A family without rules has an empty rule set.
    pub fn from_rules(rules: impl Fn(Family) -> RuleSet) -> RecordedRules {
        let [v4, v6] = Family::BOTH.map(|family| placed_lines(&rules(family)));
        RecordedRules::merge_families(&v4, &v6)
    }

    /// Records the observed rules of an owner; `None`: some of them are not understood.
    pub fn from_found<'a>(
        owner: ChainSet,
        found: impl Fn(Family) -> &'a SavedTables,
    ) -> Option<RecordedRules> {
        let [v4, v6] = Family::BOTH.map(|family| found_lines(owner, found(family)));
        Some(RecordedRules::merge_families(&v4?, &v6?))
    }

    /// Restores the result of [`RecordedRules::lines`].
    pub fn from_lines(lines: BTreeMap<String, String>) -> RecordedRules {
        RecordedRules(lines)
    }

    /// Returns the lines by place, for storage.
    pub fn lines(&self) -> &BTreeMap<String, String> {
        &self.0
    }

    /// Returns whether there are no rules.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether a family has rules.
    pub fn has_family(&self, family: Family) -> bool {
        self.0.values().flat_map(|lines| lines.lines()).any(|line| family_line(line, family).is_some())
    }

    /// Returns whether there are rules, and this version understands all of them.
    pub fn is_usable(&self) -> bool {
        !self.is_empty() && Family::BOTH.into_iter().all(|family| self.rule_set(family).is_ok())
    }

    /// Returns the rules of a family.
    ///
    /// # Errors
    /// A line is not understood: it was recorded by another version.
    pub fn rule_set(&self, family: Family) -> Result<RuleSet, UnknownRecordedRule> {
        let mut rules = RuleSet::default();
        for (place, lines) in &self.0 {
            for line in lines.lines() {
                let unknown = || UnknownRecordedRule { place: place.clone(), line: line.to_owned() };
                let Some(text) = family_line(line, family) else { continue };
                add_line(&mut rules, place, text).ok_or_else(unknown)?;
            }
        }
        Ok(rules)
    }

    fn merge_families(v4: &PlacedLines, v6: &PlacedLines) -> RecordedRules {
        let places = v4.keys().chain(v6.keys()).map(|place| {
            let [v4, v6] = [v4, v6].map(|family| family.get(place).map(Vec::as_slice).unwrap_or_default());
            (place.clone(), merge_lines(v4, v6))
        });
        RecordedRules(places.collect())
    }
}

impl fmt::Display for RecordedRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(place, lines)| {
            lines
                .lines()
                .filter(|line| !line.ends_with(CHAIN))
                .try_for_each(|line| writeln!(f, "{place}: {line}"))
        })
    }
}

/// Lines by place.
type PlacedLines = BTreeMap<String, Vec<String>>;

/// Merges the lines of both families, each in its order.
fn merge_lines(v4: &[String], v6: &[String]) -> String {
    let mut merged = Vec::new();
    for index in 0..v4.len().max(v6.len()) {
        match (v4.get(index), v6.get(index)) {
            (Some(one), Some(other)) if one == other => merged.push(one.clone()),
            (one, other) => {
                merged.extend(one.map(|line| format!("-4 {line}")));
                merged.extend(other.map(|line| format!("-6 {line}")));
            }
        }
    }
    merged.join("\n")
}

/// Returns the line without its prefix; `None`: it is of the other family only.
fn family_line(line: &str, family: Family) -> Option<&str> {
    let (own, other) = match family {
        Family::V4 => ("-4 ", "-6 "),
        Family::V6 => ("-6 ", "-4 "),
    };
    if line.starts_with(other) { None } else { Some(line.strip_prefix(own).unwrap_or(line)) }
}

fn chain_place(table: Table, chain: &str) -> String {
    format!("{} {chain}", table.as_str())
}

fn placed_lines(rules: &RuleSet) -> PlacedLines {
    let mut lines = PlacedLines::new();
    for (table, rules) in &rules.tables {
        for jump in &rules.jumps {
            let first = if jump.place == JumpPlace::First { FIRST } else { "" };
            let place = lines.entry(chain_place(*table, jump.hook.as_str())).or_default();
            place.push(format!("{first}{}", jump.rule));
        }
        for (chain, rules) in &rules.chains {
            let place = lines.entry(chain_place(*table, &chain.0)).or_default();
            place.push(CHAIN.to_owned());
            place.extend(rules.iter().map(ToString::to_string));
        }
    }
    lines
}

fn found_lines(owner: ChainSet, found: &SavedTables) -> Option<PlacedLines> {
    let mut lines = PlacedLines::new();
    for (table, saved) in &found.tables {
        for (_, jump) in saved.rules_into_owned_chains(owner) {
            lines.entry(chain_place(*table, &jump.chain)).or_default().push(jump.rule.as_ref()?.to_string());
        }
        for chain in saved.chains.iter().filter(|chain| owner.contains(chain)) {
            let place = lines.entry(chain_place(*table, chain)).or_default();
            place.push(CHAIN.to_owned());
            for rule in saved.chain_rules(chain) {
                place.push(rule.rule.as_ref()?.to_string());
            }
        }
    }
    Some(lines)
}

/// Adds a line to the rules; `None`: not understood.
fn add_line(rules: &mut RuleSet, place: &str, text: &str) -> Option<()> {
    let (table, chain) = place.split_once(' ')?;
    let table = Table::from_name(table)?;
    let rules = rules.table_mut(table);
    if let Some(hook) = Hook::from_name(chain) {
        let (place, text) = match text.strip_prefix(FIRST) {
            Some(text) => (JumpPlace::First, text),
            None => (JumpPlace::Last, text),
        };
        rules.jumps.push(HookJump { hook, rule: parse::parse_line(text)?, place });
        return Some(());
    }
    let chain = Chain(chain.to_owned().into());
    let into = rules.chain_mut(&chain);
    if text != CHAIN {
        into.push(parse::parse_line(text)?);
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;
    use crate::{inpod, sidecar};

    fn sets() -> Vec<Box<dyn Fn(Family) -> RuleSet>> {
        let sidecar = |config: sidecar::SidecarConfig| -> Box<dyn Fn(Family) -> RuleSet> {
            Box::new(move |family| sidecar::rule_set(&config, family))
        };
        let dns = inpod::PodOptions { dns: true, ..inpod::PodOptions::default() };
        vec![
            sidecar(sidecar::SidecarConfig::default()),
            Box::new(move |family| inpod::pod_rules(&inpod::InPodRulesConfig::default(), &dns, family)),
            Box::new(|family| match family {
                Family::V4 => sidecar::rule_set(&sidecar::SidecarConfig::default(), family),
                Family::V6 => RuleSet::default(),
            }),
        ]
    }

    /// The order of jumps and chains is irrelevant.
    fn sorted(mut rules: RuleSet) -> RuleSet {
        for table in rules.tables.values_mut() {
            table.jumps.sort_by_key(|jump| jump.hook);
            table.jumps.iter_mut().filter(|jump| jump.place != JumpPlace::First).for_each(|jump| {
                jump.place = JumpPlace::Last; // the position of an early one is not recorded
            });
            table.chains.sort_by(|one, other| one.0.cmp(&other.0));
        }
        rules
    }

    #[test]
    fn what_is_recorded_is_read_back_in_both_families() {
        for rules in sets() {
            let recorded = RecordedRules::from_rules(&rules);
            assert!(!recorded.is_empty());
            let kept = RecordedRules::from_lines(recorded.lines().clone());
            for family in Family::BOTH {
                assert_eq!(sorted(kept.rule_set(family).unwrap()), sorted(rules(family)), "{recorded}");
            }
        }
    }

    #[test]
    fn rules_of_both_families_take_little_more_room_than_those_of_one() {
        let both = sets().swap_remove(0);
        let one = RecordedRules::from_rules(|family| match family {
            Family::V4 => both(family),
            Family::V6 => RuleSet::default(),
        });
        let length = |recorded: &RecordedRules| recorded.to_string().len();
        assert!(length(&RecordedRules::from_rules(&both)) < length(&one) * 3 / 2);
    }

    #[test]
    fn rules_that_were_found_are_recorded_like_those_that_were_wanted() {
        let rules = sets().swap_remove(0);
        let [v4, v6] = Family::BOTH.map(|family| {
            let text = ChainSet::SIDECAR.apply(&rules(family), &SavedTables::default()).restore_text();
            SavedTables::parse(&text).unwrap()
        });
        let found = |family| if family == Family::V4 { &v4 } else { &v6 };
        let recorded = RecordedRules::from_found(ChainSet::SIDECAR, found);
        assert_eq!(recorded, Some(RecordedRules::from_rules(rules)));
        let strange =
            "*nat\n:ISTIO_OUTPUT - [0:0]\n-A ISTIO_OUTPUT -m statistic --mode nth -j RETURN\nCOMMIT\n";
        let strange = SavedTables::parse(strange).unwrap();
        assert_eq!(RecordedRules::from_found(ChainSet::SIDECAR, |_| &strange), None);
    }

    proptest! {
        #[test]
        fn lines_of_both_families_keep_their_order(v4 in vec("[ab]", 0..6), v6 in vec("[ab]", 0..6)) {
            let merged = merge_lines(&v4, &v6);
            let of = |family| -> Vec<String> {
                merged.lines().filter_map(|line| family_line(line, family)).map(str::to_owned).collect()
            };
            prop_assert_eq!(of(Family::V4), v4);
            prop_assert_eq!(of(Family::V6), v6);
        }

        #[test]
        fn any_text_is_read_or_refused(place in ".{0,20}", lines in "(.{0,30}\n){0,4}") {
            let recorded = RecordedRules::from_lines(BTreeMap::from([(place, lines)]));
            drop(Family::BOTH.map(|family| recorded.rule_set(family)));
        }
    }
}
