//! Properties of every rule, rule set and namespace: text and rules are two forms of the same thing, a plan leads from any state to
//! the desired one without changing foreign rules, and no text makes the parser panic.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test: a panic is its failure")]

#[path = "properties/arbitrary.rs"]
mod arbitrary;
#[path = "properties/kernel.rs"]
mod kernel;
#[path = "properties/misses.rs"]
mod misses;
#[allow(dead_code, reason = "shared with other tests")]
mod node_cases;

use std::collections::BTreeSet;

use kernel::{Kernel, Words, verdict};
use proptest::prelude::*;
use rules::{Chain, ChainSet, JumpPlace, Rule, RuleChange, RuleSet, SavedTables, Table, Target, sidecar};

fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

fn parse(kernel: &Kernel, counters: bool) -> SavedTables {
    SavedTables::parse(&kernel.save(counters)).unwrap()
}

/// A namespace in which `desired` may have been applied before, and that other components have changed since.
fn used(owner: ChainSet, desired: &RuleSet, applied: bool, dump: &[arbitrary::Lying]) -> Kernel {
    let mut kernel = Kernel::new();
    if applied {
        kernel.restore(&owner.apply(desired, &SavedTables::default()).restore_text()).unwrap();
    }
    arbitrary::throw(&mut kernel, desired, dump);
    kernel
}

fn into_own(owner: ChainSet, rule: &Words) -> bool {
    verdict(rule).is_some_and(|chain| owner.contains(chain))
}

/// All foreign objects: all other chains, and their rules that do not jump to ours, in order.
fn foreign(owner: ChainSet, kernel: &Kernel) -> Vec<(Table, String, Vec<Words>)> {
    let mut all = Vec::new();
    for (table, chains) in &kernel.tables {
        for (name, rules) in chains.iter().filter(|(name, _)| !owner.contains(name)) {
            all.push((
                *table,
                name.clone(),
                rules.iter().filter(|rule| !into_own(owner, rule)).cloned().collect(),
            ));
        }
    }
    all
}

fn assert_is(owner: ChainSet, kernel: &Kernel, desired: &RuleSet) {
    let saved = parse(kernel, false);
    for (table, chains) in &kernel.tables {
        let (want, have) = (desired.tables.get(table), &saved.tables[table]);
        let wanted: BTreeSet<&str> =
            want.iter().flat_map(|want| want.chains.iter().map(|(chain, _)| &*chain.0)).collect();
        let found: BTreeSet<&str> =
            chains.keys().map(String::as_str).filter(|name| owner.contains(name)).collect();
        assert_eq!(found, wanted, "own chains of {table:?}");
        for (chain, rules) in want.iter().flat_map(|want| &want.chains) {
            let found: Vec<_> = have.chain_rules(&chain.0).map(|rule| rule.rule.clone()).collect();
            let rules: Vec<_> = rules.iter().cloned().map(Some).collect();
            assert_eq!(found, rules, "{table:?} {chain}");
        }
        for name in chains.keys().filter(|name| !owner.contains(name)) {
            let jump = want.and_then(|want| want.jumps.iter().find(|jump| jump.hook.as_str() == name));
            let found: Vec<usize> =
                (0..chains[name].len()).filter(|index| into_own(owner, &chains[name][*index])).collect();
            assert_eq!(found.len(), usize::from(jump.is_some()), "rules into our chains in {table:?} {name}");
            if let Some(jump) = jump {
                let rule = have.chain_rules(name).nth(found[0]).and_then(|rule| rule.rule.as_ref());
                assert_eq!(rule, Some(&jump.rule));
                assert!(jump.place == JumpPlace::Last || found[0] == 0, "the first rule of {table:?} {name}");
            }
        }
    }
}

