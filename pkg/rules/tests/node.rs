//! The rule sets of node-level redirection: their text compared with `golden-node/<case>.txt` (after an intended change:
//! `MILLRACE_UPDATE_GOLDEN=1 cargo test -p rules --test node`, then read the diff), and their invariants.
#![expect(clippy::disallowed_methods, reason = "a test of a pure crate may read its golden files")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test: a panic is its failure")]

#[path = "properties/kernel.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod kernel;
mod node_cases;

use std::{collections::BTreeSet, fs, path::Path};

use kernel::Kernel;
use model::Family;
use node_cases::Case;
use rules::{
    ChainSet, Hook, JumpPlace, Match, RuleChange, RuleSet, SavedTables, Table, Target,
    node::{self, NodeLinks, NodeMarks, NodeParameters, NodeRulesConfig},
};

fn saved(kernel: &Kernel) -> SavedTables {
    SavedTables::parse(&kernel.save(false)).unwrap()
}

fn applied(rules: &RuleSet) -> Kernel {
    let mut kernel = Kernel::new();
    kernel.restore(&ChainSet::NODE.apply(rules, &SavedTables::default()).restore_text()).unwrap();
    kernel
}

fn told(change: &RuleChange) -> Vec<&str> {
    change.reasons().collect()
}

#[test]
fn every_case_prints_its_golden_text() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden-node");
    let names: BTreeSet<_> = node_cases::all().iter().map(|case| case.name).collect();
    for name in &names {
        let families = node_cases::all().into_iter().filter(|case| case.name == *name);
        let text = |Case { family, rules, .. }| {
            format!("# {family}\n{}", ChainSet::NODE.apply(&rules, &SavedTables::default()).restore_text())
        };
        let text: String = families.map(text).collect();
        let path = dir.join(name).with_extension("txt");
        if std::env::var_os("MILLRACE_UPDATE_GOLDEN").is_some() {
            fs::write(&path, &text).unwrap();
        }
        assert_eq!(text, fs::read_to_string(&path).unwrap_or_default(), "case {name}");
    }
    assert_eq!(fs::read_dir(dir).unwrap().count(), names.len(), "golden files without a case");
}

#[test]
fn what_was_applied_is_what_is_wanted() {
    for Case { name, family, rules } in node_cases::all() {
        let change = ChainSet::NODE.apply(&rules, &saved(&applied(&rules)));
        assert!(change.is_empty(), "{name} {family}: {:?}", told(&change));
    }
}

#[test]
fn every_case_follows_every_other_and_nothing_is_left_at_the_end() {
    for one in node_cases::all() {
        for other in node_cases::all().into_iter().filter(|other| other.family == one.family) {
            let mut kernel = applied(&one.rules);
            let change = ChainSet::NODE.apply(&other.rules, &saved(&kernel));
            assert_eq!(change.is_empty(), one.rules == other.rules, "{} to {}", one.name, other.name);
            kernel.restore(&change.restore_text()).unwrap();
            assert_eq!(kernel, applied(&other.rules), "{} to {}", one.name, other.name);
            kernel.restore(&ChainSet::NODE.remove(&saved(&kernel)).restore_text()).unwrap();
            assert_eq!(kernel, Kernel::new());
        }
    }
}

