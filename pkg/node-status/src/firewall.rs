//! Firewall rules, compared by meaning and shown in the format of a save.

use model::Family;
use report::{Comparison, FirewallRule};
use rules::{ObservedLine, RuleLine};

/// A firewall rule in the format of a save, and in ours.
pub(super) struct ShownRule {
    shown: FirewallRule,
    ours: String,
}

pub(super) fn shown_rule(place: &str, family: Family, observed: &ObservedLine) -> ShownRule {
    let shown = FirewallRule {
        netns: place.to_owned(),
        family: family.number(),
        table: observed.line.table.as_str().to_owned(),
        chain: observed.line.chain.clone(),
        rule: observed.text.clone(),
    };
    ShownRule { shown, ours: observed.line.rule.clone() }
}

/// Converts a desired rule to the form of an observed one.
pub(super) fn to_observed_line(line: RuleLine) -> ObservedLine {
    ObservedLine { text: line.rule.clone(), line }
}

/// Compares rules by meaning, regardless of their format, and shows the format.
pub(super) fn compare_shown_rules(
    desired: Vec<ShownRule>,
    observed: Vec<ShownRule>,
) -> Comparison<FirewallRule> {
    let ours = |rules: &[ShownRule]| {
        rules.iter().map(|rule| FirewallRule { rule: rule.ours.clone(), ..rule.shown.clone() }).collect()
    };
    let differences = Comparison::compare_sets(ours(&desired), ours(&observed)).differences;
    let shown = |rules: Vec<ShownRule>| rules.into_iter().map(|rule| rule.shown).collect();
    Comparison { desired: shown(desired), observed: Some(shown(observed)), differences }
}