/// Applies the change with one restore, and with single calls; both have the same result.
fn carry_out(kernel: &mut Kernel, change: &RuleChange) {
    let mut by_calls = kernel.clone();
    kernel.restore(&change.restore_text()).unwrap();
    for call in change.iptables_calls() {
        by_calls.call(&call).unwrap();
    }
    assert_eq!(by_calls, *kernel, "single calls end elsewhere than the restore");
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn a_rule_reads_back_as_itself(
        rule in arbitrary::chain().prop_flat_map(|chain| arbitrary::rule(vec![chain])),
        chain in arbitrary::chain(),
        counters in any::<bool>(),
    ) {
        let counters = if counters { "[17:4711] " } else { "" };
        let shown = rule.to_string().replace("--tproxy-mark", "--on-ip 0.0.0.0 --tproxy-mark");
        for text in [rule.to_string(), shown] {
            let text = format!("# a comment\n*mangle\n:INPUT ACCEPT [1:2]\n:{chain} - [0:0]\n{counters}-A {chain} {text}\nCOMMIT\n");
            let saved = SavedTables::parse(&text).unwrap();
            let found = saved.tables[&Table::Mangle].chain_rules(&chain.0).collect::<Vec<_>>();
            prop_assert_eq!(found.len(), 1);
            prop_assert_eq!(found[0].rule.as_ref(), Some(&rule), "{}", text);
        }
    }

    #[test]
    fn a_rule_with_a_word_too_much_is_foreign(
        rule in arbitrary::rule(vec![]),
        word in "(--random|-m comment|--comment x|-f|! -s|x)",
        front in any::<bool>(),
    ) {
        let text = if front { format!("{word} {rule}") } else { format!("{rule} {word}") };
        let saved = SavedTables::parse(&format!("*nat\n-A OUTPUT {text}\nCOMMIT\n")).unwrap();
        prop_assert_eq!(saved.tables[&Table::Nat].rules[0].rule.as_ref(), None);
        prop_assert_eq!(&saved.tables[&Table::Nat].rules[0].text, &text);
    }

    #[test]
    fn a_rule_set_reads_back_from_a_save((owner, desired) in arbitrary::desired(), counters in any::<bool>()) {
        let kernel = used(owner, &desired, true, &[]);
        let saved = parse(&kernel, counters);
        prop_assert!(saved.tables.values().flat_map(|table| &table.rules).all(|rule| rule.rule.is_some()));
        assert_is(owner, &kernel, &desired);
        prop_assert!(owner.apply(&desired, &saved).is_empty(), "{:?}", owner.apply(&desired, &saved));
    }

    #[test]
    fn a_plan_needs_only_what_concerns_its_owner(
        (owner, desired) in arbitrary::desired(),
        applied in any::<bool>(),
        dump in arbitrary::dump(),
    ) {
        let text = used(owner, &desired, applied, &dump).save(false);
        let (whole, part) = (SavedTables::parse(&text).unwrap(), SavedTables::parse_for(&text, &[owner]).unwrap());
        prop_assert_eq!(owner.apply(&desired, &part), owner.apply(&desired, &whole));
        prop_assert_eq!(owner.remove(&part), owner.remove(&whole));
        prop_assert_eq!(part.is_blank(), whole.is_blank());
    }

    #[test]
    fn a_plan_leads_from_any_state_to_the_desired_one(
        (owner, desired) in arbitrary::desired(),
        applied in any::<bool>(),
        counters in any::<bool>(),
        dump in arbitrary::dump(),
    ) {
        let mut kernel = used(owner, &desired, applied, &dump);
        let before = foreign(owner, &kernel);
        let change = owner.apply(&desired, &parse(&kernel, counters));
        prop_assert_eq!(change.is_empty(), change.restore_text().is_empty());
        prop_assert_eq!(change.is_empty(), change.reasons().next().is_none());
        carry_out(&mut kernel, &change);
        assert_is(owner, &kernel, &desired);
        prop_assert_eq!(foreign(owner, &kernel), before);
        let again = owner.apply(&desired, &parse(&kernel, counters));
        prop_assert!(again.is_empty(), "a second time: {:?}", again);
    }

    #[test]
    fn two_steps_lead_where_one_does_and_only_the_second_leads_packets_into_our_chains(
        (owner, desired) in arbitrary::desired(),
        applied in any::<bool>(),
        dump in arbitrary::dump(),
    ) {
        let mut kernel = used(owner, &desired, applied, &dump);
        let change = owner.apply(&desired, &parse(&kernel, false));
        let mut whole = kernel.clone();
        carry_out(&mut whole, &change);
        let elsewhere = |kernel: &Kernel| {
            let mut all = Vec::new();
            for (table, chains) in &kernel.tables {
                let others = chains.iter().filter(|(name, rules)| !owner.contains(name) && !rules.is_empty());
                all.extend(others.map(|(name, rules)| (*table, name.clone(), rules.clone())));
            }
            all
        };
        let before = elsewhere(&kernel);
        match change.in_two_steps() {
            Some((fill, lead)) => {
                carry_out(&mut kernel, &fill);
                prop_assert_eq!(elsewhere(&kernel), before);
                carry_out(&mut kernel, &lead);
                prop_assert_eq!(kernel, whole);
            }
            None => {
                let jumps = |all: Vec<(Table, String, Vec<Words>)>| {
                    all.iter().flat_map(|(_, _, rules)| rules).filter(|rule| into_own(owner, rule)).count()
                };
                prop_assert!(jumps(elsewhere(&whole)) <= jumps(before));
            }
        }
    }

    #[test]
    fn a_removal_leaves_nothing_of_ours_and_all_of_theirs(
        (owner, desired) in arbitrary::desired(),
        applied in any::<bool>(),
        dump in arbitrary::dump(),
    ) {
        let mut kernel = used(owner, &desired, applied, &dump);
        let before = foreign(owner, &kernel);
        let change = owner.remove(&parse(&kernel, false));
        carry_out(&mut kernel, &change);
        assert_is(owner, &kernel, &RuleSet::default());
        prop_assert_eq!(foreign(owner, &kernel), before);
        prop_assert!(owner.remove(&parse(&kernel, false)).is_empty());
    }

    #[test]
    fn one_configuration_follows_another(
        (one, other) in (arbitrary::config(), arbitrary::config()),
        family in arbitrary::family(),
    ) {
        let mut kernel = Kernel::new();
        for config in [&one, &other, &one] {
            let desired = sidecar::rule_set(config, family);
            let change = ChainSet::SIDECAR.apply(&desired, &parse(&kernel, false));
            carry_out(&mut kernel, &change);
            assert_is(ChainSet::SIDECAR, &kernel, &desired);
        }
    }

    #[test]
    fn every_rule_set_is_whole(config in arbitrary::config(), family in arbitrary::family()) {
        let desired = sidecar::rule_set(&config, family);
        prop_assert_eq!(&desired, &sidecar::rule_set(&config, family));
        let text = ChainSet::SIDECAR.apply(&desired, &SavedTables::default()).restore_text();
        prop_assert_eq!(&text, &ChainSet::SIDECAR.apply(&desired, &SavedTables::default()).restore_text());
        prop_assert!(config.trace || !text.contains("NFLOG"));
        for (table, rules) in &desired.tables {
            let jumped: BTreeSet<&Chain> = rules.jumps.iter().filter_map(|jump| goal(&jump.rule)).collect();
            let inner = rules.chains.iter().flat_map(|(_, rules)| rules).filter_map(goal);
            for chain in jumped.iter().copied().chain(inner) {
                prop_assert!(rules.chains.iter().any(|(name, _)| name == chain), "{:?} has no {}", table, chain);
            }
            let hooks: BTreeSet<_> = rules.jumps.iter().map(|jump| jump.hook).collect();
            prop_assert_eq!(hooks.len(), rules.jumps.len(), "one jump per built-in chain");
            prop_assert_eq!(jumped.len(), hooks.len(), "every jump goes to a chain of ours");
            prop_assert!(rules.chains.iter().all(|(chain, _)| ChainSet::SIDECAR.contains(&chain.0)));
            prop_assert!(rules.chains.iter().flat_map(|(_, rules)| rules).all(|rule| of_family(rule, family)));
        }
    }

    #[test]
    fn no_text_brings_the_parser_down(text in "(\\*nat|\\*|:|-A |-j |-m |\\[1:2\\] |\"|\\\\|COMMIT|! |ISTIO_OUTPUT|\n|\\PC){0,40}") {
        survives(&text);
    }

    #[test]
    fn no_bytes_bring_the_parser_down(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        survives(&String::from_utf8_lossy(&bytes));
    }
}