/// So that no tool waits for the kernel to free removed rules.
#[test]
fn a_chain_that_only_lacks_rules_gets_them_and_keeps_the_others() {
    let of = |name, family| {
        let mut all = node_cases::all().into_iter();
        all.find(|case| case.name == name && case.family == family).unwrap().rules
    };
    for family in Family::BOTH {
        for (from, to) in [("host-one", "host-two"), ("host-other", "host-two"), ("host-empty", "host-two")] {
            let mut kernel = applied(&of(from, family));
            let there: BTreeSet<String> = kernel.tables[&Table::Mangle].keys().cloned().collect();
            let text = ChainSet::NODE.apply(&of(to, family), &saved(&kernel)).restore_text();
            let adds = |line: &str| {
                let made = line.strip_prefix(':').and_then(|rest| rest.split(' ').next());
                let is_new = made.is_some_and(|chain| !there.contains(chain));
                let into = ["-I ztunnel-PREROUTING ", "-I ztunnel-KNOWN ", "-A ztunnel-SENT-"];
                ["*mangle", "COMMIT"].contains(&line)
                    || is_new
                    || into.iter().any(|begin| line.starts_with(begin))
            };
            assert!(text.lines().count() > 2 && text.lines().all(adds), "{from} to {to}: {text}");
            kernel.restore(&text).unwrap();
            assert_eq!(kernel, applied(&of(to, family)), "{from} to {to}");
        }
    }
}

#[test]
fn a_chain_that_is_as_it_should_be_is_not_emptied_with_another() {
    let case = node_cases::all().into_iter().find(|case| case.name == "host-two").unwrap();
    let mut kernel = applied(&case.rules);
    kernel.restore("*mangle\n-A ztunnel-PREROUTING -j ACCEPT\nCOMMIT\n").unwrap();
    let text = ChainSet::NODE.apply(&case.rules, &saved(&kernel)).restore_text();
    let emptied: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix(':')?.split(' ').next()).collect();
    assert_eq!(emptied, ["ztunnel-PREROUTING"], "{text}");
    kernel.restore(&text).unwrap();
    assert_eq!(kernel, applied(&case.rules));
}

/// Rules of Istio's own agent: unconditional jumps, appended; other rules in chains of the same names; chains that we do not use.
const ISTIOS: &str = "*mangle
:ztunnel-PREROUTING - [0:0]
:ztunnel-INPUT - [0:0]
:ztunnel-OUTPUT - [0:0]
-A PREROUTING -j CALI-forward
-A PREROUTING -j ztunnel-PREROUTING
-A INPUT -j ztunnel-INPUT
-A OUTPUT -j ztunnel-OUTPUT
-A OUTPUT -j ztunnel-OUTPUT
-A ztunnel-PREROUTING -i istioin -j MARK --set-xmark 0x200/0x200
-A ztunnel-PREROUTING -m geneve -j RETURN
-A ztunnel-OUTPUT -s 10.0.0.1/32 -j MARK --set-xmark 0x220/0xffffffff
COMMIT
*nat
:ztunnel-PREROUTING - [0:0]
:ztunnel-POSTROUTING - [0:0]
-A PREROUTING -j KUBE-SERVICES
-A PREROUTING -j ztunnel-PREROUTING
-A POSTROUTING -j ztunnel-POSTROUTING
-A ztunnel-PREROUTING -m mark --mark 0x100/0x100 -j ACCEPT
-A ztunnel-POSTROUTING -m mark --mark 0x100/0x100 -j ACCEPT
COMMIT
";

/// Foreign rules, including those of sidecar redirection.
const FOREIGN: &str = "*mangle
:CALI-forward - [0:0]
:ISTIO_PRERT - [0:0]
-A PREROUTING -i cali+ -j CALI-forward
-A ISTIO_PRERT -p tcp -j RETURN
-A CALI-forward -m mark --mark 0x200/0x200 -j RETURN
COMMIT
*nat
:KUBE-SERVICES - [0:0]
:ISTIO_OUTPUT - [0:0]
-A OUTPUT -p tcp -j ISTIO_OUTPUT
-A POSTROUTING -m comment --comment \"not for ztunnel-POSTROUTING\" -j MASQUERADE
COMMIT
";

fn in_own_chain(kernel: &Kernel, table: Table, chain: &str) -> Vec<String> {
    kernel.tables[&table][chain].iter().map(|words| words.join(" ")).collect()
}

