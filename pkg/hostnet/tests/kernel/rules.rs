//! Policy rules.

use hostnet::{
    ChangeOutcome, Error, Family, IpProtocol, Mark, PolicyRule, RtnetlinkHandle, RuleAction, TableId,
};

use crate::{in_fresh_netns, ip, shown};

const BOTH: [Family; 2] = [Family::V4, Family::V6];

fn shown_rules(family: Family) -> Vec<serde_json::Value> {
    shown(if family == Family::V4 { "-4 rule show" } else { "-6 rule show" })
}

/// The rules of ARCHITECTURE.md's node path, and one for each field.
fn samples(family: Family) -> Vec<PolicyRule> {
    let lookup =
        |priority, table| PolicyRule::new(family, Some(priority), RuleAction::Lookup(TableId(table)));
    let marked = |priority, table, value, mask| PolicyRule {
        fwmark: Some(Mark { value, mask }),
        ..lookup(priority, table)
    };
    vec![
        marked(100, 254, 0x200, 0x200),
        marked(101, 120, 0x1100, 0x3100),
        marked(107, 101, 0x100, 0x100),
        PolicyRule { ip_proto: Some(IpProtocol::TCP), ..lookup(108, 100) },
        PolicyRule { iif: Some("va".to_owned()), ..lookup(109, 70_000) },
        PolicyRule { iif: Some("notyet".to_owned()), ..lookup(110, 300) },
        marked(111, 133, 0x539, u32::MAX),
        marked(112, 133, 0, 0x3000),
        PolicyRule::new(family, Some(113), RuleAction::Goto(32766)),
        PolicyRule::new(family, Some(114), RuleAction::Unreachable),
        PolicyRule::new(family, Some(115), RuleAction::Nop),
        PolicyRule::new(family, Some(116), RuleAction::Blackhole),
        PolicyRule::new(family, Some(117), RuleAction::Prohibit),
        PolicyRule { dest: Some(network(family)), ..lookup(118, 120) },
    ]
}

fn network(family: Family) -> model::IpNet {
    if family == Family::V4 { "10.9.0.0/16" } else { "2001:db8:9::/48" }.parse().unwrap()
}

/// Two equal rules with different protocols have different owners.
#[test]
fn who_made_a_rule_is_read_back_and_no_condition() {
    in_fresh_netns(|handle| {
        let plain = PolicyRule { dest: Some(network(Family::V4)), ..samples(Family::V4).remove(3) };
        let ours = PolicyRule { protocol: hostnet::RouteProtocol(109), ..plain.clone() };
        assert_eq!(handle.ensure_rule(&ours).unwrap(), ChangeOutcome::Yes);
        let found = handle.list_rules(Family::V4).unwrap();
        assert!(found.contains(&ours), "{found:#?}");
        assert_eq!(handle.ensure_rule(&plain).unwrap(), ChangeOutcome::No, "it is there, whoever made it");
        assert_eq!(handle.delete_rule(&plain).unwrap(), ChangeOutcome::Yes);
        assert!(!handle.list_rules(Family::V4).unwrap().iter().any(|rule| rule.is_match_for(&ours)));
    });
}

#[test]
fn rules_are_added_once_read_back_equal_and_deleted_once() {
    in_fresh_netns(|handle| {
        for family in BOTH {
            let before = shown_rules(family).len();
            for rule in samples(family) {
                assert_eq!(handle.ensure_rule(&rule).unwrap(), ChangeOutcome::Yes, "{rule}");
                assert_eq!(handle.ensure_rule(&rule).unwrap(), ChangeOutcome::No, "{rule}");
            }
            let found = handle.list_rules(family).unwrap();
            assert!(samples(family).iter().all(|rule| found.contains(rule)), "{found:#?}");
            assert_eq!(shown_rules(family).len(), before + samples(family).len());
            for rule in samples(family) {
                assert_eq!(handle.delete_rule(&rule).unwrap(), ChangeOutcome::Yes, "{rule}");
                assert_eq!(handle.delete_rule(&rule).unwrap(), ChangeOutcome::No, "{rule}");
            }
            assert_eq!(shown_rules(family).len(), before);
        }
    });
}

