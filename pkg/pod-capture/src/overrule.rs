//! Policy rules and routes of other components in a pod that take packets before ours are evaluated.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hostnet::{LinkIndex, PolicyRule, Route, RouteKind, RtnetlinkHandle};
use model::{Family, Mark};
use rules::inpod::{InPodRulesConfig, PRIORITY};

const TCP: u8 = 6;
/// Maximum number of reported rules: a pod may have any number.
const MOST: usize = 8;

/// Returns those of these rules that take packets before ours, as text; at most `MOST`.
pub(crate) fn overruling_rules<'a>(
    rules: impl IntoIterator<Item = &'a PolicyRule>,
    config: &InPodRulesConfig,
) -> Vec<String> {
    let overrules = rules.into_iter().filter(|rule| is_overruling(rule, config)).take(MOST);
    overrules
        .map(|rule| format!("policy rule \"{rule}\" ({}) precedes ours at {PRIORITY}", rule.family))
        .collect()
}

/// Reports that more rules precede ours than are read.
pub(crate) fn unread_rules(family: Family) -> String {
    format!("more policy rules ({family}) precede ours at {PRIORITY} than are read")
}

/// Reports that a route of our table leads packets to some destinations elsewhere.
pub(crate) fn narrower_route(route: &str, family: Family, config: &InPodRulesConfig) -> String {
    format!("route \"{route}\" ({family}) precedes ours in table {}", config.table)
}

/// Queries where the kernel routes replies of the application that ours deliver to ztunnel: another default route in
/// our table, or a policy rule with the pod's own address as its condition, takes them although ours is in place.
/// `None`: ours takes them, or the pod has no route to the outside.
///
/// # Errors
/// The kernel could not be queried.
pub(crate) fn overruling_route(
    handle: &mut RtnetlinkHandle,
    family: Family,
    config: &InPodRulesConfig,
) -> Result<Option<String>, hostnet::Error> {
    // An address for documentation, which is no neighbour of any pod.
    let to: IpAddr = match family {
        Family::V4 => Ipv4Addr::new(192, 0, 2, 1).into(),
        Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
    };
    let Some(from) = handle.source_to(to)? else { return Ok(None) };
    let ours = config.local_route();
    let taken_by = match handle.marked_route(from, to, ours.mark)? {
        Some(route) if route.kind == RouteKind::Local => return Ok(None),
        Some(route) => {
            let route = handle.describe_route(&Route { dst: None, scope: None, ..route });
            format!("route \"{route}\" ({family})")
        }
        None => format!("a policy rule or route ({family}) that discards packets"),
    };
    Ok(Some(format!("{taken_by} takes packets from {from} ahead of ours in table {}", ours.table)))
}

/// Describes that the loopback has another name than `lo`: our rules recognise it by this name, and exempt what leaves on
/// it. So a process that gives the name to the pod's interface exempts all its traffic.
///
/// # Errors
/// The kernel could not be queried.
pub(crate) fn describe_renamed_loopback(
    handle: &mut RtnetlinkHandle,
) -> Result<Option<String>, hostnet::Error> {
    let is_renamed = handle.link_by_index(LinkIndex::LOOPBACK)?.is_some_and(|link| link.name != "lo");
    Ok(is_renamed
        .then(|| "the loopback is not named lo, so that rules can take another link for it".to_owned()))
}

/// Returns whether a rule matches our mark, or all packets to some destinations or to any, and leads elsewhere. A rule
/// with other conditions, such as the source address of another network, does not concern our packets.
pub(crate) fn is_overruling(rule: &PolicyRule, config: &InPodRulesConfig) -> bool {
    let ours = config.local_route();
    let is_first = rule.priority.unwrap_or_default() < PRIORITY;
    let takes_ours = match rule.fwmark {
        Some(mark) => takes_mark(mark, ours.mark),
        None => {
            let any_link = rule.iif.as_deref().is_none_or(|name| name == "lo");
            let any_protocol = rule.ip_proto.is_none_or(|protocol| protocol.0 == TCP);
            !rule.unmodelled && any_link && any_protocol
        }
    };
    is_first && rule.leads_past(PRIORITY, &[ours.table]) && takes_ours
}

/// Returns whether this condition matches packets because of our mark.
pub(crate) fn takes_mark(condition: Mark, ours: Mark) -> bool {
    let bits = condition.mask & ours.mask;
    bits != 0 && (condition.value ^ ours.value) & bits == 0
}

#[cfg(test)]
mod tests {
    use hostnet::RuleAction;
    use model::{Family, TableId};

    use super::*;

    #[test]
    fn only_rules_that_take_what_ours_is_for_count() {
        let main = RuleAction::Lookup(TableId(254));
        let rule = |priority, action| PolicyRule::new(Family::V4, Some(priority), action);
        let marked = |value, mask| PolicyRule { fwmark: Some(Mark { value, mask }), ..rule(1, main) };
        let cases = [
            (marked(0x111, u32::MAX), true),
            (marked(0x111, 0xfff), true),
            (marked(0x1, 0x1), true),
            (PolicyRule { unmodelled: true, ..marked(0x111, 0xfff) }, true),
            (rule(1, main), true),
            (rule(1, RuleAction::Goto(32766)), true),
            (PolicyRule { dest: Some("10.0.0.0/8".parse().unwrap()), ..rule(1, main) }, true),
            // The kernel's own rules, ours, and those that are later or do not match.
            (rule(0, RuleAction::Lookup(TableId::LOCAL)), false),
            (rule(100, RuleAction::Goto(200)), false),
            (rule(32766, main), false),
            (
                PolicyRule {
                    fwmark: Some(Mark { value: 0x111, mask: 0xfff }),
                    ..rule(5, RuleAction::Lookup(TableId(100)))
                },
                false,
            ),
            (marked(0xca6c, u32::MAX), false),
            (marked(0x4_0000, 0xff_0000), false),
            (PolicyRule { unmodelled: true, ..rule(1, main) }, false),
            (PolicyRule { iif: Some("net1".to_owned()), ..rule(1, main) }, false),
        ];
        for (rule, expected) in cases {
            assert_eq!(is_overruling(&rule, &InPodRulesConfig::default()), expected, "{rule}");
        }
    }
}