#[test]
fn what_istios_agent_left_goes_and_what_others_have_stays() {
    for Case { name, family, rules } in node_cases::all() {
        let mut kernel = Kernel::new();
        kernel.restore(FOREIGN).unwrap();
        kernel.restore(ISTIOS).unwrap();
        kernel.restore(&ChainSet::NODE.apply(&rules, &saved(&kernel)).restore_text()).unwrap();
        let again = ChainSet::NODE.apply(&rules, &saved(&kernel));
        assert!(again.is_empty(), "{name} {family}: {:?}", told(&again));
        let prerouting = in_own_chain(&kernel, Table::Mangle, "PREROUTING");
        assert_eq!(prerouting, ["-j ztunnel-PREROUTING", "-i cali+ -j CALI-forward", "-j CALI-forward"]);
        assert!(in_own_chain(&kernel, Table::Mangle, "INPUT").is_empty());
        kernel.restore(&ChainSet::NODE.remove(&saved(&kernel)).restore_text()).unwrap();
        let mut before = Kernel::new();
        before.restore(FOREIGN).unwrap();
        before.restore("*mangle\n-A PREROUTING -j CALI-forward\nCOMMIT\n*nat\n-A PREROUTING -j KUBE-SERVICES\nCOMMIT\n").unwrap();
        assert_eq!(kernel, before);
    }
}

#[test]
fn a_jump_that_is_not_first_a_copy_and_a_chain_too_much_are_mended() {
    let damages = [
        "*mangle\n-I PREROUTING 1 -j ACCEPT\nCOMMIT\n",
        "*mangle\n-A PREROUTING -j ztunnel-PREROUTING\nCOMMIT\n",
        "*mangle\n-I PREROUTING 1 -p tcp -j ztunnel-PREROUTING\nCOMMIT\n",
        "*mangle\n-A ztunnel-PREROUTING -j RETURN\nCOMMIT\n",
        "*mangle\n-D PREROUTING -j ztunnel-PREROUTING\nCOMMIT\n",
        "*filter\n:ztunnel-INPUT - [0:0]\nCOMMIT\n",
        "*raw\n:ztunnel-OUTPUT - [0:0]\n-A OUTPUT -j ztunnel-OUTPUT\nCOMMIT\n",
    ];
    for Case { name, family, rules } in node_cases::all() {
        for damage in damages {
            let mut kernel = applied(&rules);
            kernel.restore(damage).unwrap();
            let change = ChainSet::NODE.apply(&rules, &saved(&kernel));
            assert!(!change.is_empty(), "{name} {family}: not seen: {damage}");
            kernel.restore(&change.restore_text()).unwrap();
            let again = ChainSet::NODE.apply(&rules, &saved(&kernel));
            assert!(again.is_empty(), "{name} {family}, {damage}: {:?}", told(&again));
        }
    }
}

#[test]
fn neither_owner_touches_the_others_rules() {
    let sidecar = rules::sidecar::rule_set(&rules::sidecar::SidecarConfig::default(), Family::V4);
    let whole = |one: ChainSet, its: &RuleSet, other: ChainSet, theirs: &RuleSet| {
        let mut kernel = Kernel::new();
        kernel.restore(&one.apply(its, &SavedTables::default()).restore_text()).unwrap();
        let alone = kernel.clone();
        kernel.restore(&other.apply(theirs, &saved(&kernel)).restore_text()).unwrap();
        kernel.restore(&other.remove(&saved(&kernel)).restore_text()).unwrap();
        assert_eq!(kernel, alone);
    };
    for case in node_cases::all() {
        whole(ChainSet::SIDECAR, &sidecar, ChainSet::NODE, &case.rules);
        whole(ChainSet::NODE, &case.rules, ChainSet::SIDECAR, &sidecar);
    }
    assert!(ChainSet::SIDECAR.chains.iter().all(|chain| !ChainSet::NODE.contains(chain)));
}