#[test]
fn rules_print_as_ip_prints_them() {
    in_fresh_netns(|handle| {
        for rule in samples(Family::V4).into_iter().filter(|rule| rule.iif.as_deref() != Some("notyet")) {
            let _ = handle.ensure_rule(&rule).unwrap();
        }
        let ours: Vec<_> = handle.list_rules(Family::V4).unwrap().iter().map(ToString::to_string).collect();
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(ours, ip("-4 rule show").lines().map(words).collect::<Vec<_>>());
    });
}

#[test]
fn a_rule_that_ip_made_is_recognised() {
    in_fresh_netns(|handle| {
        ip("rule add priority 107 fwmark 0x100/0x100 lookup 101");
        ip("rule add priority 111 fwmark 1337 lookup 133");
        ip("-6 rule add priority 108 ipproto tcp lookup 100");
        for rule in [&samples(Family::V4)[2], &samples(Family::V4)[6], &samples(Family::V6)[3]] {
            assert_eq!(handle.ensure_rule(rule).unwrap(), ChangeOutcome::No, "{rule}");
            assert_eq!(handle.delete_rule(rule).unwrap(), ChangeOutcome::Yes, "{rule}");
        }
    });
}

#[test]
fn a_rule_without_priority_is_placed_by_the_kernel_once() {
    in_fresh_netns(|handle| {
        let rule = PolicyRule { priority: None, ..samples(Family::V4).remove(2) };
        assert_eq!(handle.ensure_rule(&rule).unwrap(), ChangeOutcome::Yes);
        assert_eq!(handle.ensure_rule(&rule).unwrap(), ChangeOutcome::No);
        assert_eq!(handle.delete_rule(&rule).unwrap(), ChangeOutcome::Yes);
    });
}

/// Every selector that the type does not model must distinguish a foreign rule from ours.
#[test]
fn foreign_rules_with_more_conditions_are_neither_taken_for_ours_nor_deleted() {
    let conditions = [
        "from 10.0.0.0/8",
        "tos 0x10",
        "oif va",
        "not iif va",
        "uidrange 0-0",
        "sport 80",
        "dport 80-90",
        "suppress_prefixlength 0",
        "suppress_ifgroup 1",
        "realms 7",
    ];
    for condition in conditions {
        in_fresh_netns(|handle| {
            ip(&format!("rule add priority 90 {condition} lookup 101"));
            let plain = PolicyRule::new(Family::V4, Some(90), RuleAction::Lookup(TableId(101)));
            let foreign = |handle: &mut RtnetlinkHandle| handle.list_rules(Family::V4).unwrap().remove(1);
            assert!(foreign(handle).unmodelled, "{condition}: {:?}", foreign(handle));
            assert_eq!(handle.delete_rule(&plain).unwrap(), ChangeOutcome::No, "{condition}");
            assert_eq!(handle.ensure_rule(&plain).unwrap(), ChangeOutcome::Yes, "{condition}");
            // Same priority, and before ours: the kernel would match the foreign one.
            let deleted = handle.delete_rule(&plain);
            assert!(matches!(deleted, Err(Error::ConflictingRule { .. })), "{condition}: {deleted:?}");
            assert!(foreign(handle).unmodelled, "{condition}: the foreign rule is still there");
        });
    }
}

