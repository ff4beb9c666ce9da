//! Foreign changes in a redirected namespace, and the foreign and own rules that remain.

use std::{collections::BTreeMap, fmt::Write as _};

use firewall::Backend;
use kit::Netns;
use model::Family;
use rules::{JumpPlace, sidecar};

use super::{
    apply, at_once,
    cases::{self, Case},
    remove,
    state::{BACKENDS, Save, State, leads_to_ours, network, pod_netns, restore},
};

/// All built-in chains of each table.
const BUILTIN: [(&str, &[&str]); 4] = [
    ("raw", &["PREROUTING", "OUTPUT"]),
    ("mangle", &["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"]),
    ("filter", &["INPUT", "FORWARD", "OUTPUT"]),
    ("nat", &["PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"]),
];

/// Foreign rules in every built-in chain and in a foreign chain. `verb` is `-A` or `-I`. One of them only resembles a jump of ours.
fn foreign(verb: &str, port: u16) -> String {
    let mut text = String::new();
    for (table, hooks) in BUILTIN {
        let chain = format!("THEIRS_{port}");
        let _ =
            writeln!(text, "*{table}\n:{chain} - [0:0]\n-A {chain} -p tcp -m tcp --dport {port} -j RETURN");
        for hook in hooks {
            let _ = writeln!(
                text,
                "{verb} {hook} -p udp -m udp --dport {port} -m comment --comment \"-j ISTIO_OUTPUT\" -j {chain}"
            );
            let _ = writeln!(text, "{verb} {hook} -p tcp -m tcp --sport {port} -j RETURN");
        }
        text.push_str("COMMIT\n");
    }
    text
}

/// Input of one restore: commands by table.
fn text(commands: BTreeMap<&str, Vec<String>>) -> String {
    let section = |(table, lines): (&str, Vec<String>)| format!("*{table}\n{}\nCOMMIT\n", lines.join("\n"));
    commands.into_iter().map(section).collect()
}

/// A command for each of our chains that has rules.
fn each_chain(save: &Save, command: impl Fn(&str) -> String) -> String {
    let mut commands: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (chain, _) in save.iter().filter(|(chain, rules)| chain.is_ours() && !rules.is_empty()) {
        commands.entry(&chain.table).or_default().push(command(&chain.name));
    }
    text(commands)
}

/// A command for each jump from a built-in chain.
fn each_jump(save: &Save, command: impl Fn(&str, &str) -> String) -> String {
    let mut commands: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (chain, rules) in save.iter().filter(|(chain, _)| chain.is_builtin()) {
        let jumps = rules.iter().filter(|rule| leads_to_ours(rule)).map(|rule| command(&chain.name, rule));
        commands.entry(&chain.table).or_default().extend(jumps);
    }
    commands.retain(|_, lines| !lines.is_empty());
    text(commands)
}

/// A chain of another configuration of ours, and jumps to it, in tables that may have no other rules of ours.
fn stale() -> String {
    let mut text = String::new();
    for (table, hooks) in BUILTIN {
        let _ = writeln!(text, "*{table}\n:ISTIO_DROP - [0:0]\n-A ISTIO_DROP -p tcp -j RETURN");
        for hook in hooks {
            let _ =
                writeln!(text, "-I {hook} -p tcp -m tcp --dport 9 -j ISTIO_DROP\n-A {hook} -j ISTIO_DROP");
        }
        text.push_str("COMMIT\n");
    }
    text
}