#[test]
fn every_rule_set_is_whole() {
    for Case { name, family, rules } in node_cases::all() {
        for (table, rules) in &rules.tables {
            let hooks: BTreeSet<_> = rules.jumps.iter().map(|jump| jump.hook).collect();
            assert_eq!(hooks.len(), rules.jumps.len(), "{name} {family}: one jump per built-in chain");
            let all = rules.chains.iter().flat_map(|(_, rules)| rules);
            let led_to: BTreeSet<_> = all
                .chain(rules.jumps.iter().map(|jump| &jump.rule))
                .filter_map(|rule| match &rule.target {
                    Target::Jump(chain) | Target::Goto(chain) => Some(chain),
                    _ => None,
                })
                .collect();
            let chains: BTreeSet<_> = rules.chains.iter().map(|(chain, _)| chain).collect();
            assert_eq!(chains, led_to, "{name} {family}: each chain is led to, and is there");
            assert!(rules.jumps.iter().all(|jump| jump.place == JumpPlace::First));
            for (chain, rules) in &rules.chains {
                assert!(
                    ChainSet::NODE.contains(&chain.0) && !rules.is_empty(),
                    "{name} {family}: {table:?} {chain}"
                );
                let nets = rules.iter().flat_map(|rule| [&rule.source, &rule.dest]).flatten();
                assert!(
                    nets.into_iter().all(|is| Family::from_ip(is.value.addr()) == family),
                    "{name} {family}"
                );
            }
        }
    }
}

#[test]
fn a_foreign_packet_of_an_established_connection_meets_two_rules() {
    for case in node_cases::all().into_iter().filter(|case| case.name.starts_with("host")) {
        let first = case.rules.tables[&Table::Mangle].chain_rules(&node::PREROUTING).iter().take(2);
        let first: Vec<String> = first.map(ToString::to_string).collect();
        let asked = [
            "-m connmark ! --mark 0x0/0x3000 -g ztunnel-KNOWN",
            "-m conntrack --ctstate RELATED,ESTABLISHED -j RETURN",
        ];
        assert_eq!(first, asked, "{}", case.name);
        let hooks = case.rules.tables.iter().flat_map(|(table, rules)| {
            rules.jumps.iter().map(|jump| (*table, jump.hook, jump.rule.to_string()))
        });
        // All hooks that it traverses: `nat` sees only first packets, and locally created ones do not pass.
        let others = hooks.filter(|(table, hook, _)| *table != Table::Nat && *hook != Hook::Output);
        let others: Vec<String> = others.map(|(_, hook, rule)| format!("{} {rule}", hook.as_str())).collect();
        let led =
            ["FORWARD -m mark ! --mark 0x0/0x3000 -j ztunnel-FORWARD", "PREROUTING -j ztunnel-PREROUTING"];
        assert_eq!(others, led, "{}", case.name);
    }
}

/// Only the conntrack mark and the packet's link decide about a captured connection.
#[test]
fn a_packet_of_a_captured_connection_is_looked_up_nowhere() {
    for case in node_cases::all().into_iter().filter(|case| case.name.starts_with("host")) {
        let [links @ .., last] = case.rules.tables[&Table::Mangle].chain_rules(&node::KNOWN) else {
            panic!("{}", case.name)
        };
        assert_eq!(last.to_string(), "-j CONNMARK --restore-mark --nfmask 0x3140 --ctmask 0x3140");
        for rule in links {
            let by_link = rule.input.is_some() && rule.matches.is_empty() && rule.source.is_none();
            assert!(by_link && matches!(rule.target, Target::Goto(_)), "{}: {rule}", case.name);
        }
    }
}

/// IPVS forwards without FORWARD, and `nat` does not see a retransmitted first packet.
#[test]
fn a_connection_gets_its_slot_in_both_places() {
    for case in node_cases::all().into_iter().filter(|case| case.name.starts_with("host")) {
        let noted = |table: Table, chain: &rules::Chain| {
            let rules = case.rules.tables[&table].chain_rules(chain);
            let noted = rules.iter().filter(|rule| matches!(rule.target, Target::SetConnMark(_)));
            noted.map(ToString::to_string).collect::<Vec<_>>()
        };
        let expected = [
            "-o istioin0 -j CONNMARK --set-xmark 0x1000/0x3140",
            "-o istioout0 -j CONNMARK --set-xmark 0x1100/0x3140",
            "-o istioin1 -j CONNMARK --set-xmark 0x2000/0x3140",
            "-o istioout1 -j CONNMARK --set-xmark 0x2100/0x3140",
        ];
        assert_eq!(noted(Table::Filter, &node::FIRST), expected, "{}", case.name);
        assert_eq!(noted(Table::Nat, &node::POSTROUTING), expected, "{}", case.name);
    }
}

