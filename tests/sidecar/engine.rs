//! The engine compared with the host's iptables-nft: for every rule set of a pod, both leave the same in the kernel, and each
//! reads, repairs and removes the rules of the other.

use std::collections::BTreeMap;

use firewall::Backend;
use kit::Netns;
use model::{Family, IfName, Mark, Port};
use netlink::ListBounds;
use rules::{
    Chain, ChainSet, CtStates, Hook, HookJump, JumpPlace, Match, MatchValue, Rule, RuleChange, RuleSet,
    SavedTables, Table, Target, TransportProtocol,
    inpod::{self, InPodRulesConfig, PodOptions},
    sidecar,
};

use crate::sidecar_kernel::{
    at_once, cases,
    state::{pod_netns, restore, save_text},
};

/// A name, the owner of the chains, and the rules of each family.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) owner: ChainSet,
    rules: [RuleSet; 2],
}

impl Case {
    fn new(name: &str, owner: ChainSet, rules: impl Fn(Family) -> RuleSet) -> Case {
        Case { name: name.to_owned(), owner, rules: Family::BOTH.map(rules) }
    }

    pub(crate) fn of(&self, family: Family) -> &RuleSet {
        &self.rules[usize::from(family == Family::V6)]
    }
}

fn cases() -> Vec<Case> {
    pods().into_iter().chain([Case::new("everything", ChainSet::SIDECAR, everything)]).collect()
}

/// The rule sets of pods.
pub(crate) fn pods() -> Vec<Case> {
    let sidecars = cases::all().into_iter().map(|case| {
        Case::new(case.name, ChainSet::SIDECAR, |family| sidecar::rule_set(&case.config, family))
    });
    let interfaces = ["k6t-eth0", "vnet1"].map(|name| IfName::new(name).unwrap());
    let in_pod = [
        ("in-pod", PodOptions::default()),
        ("in-pod-dns", PodOptions { dns: true, ..PodOptions::default() }),
        (
            "in-pod-bypass-inbound",
            PodOptions {
                bypass_inbound: true,
                virtual_interfaces: interfaces.to_vec(),
                ..PodOptions::default()
            },
        ),
    ];
    let in_pod = in_pod.map(|(name, pod)| {
        Case::new(name, ChainSet::IN_POD, |family| {
            inpod::pod_rules(&InPodRulesConfig::default(), &pod, family)
        })
    });
    sidecars.chain(in_pod).collect()
}