/// Foreign rules at the same priority, before and after ours, with an additional selector or another one.
#[test]
fn rules_of_the_node_path_live_beside_foreign_ones_of_their_priority() {
    for (number, family) in [("-4", Family::V4), ("-6", Family::V6)] {
        let to = if family == Family::V4 { "to 10.9.0.0/16" } else { "to 2001:db8:9::/48" };
        let lookup = |table| PolicyRule::new(family, Some(100), RuleAction::Lookup(TableId(table)));
        let fwmark = Some(Mark { value: 0x1100, mask: 0x3100 });
        for (ours, words) in [
            (PolicyRule { iif: Some("lo".to_owned()), ..lookup(254) }, "iif lo lookup main"),
            (PolicyRule { ip_proto: Some(IpProtocol::TCP), ..lookup(100) }, "ipproto tcp lookup 100"),
            (PolicyRule { fwmark, ..lookup(120) }, "fwmark 0x1100/0x3100 lookup 120"),
        ] {
            in_fresh_netns(|handle| {
                ip(&format!("{number} rule add priority 100 {to} lookup 77"));
                assert_eq!(handle.ensure_rule(&ours).unwrap(), ChangeOutcome::Yes, "{ours}");
                ip(&format!("{number} rule add priority 100 {to} {words}"));
                assert_eq!(handle.ensure_rule(&ours).unwrap(), ChangeOutcome::No, "{ours}");
                let rules = handle.list_rules(family).unwrap();
                assert_eq!(rules.iter().filter(|rule| rule.is_match_for(&ours)).count(), 1, "{rules:#?}");
                let told = ip(&format!("{number} rule show priority 100"));
                let told: Vec<_> =
                    told.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).collect();
                assert_eq!(told[1].join(" "), format!("100: from all {words}"));
                assert_eq!(handle.delete_rule(&ours).unwrap(), ChangeOutcome::Yes, "{ours}");
                assert_eq!(handle.delete_rule(&ours).unwrap(), ChangeOutcome::No, "{ours}");
                let rest = shown(&format!("{number} rule show priority 100"));
                assert!(rest.len() == 2 && rest.iter().all(|rule| !rule["dst"].is_null()), "{rest:#?}");
            });
        }
    }
}

#[test]
fn conditions_that_always_hold_do_not_double_a_rule() {
    in_fresh_netns(|handle| {
        let rule = PolicyRule {
            fwmark: Some(Mark { value: 0, mask: 0 }),
            ip_proto: Some(IpProtocol(0)),
            ..PolicyRule::new(Family::V4, Some(90), RuleAction::Lookup(TableId(101)))
        };
        assert_eq!(handle.ensure_rule(&rule).unwrap(), ChangeOutcome::Yes);
        assert_eq!(handle.ensure_rule(&rule).unwrap(), ChangeOutcome::No);
        assert_eq!(handle.delete_rule(&rule).unwrap(), ChangeOutcome::Yes);
    });
}

#[test]
fn rules_that_cannot_be_found_again_are_refused() {
    in_fresh_netns(|handle| {
        let no_table = PolicyRule::new(Family::V4, Some(90), RuleAction::Lookup(TableId(0)));
        let partly_known = PolicyRule { unmodelled: true, ..samples(Family::V4).remove(0) };
        for rule in [no_table, partly_known] {
            assert!(matches!(handle.ensure_rule(&rule), Err(Error::UnsuitableRule { .. })));
            assert!(matches!(handle.delete_rule(&rule), Err(Error::UnsuitableRule { .. })));
        }
        assert_eq!(handle.list_rules(Family::V4).unwrap().len(), 3);
    });
}

#[test]
fn duplicates_made_by_others_are_deleted_too() {
    in_fresh_netns(|handle| {
        let rule = samples(Family::V4).remove(2);
        assert_eq!(handle.ensure_rule(&rule).unwrap(), ChangeOutcome::Yes);
        // The protocol is no selector, but distinguishes two rules.
        for protocol in 3..200 {
            ip(&format!("rule add priority 107 fwmark 0x100/0x100 lookup 101 protocol {protocol}"));
        }
        assert_eq!(handle.ensure_rule(&rule).unwrap(), ChangeOutcome::No);
        assert_eq!(handle.delete_rule(&rule).unwrap(), ChangeOutcome::Yes);
        assert!(!ip("rule show").contains("0x100"));
    });
}

#[test]
fn a_refused_rule_says_what_and_why() {
    in_fresh_netns(|handle| {
        let backwards = PolicyRule::new(Family::V4, Some(200), RuleAction::Goto(100));
        assert_eq!(
            handle.ensure_rule(&backwards).unwrap_err().to_string(),
            "cannot add rule 200: from all goto 100: kernel: Backward goto not supported (EINVAL)"
        );
    });
}