/// Other bits of the mark belong to other components.
#[test]
fn no_other_bit_of_a_mark_is_written_or_looked_at() {
    let marks = NodeMarks::default();
    assert_eq!((marks.path_mask(), marks.slot_mask()), (0x3140, 0x3000));
    let (packet, connection) = (0x3370, 0x3350);
    for case in node_cases::all().into_iter().filter(|case| case.name.starts_with("host")) {
        let tables = case.rules.tables.values();
        let jumps = tables.clone().flat_map(|table| table.jumps.iter().map(|jump| &jump.rule));
        for rule in tables.flat_map(|table| table.chains.iter().flat_map(|(_, rules)| rules)).chain(jumps) {
            let written = match rule.target {
                Target::SetMark(mark) => mark.mask & !packet,
                Target::RestoreMark(mask) => mask & !connection,
                Target::SetConnMark(mark) => mark.mask & !connection,
                _ => 0,
            };
            assert_eq!(written, 0, "{}: {rule}", case.name);
            for condition in &rule.matches {
                let foreign = match condition {
                    Match::Mark(is) => is.value.mask & !packet,
                    Match::ConnMark(is) => is.value.mask & !connection,
                    _ => 0,
                };
                assert_eq!(foreign, 0, "{}: {rule}", case.name);
            }
        }
    }
}

#[test]
fn the_patterns_cover_the_links_and_no_other_ends() {
    let links = NodeLinks::default();
    let is_of = |pattern: &model::IfName, name: &model::IfName| {
        name.as_str().starts_with(pattern.as_str().strip_suffix('+').unwrap())
    };
    for name in &links.inbound {
        assert!(is_of(&links.any, name) && !is_of(&links.any_outbound, name), "{name}");
    }
    for name in &links.outbound {
        assert!(is_of(&links.any, name) && is_of(&links.any_outbound, name), "{name}");
    }
    assert!(!is_of(&links.any, &links.proxy_inbound) && !is_of(&links.any, &links.proxy_outbound));
}

#[test]
fn everything_is_as_configured() {
    let mut config = NodeRulesConfig::default();
    config.marks.outbound = model::Mark { value: 0x8, mask: 0x8 };
    config.links.inbound = ["a0", "a1"].map(|name| model::IfName::new(name).unwrap());
    config.ports.dns = model::Port(5353);
    let ip = "10.0.0.1".parse().unwrap();
    let rules = node::host_rules(
        &config,
        &NodeParameters { family: Family::V4, slots: [None, None], set: "s", dns: Some(ip), capture: true },
    );
    let text = ChainSet::NODE.apply(&rules, &SavedTables::default()).restore_text();
    assert!(
        text.contains("-o a1 -j CONNMARK --set-xmark 0x2000/0x3048") && !text.contains("0x100/"),
        "{text}"
    );
    assert!(text.contains("--to-destination 10.0.0.1:5353"), "{text}");
    let hooks: Vec<Hook> = rules.tables[&Table::Mangle].jumps.iter().map(|jump| jump.hook).collect();
    assert_eq!(hooks, [Hook::Prerouting, Hook::Output]);
    let all = rules.tables.iter();
    let places = all.flat_map(|(table, rules)| rules.jumps.iter().map(|jump| (*table, jump.hook)));
    assert_eq!(places.collect::<BTreeSet<_>>(), node::HOOKS.into_iter().collect());
}