fn goal(rule: &Rule) -> Option<&Chain> {
    match &rule.target {
        Target::Jump(chain) | Target::Goto(chain) => Some(chain),
        _ => None,
    }
}

fn of_family(rule: &Rule, family: model::Family) -> bool {
    [&rule.source, &rule.dest]
        .into_iter()
        .flatten()
        .all(|is| model::Family::from_ip(is.value.addr()) == family)
}

/// Parses, and plans on the result.
fn survives(text: &str) {
    if let Ok(saved) = SavedTables::parse(text) {
        let change = ChainSet::SIDECAR.remove(&saved);
        assert_eq!(change.is_empty(), change.restore_text().is_empty());
    }
}

#[test]
fn conditions_that_match_everything_are_not_written() {
    let any = "0.0.0.0/0".parse().unwrap();
    let every = model::IfName::new("+").unwrap();
    let rule =
        Rule::new(Target::Return).source(any).dest("::/0".parse().unwrap()).input(&every).output(&every);
    assert_eq!(rule, Rule::new(Target::Return), "the tools forget them, so that a save would never be equal");
}

/// A namespace with all of these rules in nat.
fn nat(lines: &str) -> Kernel {
    let mut kernel = Kernel::new();
    kernel.restore(&format!("*nat\n:ISTIO_INBOUND - [0:0]\n{lines}COMMIT\n")).unwrap();
    kernel
}