/// Every match and every verdict that the model has and a pod's rules could use, negated and not.
fn everything(family: Family) -> RuleSet {
    let chain = Chain::named("ISTIO_OUTPUT");
    let net = |v4: &str, v6: &str| (if family == Family::V4 { v4 } else { v6 }).parse().unwrap();
    let mark = Mark { value: 0x200, mask: 0xf00 };
    let any = || Rule::new(Target::Return);
    let mut conditions = vec![
        any().source(net("10.1.0.0/16", "fd00:1::/32")).dest(net("10.0.0.0/9", "fd00::/9")),
        any().not_source(net("10.1.2.3/32", "fd00::1/128")).not_dest(net("10.0.0.0/8", "fd00::/8")),
        any().input(&IfName::known("eth0")).output(&IfName::known("cali+")),
        any().not_input(&IfName::known("net1.100")).not_output(&IfName::known("a+")),
        any().not_tcp(),
        any().proto(TransportProtocol::Udp),
    ];
    for negated in [false, true] {
        let port = |port| MatchValue { negated, value: Port(port) };
        let id = MatchValue { negated, value: 1337 };
        for rule in [any().tcp(), any().udp()] {
            conditions.push(rule.clone().when(Match::SourcePort(port(53))));
            // `nft` does not print the "!" of a udp match's destination port (iptables 1.8.9).
            let is_shown = !negated || rule.proto == any().tcp().proto;
            conditions.extend(is_shown.then(|| rule.clone().when(Match::DestPort(port(1)))));
            let ports = (1..=15).map(Port).collect();
            conditions.push(rule.when(Match::DestPorts(MatchValue { negated, value: ports })));
        }
        conditions.push(any().when(Match::Uid(id.clone())).when(Match::Gid(id)));
        conditions.push(any().when(Match::SocketExists { negated }));
        for value in [mark, Mark::with_full_mask(0x539)] {
            conditions.push(any().when(Match::Mark(MatchValue { negated, value })));
            conditions.push(any().when(Match::ConnMark(MatchValue { negated, value })));
        }
    }
    conditions.extend(CtStates::ALL.map(|states| any().when(Match::CtState(states))));
    let ip = family_ip(family);
    let nat = [
        Target::Redirect(Port(15001)),
        Target::Dnat { ip, port: Port(15053) },
        Target::Accept,
        Target::Goto(Chain::named("ISTIO_REDIRECT")),
    ];
    let mangle = [
        Target::Tproxy { port: Port(15006), mark: Mark::with_full_mask(0x539) },
        Target::Tproxy { port: Port(15006), mark },
        Target::SetMark(mark),
        Target::SetMark(Mark::with_full_mask(0)),
        Target::SaveMark,
        Target::RestoreMark(0xfff),
        Target::RestoreMark(u32::MAX),
        Target::SetConnMark(mark),
        Target::SetConnMark(Mark::with_full_mask(0x111)),
        Target::Drop,
        Target::Nflog { prefix: "a \"quoted\" word".into(), group: 1337, size: 60 },
    ];
    let mut rules = RuleSet::default();
    let mut lead = |table, hook, place, chain: &Chain, list: Vec<Rule>| {
        let rules: &mut rules::TableRules = rules.table_mut(table);
        *rules.chain_mut(chain) = list;
        rules.jumps.push(HookJump { hook, rule: Rule::jump_to(chain.clone()).tcp(), place });
    };
    let with =
        |targets: &[Target]| targets.iter().map(|target| any().tcp().with_target(target.clone())).collect();
    lead(Table::Nat, Hook::Output, JumpPlace::First, &chain, conditions);
    lead(
        Table::Nat,
        Hook::Postrouting,
        JumpPlace::Last,
        &Chain::named("ISTIO_DROP"),
        vec![any().with_target(Target::Snat(ip))],
    );
    lead(Table::Nat, Hook::Prerouting, JumpPlace::Early, &Chain::named("ISTIO_REDIRECT"), Vec::new());
    lead(Table::Nat, Hook::Input, JumpPlace::Early, &Chain::named("ISTIO_INBOUND"), Vec::new());
    lead(Table::Nat, Hook::Output, JumpPlace::Last, &Chain::named("ISTIO_IN_REDIRECT"), with(&nat));
    lead(Table::Mangle, Hook::Prerouting, JumpPlace::First, &Chain::named("ISTIO_INBOUND"), with(&mangle));
    lead(
        Table::Mangle,
        Hook::Output,
        JumpPlace::First,
        &Chain::named("ISTIO_OUTPUT"),
        vec![any().with_target(Target::SaveMark)],
    );
    lead(
        Table::Filter,
        Hook::Forward,
        JumpPlace::First,
        &Chain::named("ISTIO_DROP"),
        vec![any().with_target(Target::Drop)],
    );
    lead(
        Table::Raw,
        Hook::Prerouting,
        JumpPlace::Last,
        &Chain::named("ISTIO_INBOUND"),
        vec![any().with_target(Target::CtZone(2))],
    );
    rules
}

fn family_ip(family: Family) -> std::net::IpAddr {
    if family == Family::V4 { [127, 0, 0, 1].into() } else { std::net::Ipv6Addr::LOCALHOST.into() }
}

fn listed(netns: &Netns, owner: ChainSet) -> BTreeMap<Family, SavedTables> {
    netns.run(move || nftables::read_tables(&[owner], ListBounds::POD)).unwrap()
}