/// Name, change of one family's tables, and whether the jumps keep their positions.
type Harm = (&'static str, fn(&Save) -> String, bool);

const HARMS: [Harm; 7] = [
    ("the first rule of each chain is gone", |save| each_chain(save, |chain| format!("-D {chain} 1")), true),
    ("each chain is empty", |save| each_chain(save, |chain| format!("-F {chain}")), true),
    (
        "a rule was put into each chain",
        |save| each_chain(save, |chain| format!("-I {chain} -p tcp -m tcp --dport 9 -j RETURN")),
        true,
    ),
    (
        "each jump stands behind the others",
        |save| each_jump(save, |hook, jump| format!("-D {hook} {jump}\n-A {hook} {jump}")),
        false,
    ),
    ("each jump is there twice", |save| each_jump(save, |hook, jump| format!("-A {hook} {jump}")), false),
    ("each jump is gone", |save| each_jump(save, |hook, jump| format!("-D {hook} {jump}")), false),
    ("chains and jumps of an older version are there", |_| stale(), true),
];

/// Several changes together.
const MUCH_HARM: Harm = (
    "rules and jumps are gone, and an older version's are there",
    |save| {
        let rules = each_chain(save, |chain| format!("-D {chain} 1"));
        rules + &each_jump(save, |hook, jump| format!("-D {hook} {jump}")) + &stale()
    },
    false,
);

/// Asserts that the jumps that must come first do.
fn first_jumps_are_first(state: &State, case: &Case, backend: Backend) {
    for (family, save) in state.of_backend(backend) {
        for (table, rules) in &sidecar::rule_set(&case.config, family).tables {
            for jump in rules.jumps.iter().filter(|jump| jump.place == JumpPlace::First) {
                let mut chains = save.iter();
                let hook = |name: &str| name == jump.hook.as_str();
                let (_, found) =
                    chains.find(|(chain, _)| chain.table == table.as_str() && hook(&chain.name)).unwrap();
                assert!(leads_to_ours(&found[0]), "{}: {found:#?}", case.name);
            }
        }
    }
}

/// Damages both families and repairs them; checks the state after that.
fn mend(netns: &Netns, case: &Case, backend: Backend, good: &State, (what, harm, in_place): Harm) -> State {
    let what = format!("{} with {backend}: {what}", case.name);
    for (family, save) in good.of_backend(backend) {
        restore(netns, backend, family, &harm(save));
    }
    let report = apply(netns, case, backend);
    let mended = State::of_backends(netns, &[backend]);
    if in_place {
        mended.assert_is(good, &what);
    } else {
        mended.assert_is_but_for_places(good, &what);
    }
    first_jumps_are_first(&mended, case, backend);
    let moved = what.ends_with("behind the others");
    assert!(moved || !report.is_unchanged(), "{what}: not noticed");
    mended
}

fn foreign_rules_stay(case: &Case, backend: Backend, harms: &[Harm]) {
    let netns = pod_netns("damage");
    let what = format!("{} with {backend}", case.name);
    let look = || State::of_backends(&netns, &[backend]);
    let both = |text: &str| Family::BOTH.map(|family| restore(&netns, backend, family, text));
    both(&foreign("-A", 7001));
    let before = State::of(&netns);
    apply(&netns, case, backend);
    let (without_ours, jumps) = look().without_jumps();
    assert!(jumps.values().all(|count| *count == 1), "{jumps:#?}");
    for (family, save) in before.of_backend(backend) {
        let kept = &without_ours.saves[&(backend, family)];
        assert!(save.iter().all(|chain| kept.get(chain.0) == Some(chain.1)), "{what}: {kept:#?}");
    }
    remove(&netns, backend);
    State::of(&netns).assert_is(&before, &what);

    apply(&netns, case, backend);
    both(&(foreign("-A", 7002) + &foreign("-I", 7003)));
    apply(&netns, case, backend);
    let good = look();
    first_jumps_are_first(&good, case, backend);
    let mended = harms.iter().fold(good.clone(), |good, harm| mend(&netns, case, backend, &good, *harm));
    mended.assert_is_but_for_places(&good, &what);
    remove(&netns, backend);
    let (cleaned, jumps) = look().without_jumps();
    assert!(jumps.is_empty(), "{jumps:#?}");
    let mut foreign_only = good.without_jumps().0;
    foreign_only.saves.values_mut().for_each(|save| save.retain(|chain, _| !chain.is_ours()));
    foreign_only.network = before.network;
    cleaned.assert_is(&foreign_only, &what);
}

/// Cases that differ in their tables, chains and jumps.
const SHAPES: [&str; 5] = ["tproxy-everything", "kubevirt", "dns-servers", "drop-invalid", "nothing"];

#[test]
fn every_shape_survives_every_damage() {
    let shapes: Vec<_> = cases::all().into_iter().filter(|case| SHAPES.contains(&case.name)).collect();
    at_once(&shapes, |case| {
        BACKENDS.into_iter().for_each(|backend| foreign_rules_stay(case, backend, &HARMS));
    });
}

#[test]
fn every_case_survives_damage_and_spares_foreign_rules_with_nft() {
    at_once(&cases::all(), |case| foreign_rules_stay(case, Backend::Nft, &[MUCH_HARM]));
}

#[test]
fn every_case_survives_damage_and_spares_foreign_rules_with_legacy() {
    at_once(&cases::all(), |case| foreign_rules_stay(case, Backend::Legacy, &[MUCH_HARM]));
}

/// Routes, policy rules and the address are repaired too, and foreign ones stay.
#[test]
fn routes_and_addresses_are_mended_and_foreign_ones_stay() {
    let case = cases::all().into_iter().find(|case| case.name == "tproxy").unwrap();
    let netns = pod_netns("routes");
    netns.sh("ip -4 rule add fwmark 0x7 lookup 133");
    netns.sh("ip -6 rule add from fd00:7::/64 lookup 133");
    netns.sh("ip -4 route add 192.0.2.0/24 dev eth0 table 133");
    netns.sh("ip address add 127.0.0.7/32 dev lo");
    let before = network(&netns);
    apply(&netns, &case, Backend::Nft);
    let good = sorted(&network(&netns));
    for harm in [
        "ip -6 address del ::6/128 dev lo",
        "ip -4 rule del fwmark 1337 lookup 133",
        "ip -6 rule del fwmark 1337 lookup 133",
        "ip -4 route del local default dev lo table 133",
        "ip -6 route del local default dev lo table 133",
    ] {
        netns.sh(harm);
        let report = apply(&netns, &case, Backend::Nft);
        assert_eq!(report.differences.len(), 1, "{harm}: {report:?}");
        assert_eq!(sorted(&network(&netns)), good, "{harm}");
    }
    remove(&netns, Backend::Nft);
    assert_eq!(network(&netns), before);
}

/// The priorities that the kernel assigns to policy rules (`-4 32764:`) depend on earlier ones; the rest does not.
fn sorted(network: &str) -> Vec<String> {
    let unnumbered = |line: &str| match line.split_once(":\t") {
        Some((_, rule)) => rule.to_owned(),
        None => line.to_owned(),
    };
    let mut lines: Vec<String> = network.lines().map(unnumbered).collect();
    lines.sort();
    lines
}