/// `-D` deletes the first of equal rules: the correct one, if a copy follows.
#[test]
fn a_first_jump_with_a_copy_behind_others_is_made_anew() {
    let config = sidecar::SidecarConfig {
        kubevirt_interfaces: vec![model::IfName::new("vnet0").unwrap()],
        ..sidecar::SidecarConfig::default()
    };
    let desired = sidecar::rule_set(&config, model::Family::V4);
    let jump = "-A PREROUTING -p tcp -j ISTIO_INBOUND\n";
    let mut kernel = nat(&format!("{jump}-A PREROUTING -j ACCEPT\n{jump}"));
    let change = ChainSet::SIDECAR.apply(&desired, &parse(&kernel, false));
    carry_out(&mut kernel, &change);
    assert_is(ChainSet::SIDECAR, &kernel, &desired);
}

#[test]
fn a_comment_that_names_our_chain_leads_nowhere() {
    let foreign = "-A PREROUTING -m comment --comment \"was -j ISTIO_INBOUND once\" -j ACCEPT\n";
    let mut kernel = nat(foreign);
    let change = ChainSet::SIDECAR.remove(&parse(&kernel, false));
    carry_out(&mut kernel, &change);
    let rules = &kernel.tables[&Table::Nat]["PREROUTING"];
    assert_eq!(rules.len(), 1, "{rules:?}");
}

#[test]
fn a_comment_does_not_hide_where_a_rule_leads() {
    for comment in ["\"for -j later\"", "-j"] {
        let mut kernel = nat(&format!("-A PREROUTING -m comment --comment {comment} -j ISTIO_INBOUND\n"));
        let change = ChainSet::SIDECAR.remove(&parse(&kernel, false));
        carry_out(&mut kernel, &change);
        assert_is(ChainSet::SIDECAR, &kernel, &RuleSet::default());
    }
}

#[test]
fn dns_servers_of_the_other_family_alone_make_a_whole_rule_set() {
    let config = sidecar::SidecarConfig {
        proxy_uids: vec![],
        proxy_gids: vec![],
        dns: sidecar::DnsCapture::Servers(vec!["fd00::a".parse().unwrap()]),
        ..sidecar::SidecarConfig::default()
    };
    let desired = sidecar::rule_set(&config, model::Family::V4);
    Kernel::new()
        .restore(&ChainSet::SIDECAR.apply(&desired, &SavedTables::default()).restore_text())
        .unwrap();
}

#[test]
fn a_chain_with_a_rule_less_or_more_is_made_anew() {
    let desired = sidecar::rule_set(&sidecar::SidecarConfig::default(), model::Family::V4);
    let whole = used(ChainSet::SIDECAR, &desired, true, &[]);
    assert!(ChainSet::SIDECAR.apply(&desired, &parse(&whole, false)).is_empty());
    for chain in ["ISTIO_OUTPUT", "ISTIO_REDIRECT"] {
        for more in [true, false] {
            let mut kernel = whole.clone();
            let rules = kernel.tables.get_mut(&Table::Nat).unwrap().get_mut(chain).unwrap();
            if more {
                rules.push(kernel::split("-j RETURN"));
            } else {
                rules.pop();
            }
            let change = ChainSet::SIDECAR.apply(&desired, &parse(&kernel, false));
            assert!(change.reasons().any(|why| why.contains(chain)), "{chain}, {more}");
            carry_out(&mut kernel, &change);
            assert_is(ChainSet::SIDECAR, &kernel, &desired);
        }
    }
}