/// Changes from the rules that the engine reads to the desired ones.
fn changes(netns: &Netns, owner: ChainSet, wanted: impl Fn(Family) -> RuleSet) -> Vec<(Family, RuleChange)> {
    let seen = listed(netns, owner);
    let none = SavedTables::default();
    let of = |family| (family, owner.apply(&wanted(family), seen.get(&family).unwrap_or(&none)));
    Family::BOTH.map(of).to_vec()
}

/// Applies the rules with the engine; returns the changes as text.
fn by_engine(netns: &Netns, owner: ChainSet, wanted: impl Fn(Family) -> RuleSet) -> Vec<String> {
    let changes = changes(netns, owner, wanted);
    let messages = nftables::transaction_messages(&changes).unwrap();
    netns.run(move || nftables::commit(messages)).unwrap();
    changes
        .iter()
        .flat_map(|(family, change)| change.reasons().map(move |why| format!("{family} {why}")))
        .collect()
}

/// Applies the rules with the tool; returns the changes as text.
fn by_tool(netns: &Netns, owner: ChainSet, wanted: impl Fn(Family) -> RuleSet) -> Vec<String> {
    let mut reasons = Vec::new();
    for family in Family::BOTH {
        let change = owner
            .apply(&wanted(family), &SavedTables::parse(&save_text(netns, Backend::Nft, family)).unwrap());
        restore(netns, Backend::Nft, family, &change.restore_text());
        reasons.extend(change.reasons().map(str::to_owned));
    }
    reasons
}

/// Output of both tools, without counters; `nft` prints ports and marks in the same format, whichever expression they are.
fn shown(netns: &Netns) -> String {
    let saves = Family::BOTH.map(|family| save_text(netns, Backend::Nft, family)).concat();
    let patch = iptables_patch(netns);
    if patch < FIRST_TIDY {
        return rules_by_chain(&saves);
    }
    let ruleset = netns.sh("nft list ruleset");
    let lines = saves.lines().filter(|line| !line.starts_with('#')).map(without_counters);
    let of_nft =
        |line| if patch < FIRST_OF_OTHER_ORDER { without_implied(line) } else { without_order(line) };
    lines.chain(ruleset.lines().map(of_nft)).collect::<Vec<_>>().join("\n")
}

/// Before iptables 1.8.5, the tool creates all built-in chains of a table that it writes to, and lists chains without sorting.
const FIRST_TIDY: u32 = 5;
/// From iptables 1.8.10 on, the tool writes a rule's matches in another order, and reads the protocol from the IPv4 header.
const FIRST_OF_OTHER_ORDER: u32 = 10;

/// The patch version: 9 of `iptables v1.8.9 (nf_tables)`.
fn iptables_patch(netns: &Netns) -> u32 {
    let version = netns.sh("iptables-nft --version");
    let patch = version.strip_prefix("iptables v1.8.").and_then(|rest| rest.split(' ').next());
    patch.and_then(|patch| patch.parse().ok()).unwrap_or_else(|| panic!("{version}"))
}

/// The rules of saves by chain, in order.
fn rules_by_chain(saves: &str) -> String {
    let mut table = "";
    let mut rules = Vec::new();
    for (at, line) in saves.lines().enumerate() {
        match line.split_once(' ') {
            Some(("-A", rule)) => rules.push((table, rule.split(' ').next(), at, line)),
            _ => table = line.strip_prefix('*').unwrap_or(table),
        }
    }
    rules.sort_unstable();
    rules.into_iter().map(|(table, _, _, rule)| format!("{table} {rule}\n")).collect()
}

/// `:OUTPUT ACCEPT` without the number of packets: the kernel sends packets of its own.
fn without_counters(line: &str) -> String {
    let chain = line.strip_prefix(':').and_then(|_| line.split_once(" ["));
    chain.map_or(line, |(chain, _)| chain).to_owned()
}

