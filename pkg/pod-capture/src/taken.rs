//! Marks, tables and priorities of other components in a pod that is not captured: the component that uses them there
//! does so in every pod.

use firewall::foreign_marks;
use hostnet::{PolicyRule, Route, RouteKind, RtnetlinkHandle, RuleAction};
use model::{Family, TableId};
use netns::Netns;
use rules::{
    ChainSet,
    inpod::{InPodRulesConfig, PRIORITY},
};

use crate::{
    Error,
    overrule::{is_overruling, takes_mark},
    pod::families_with_rule,
};

/// Table of redirection to sidecars by TPROXY, which uses the same mark as ztunnel, and concerns no captured pod.
const OF_SIDECARS: TableId = TableId(133);
/// Priority of the main table, after which a rule does not affect what ztunnel sends.
const MAIN: u32 = 32766;
/// Maximum number of reports of each kind and family: a pod may have any number.
const MOST: usize = 4;

/// Returns the numbers that a captured pod's rules use and other components use in the namespace of a pod, as text:
/// policy rules that match our marks, or precede ours for all packets, or look up our table; routes in that table; and
/// rules that set our marks before ours are evaluated. `None`: the pod is captured.
///
/// # Errors
/// The kernel could not be queried, or its answer is malformed.
pub fn find_taken_numbers(
    netns: &Netns,
    config: &InPodRulesConfig,
    families: &[Family],
) -> Result<Option<Vec<String>>, Error> {
    netns.run_in(|| {
        let mut handle = RtnetlinkHandle::open_in_pod()?;
        if !families_with_rule(&mut handle, config)?.is_empty() {
            return Ok(None);
        }
        let mut taken = Vec::new();
        for family in families {
            let (rules, _) = handle.rules_until(*family, Some(MAIN))?;
            let rules = rules.iter().filter(|rule| is_in_the_way(rule, config)).take(MOST);
            taken.extend(rules.map(|rule| format!("policy rule \"{rule}\" ({family})")));
            let foreign = |kept: &[_], route: &Route| kept.len() < MOST && !is_default(route);
            let routes = handle.find_routes(*family, Some(config.table), foreign)?;
            taken.extend(routes.iter().map(|route| format!("route \"{route}\" ({family})")));
        }
        taken.extend(foreign_marks(ChainSet::SIDECAR, &[config.proxy, config.connection])?);
        Ok(Some(taken))
    })?
}

/// Returns whether this route has the effect of ours.
fn is_default(route: &Route) -> bool {
    route.kind == RouteKind::Local && route.dst.is_none()
}

fn is_in_the_way(rule: &PolicyRule, config: &InPodRulesConfig) -> bool {
    let priority = rule.priority.unwrap_or_default();
    let is_marked = |own, until| priority < until && rule.fwmark.is_some_and(|mark| takes_mark(mark, own));
    match rule.action {
        RuleAction::Lookup(OF_SIDECARS) => false,
        RuleAction::Lookup(table) if table == config.table => true,
        RuleAction::Nop => is_overruling(rule, config),
        _ => {
            is_marked(config.connection, PRIORITY + 1)
                || is_marked(config.proxy, MAIN)
                || is_overruling(rule, config)
        }
    }
}

#[cfg(test)]
mod tests {
    use model::Mark;

    use super::*;

    #[test]
    fn rules_that_take_nothing_of_ours_are_left_alone() {
        let rule = |priority, action| PolicyRule::new(Family::V4, Some(priority), action);
        let marked = |value, mask, priority, action| PolicyRule {
            fwmark: Some(Mark { value, mask }),
            ..rule(priority, action)
        };
        let seven = RuleAction::Lookup(TableId(7));
        for (rule, expected) in [
            (marked(0x539, 0xfff, 100, seven), true),
            (marked(0x539, u32::MAX, MAIN - 1, RuleAction::Prohibit), true),
            (marked(0x1, 0x1, 100, seven), true),
            (marked(0x111, 0xfff, PRIORITY, RuleAction::Blackhole), true),
            (rule(32000, RuleAction::Lookup(InPodRulesConfig::default().table)), true),
            (PolicyRule { unmodelled: true, ..rule(100, RuleAction::Lookup(TableId(100))) }, true),
            (rule(100, seven), true),
            // Rules of other components, of the kernel and of sidecars, and those that are too late.
            (marked(0x4000, 0x4000, 100, seven), false),
            (marked(0x200, 0xf00, 9, seven), false),
            (marked(0x111, 0xfff, PRIORITY + 1, seven), false),
            (marked(0x539, 0xfff, MAIN, seven), false),
            (marked(0x539, 0xfff, 100, RuleAction::Nop), false),
            (marked(0x539, u32::MAX, 100, RuleAction::Lookup(OF_SIDECARS)), false),
            (PolicyRule { unmodelled: true, ..rule(100, seven) }, false),
            (rule(0, RuleAction::Lookup(TableId(255))), false),
            (rule(MAIN, RuleAction::Lookup(TableId(254))), false),
        ] {
            assert_eq!(is_in_the_way(&rule, &InPodRulesConfig::default()), expected, "{rule}");
        }
    }
}