/// [`without_implied`], with sorted matches.
fn without_order(line: &str) -> String {
    let line = without_implied(&line.replace("ip protocol ", "meta l4proto "));
    let mut words: Vec<_> = line.split_whitespace().collect();
    words.sort_unstable();
    words.join(" ")
}

/// Equal text whether a port or a mark is an expression of nf_tables or a match of x_tables; without counters.
fn without_implied(line: &str) -> String {
    let mut line = line.replace("meta mark", "mark").replace(" & ", " and ");
    for proto in ["tcp", "udp"] {
        if [" dport ", " sport "].iter().any(|port| line.contains(&format!("{proto}{port}"))) {
            line = line.replace(&format!("meta l4proto {proto} "), "");
        }
    }
    let mut before = "";
    let words = line.split(' ').map(|word| {
        let is_count = ["packets", "bytes"].contains(&std::mem::replace(&mut before, word));
        let hex = word.strip_prefix("0x").map(|digits| digits.trim_start_matches('0'));
        if is_count { "N".to_owned() } else { hex.map_or(word.to_owned(), |digits| format!("0x{digits}")) }
    });
    let mut words: Vec<_> = words.collect();
    if words.contains(&"snaplen".to_owned()) {
        words.sort(); // `nft` prints the options of "log" in another order
    }
    words.join(" ")
}

#[track_caller]
fn assert_same(found: &str, expected: &str, what: &str) {
    let only = |one: &str, other: &str| {
        let other: Vec<&str> = other.lines().collect();
        one.lines().filter(|line| !other.contains(line)).collect::<Vec<_>>().join("\n  ")
    };
    assert!(
        found == expected,
        "{what} (or the order):\n+ {}\n- {}",
        only(found, expected),
        only(expected, found)
    );
}

fn same_as_the_tool(case: &Case) {
    let (name, owner, wanted) = (&case.name, case.owner, |family| case.of(family).clone());
    let nothing = |_| RuleSet::default();
    let [ours, theirs] = ["ours", "theirs"].map(pod_netns);
    by_engine(&ours, owner, wanted);
    by_tool(&theirs, owner, wanted);
    assert_same(&shown(&ours), &shown(&theirs), name);
    // Each reads the rules of the other.
    assert_eq!(by_tool(&ours, owner, wanted), Vec::<String>::new(), "{name}: the tool");
    assert_eq!(by_engine(&theirs, owner, wanted), Vec::<String>::new(), "{name}: the engine");
    assert_eq!(by_engine(&ours, owner, wanted), Vec::<String>::new(), "{name}: the engine, of its own");
    // And removes them.
    by_tool(&ours, owner, nothing);
    by_engine(&theirs, owner, nothing);
    assert_same(&shown(&ours), &shown(&theirs), &format!("{name}: removed"));
    let chains = |line: &str| line.starts_with(":ISTIO") || line.starts_with("\tchain ISTIO");
    assert!(!shown(&ours).lines().any(chains), "{name}: removed");
}

#[test]
fn every_rule_set_of_a_pod_is_what_the_tool_makes() {
    at_once(&cases(), same_as_the_tool);
}

/// Rule by rule, as people and other components do.
#[test]
fn the_tool_deletes_every_rule_of_the_engine() {
    at_once(&cases(), |case| {
        let netns = pod_netns("ours");
        by_engine(&netns, case.owner, |family| case.of(family).clone());
        for family in Family::BOTH {
            let save = save_text(&netns, Backend::Nft, family);
            let lines = save.lines().filter(|line| line.starts_with(['*', '-']) || *line == "COMMIT");
            let deleting = lines.map(|line| line.replacen("-A ", "-D ", 1) + "\n").collect::<String>();
            let deletes = deleting.lines().any(|line| line.starts_with("-D "));
            assert!(deletes || case.of(family).tables.is_empty(), "{}: {save}", case.name);
            restore(&netns, Backend::Nft, family, &deleting);
            let left = save_text(&netns, Backend::Nft, family);
            assert!(!left.lines().any(|line| line.starts_with("-A ")), "{}: {left}", case.name);
        }
    });
}
