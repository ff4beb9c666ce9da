//! Native tables: for every rule set of a pod, the kernel has exactly the desired rules, whichever program applied them, and `nft`
//! lists them as Istio's.

use std::collections::BTreeMap;

use firewall::{Backend, Firewall, FirewallOptions, NativeTables};
use kit::Netns;
use model::Family;
use rules::{
    ChainSet, RuleSet,
    inpod::{self, InPodRulesConfig, PodOptions},
};

use crate::{
    engine,
    fixtures::plugin::rules,
    sidecar_kernel::{
        at_once,
        state::{pod_netns, restore, save_text},
    },
};

fn preferred() -> FirewallOptions {
    FirewallOptions { native: NativeTables::Preferred, ..FirewallOptions::default() }
}

/// Applies the rules; returns the changes as text.
fn apply(
    netns: &Netns,
    options: &FirewallOptions,
    owner: ChainSet,
    wanted: impl Fn(Family) -> RuleSet + Send,
) -> (Backend, Vec<String>) {
    netns.run(|| {
        let (firewall, observed) = Firewall::open(options).unwrap();
        let changes = observed.plan_changes(owner, wanted);
        firewall.apply(&changes, Vec::new()).unwrap();
        (firewall.backend(), changes.reason_texts())
    })
}

fn tables(netns: &Netns) -> String {
    netns.sh("nft --stateless list ruleset")
}

fn comes_and_goes(case: &engine::Case) {
    let (name, wanted) = (&case.name, |family| case.of(family).clone());
    let netns = pod_netns("native");
    let (backend, made) = apply(&netns, &preferred(), case.owner, wanted);
    assert!(backend == Backend::Native && !made.is_empty(), "{name}: {backend}");
    let (shown, made) = (tables(&netns), chains(&netns));
    let is_table = |line: &&str| line.starts_with("table ");
    assert!(shown.lines().any(|line| is_table(&line)), "{name}: {shown}");
    let is_native = |line: &str| line.starts_with("table inet istio-");
    assert!(shown.lines().filter(is_table).all(is_native), "{name}: {shown}");
    assert!(shown.split_whitespace().all(|word| word != "xt"), "{name}: {shown}");
    assert_eq!(apply(&netns, &preferred(), case.owner, wanted).1, Vec::<String>::new(), "{name}: again");
    // One rule less in some chain, an additional chain, an additional table.
    let prefix = case.owner.native.unwrap();
    netns.pipe(
        "nft -f -",
        &format!(
            "flush chain inet {prefix}-nat istio-output\nadd chain inet {prefix}-nat stranger\n\
             add table inet {prefix}-filter\n"
        ),
    );
    let mended = apply(&netns, &FirewallOptions::default(), case.owner, wanted);
    assert_eq!((mended.0, mended.1.len()), (Backend::Native, 3), "{name}: {:?}", mended.1);
    assert_eq!(chains(&netns), made, "{name}: mended");
    apply(&netns, &FirewallOptions::default(), case.owner, |_| RuleSet::default());
    assert_eq!(tables(&netns), "", "{name}: removed");
}

#[test]
fn every_rule_set_of_a_pod_is_made_found_mended_and_removed() {
    at_once(&engine::pods(), comes_and_goes);
}

fn in_pod(dns: bool) -> impl Fn(Family) -> RuleSet + Clone + Send {
    let pod = PodOptions { dns, ..PodOptions::default() };
    move |family| inpod::pod_rules(&InPodRulesConfig::default(), &pod, family)
}

/// Input of `nft` for the rules that Istio 1.30 creates in an ambient pod with DNS capture.
const ISTIO: &str = "\
add table inet istio-ambient-nat
add chain inet istio-ambient-nat prerouting { type nat hook prerouting priority -100 ; policy accept ; }
add chain inet istio-ambient-nat output { type nat hook output priority -100 ; policy accept ; }
add chain inet istio-ambient-nat istio-prerouting
add chain inet istio-ambient-nat istio-output
add rule inet istio-ambient-nat prerouting jump istio-prerouting
add rule inet istio-ambient-nat output jump istio-output
add rule inet istio-ambient-nat istio-prerouting meta l4proto tcp ip saddr 169.254.7.127 counter accept
add rule inet istio-ambient-nat istio-prerouting meta l4proto tcp ip6 saddr fd16:9254:7127:1337:ffff:ffff:ffff:ffff counter accept
add rule inet istio-ambient-nat istio-prerouting ip daddr != 127.0.0.1/32 tcp dport != 15008 mark and 0xfff != 0x539 counter redirect to :15006
add rule inet istio-ambient-nat istio-prerouting ip6 daddr != ::1/128 tcp dport != 15008 mark and 0xfff != 0x539 counter redirect to :15006
add rule inet istio-ambient-nat istio-output meta l4proto tcp ip daddr 169.254.7.127 counter accept
add rule inet istio-ambient-nat istio-output meta l4proto tcp ip6 daddr fd16:9254:7127:1337:ffff:ffff:ffff:ffff counter accept
add rule inet istio-ambient-nat istio-output oifname != lo mark and 0xfff != 0x539 udp dport 53 counter redirect to :15053
add rule inet istio-ambient-nat istio-output ip daddr != 127.0.0.1/32 tcp dport 53 mark and 0xfff != 0x539 counter redirect to :15053
add rule inet istio-ambient-nat istio-output ip6 daddr != ::1/128 tcp dport 53 mark and 0xfff != 0x539 counter redirect to :15053
add rule inet istio-ambient-nat istio-output meta l4proto tcp mark and 0xfff == 0x111 counter accept
add rule inet istio-ambient-nat istio-output oifname lo ip daddr != 127.0.0.1/32 counter accept
add rule inet istio-ambient-nat istio-output oifname lo ip6 daddr != ::1/128 counter accept
add rule inet istio-ambient-nat istio-output meta l4proto tcp ip daddr != 127.0.0.1/32 mark and 0xfff != 0x539 counter redirect to :15001
add rule inet istio-ambient-nat istio-output meta l4proto tcp ip6 daddr != ::1/128 mark and 0xfff != 0x539 counter redirect to :15001
add table inet istio-ambient-mangle
add chain inet istio-ambient-mangle prerouting { type filter hook prerouting priority -150 ; policy accept ; }
add chain inet istio-ambient-mangle output { type route hook output priority -150 ; policy accept ; }
add chain inet istio-ambient-mangle istio-prerouting
add chain inet istio-ambient-mangle istio-output
add rule inet istio-ambient-mangle prerouting jump istio-prerouting
add rule inet istio-ambient-mangle output jump istio-output
add rule inet istio-ambient-mangle istio-prerouting meta mark & 0xfff == 0x539 counter ct mark set ct mark & 0xfffff000 | 0x111
add rule inet istio-ambient-mangle istio-output ct mark and 0xfff == 0x111 counter meta mark set ct mark
add table inet istio-ambient-raw
add chain inet istio-ambient-raw prerouting { type filter hook prerouting priority -300 ; policy accept ; }
add chain inet istio-ambient-raw output { type filter hook output priority -300 ; policy accept ; }
add chain inet istio-ambient-raw istio-prerouting
add chain inet istio-ambient-raw istio-output
add rule inet istio-ambient-raw prerouting jump istio-prerouting
add rule inet istio-ambient-raw output jump istio-output
add rule inet istio-ambient-raw istio-output udp dport 53 meta mark and 0xfff == 0x539 counter ct zone set 1
add rule inet istio-ambient-raw istio-prerouting udp sport 53 meta mark and 0xfff != 0x539 counter ct zone set 1
";

/// Each chain of each table with its lines. (`nft` lists chains in order of creation.)
fn chains(netns: &Netns) -> BTreeMap<(String, String), Vec<String>> {
    let (mut chains, mut table, mut chain) = (BTreeMap::new(), String::new(), String::new());
    for line in tables(netns).lines().map(str::trim) {
        match line.strip_suffix(" {").and_then(|name| name.split_once(' ')) {
            Some(("table", name)) => name.clone_into(&mut table),
            Some((_, name)) => name.clone_into(&mut chain),
            None if ["}", ""].contains(&line) => {}
            None => {
                chains.entry((table.clone(), chain.clone())).or_insert_with(Vec::new).push(line.to_owned());
            }
        }
    }
    chains
}

#[test]
fn an_ambient_pods_tables_are_istios_to_the_letter() {
    let [ours, theirs] = ["ours", "theirs"].map(pod_netns);
    apply(&ours, &preferred(), ChainSet::IN_POD, in_pod(true));
    theirs.pipe("nft -f -", ISTIO);
    assert_eq!(chains(&ours), chains(&theirs));
    // None of their objects has to be changed.
    assert_eq!(
        apply(&theirs, &FirewallOptions::default(), ChainSet::IN_POD, in_pod(true)).1,
        Vec::<String>::new()
    );
    // Istio does not remove the table when DNS is no longer captured.
    let changed = apply(&theirs, &FirewallOptions::default(), ChainSet::IN_POD, in_pod(false)).1;
    assert!(
        changed.iter().any(|what| what == "inet istio-ambient-raw: the table should not exist"),
        "{changed:?}"
    );
    let left = theirs.sh("nft list tables");
    assert_eq!(left, "table inet istio-ambient-nat\ntable inet istio-ambient-mangle\n");
}

#[test]
fn what_is_there_decides_before_the_setting_does() {
    let (owner, wanted) = (ChainSet::IN_POD, in_pod(true));
    // Our rules in iptables tables stay there.
    for backend in [Backend::Nft, Backend::Legacy] {
        let netns = pod_netns("there");
        let forced = FirewallOptions { forced: Some(backend), ..FirewallOptions::default() };
        apply(&netns, &forced, owner, wanted.clone());
        assert_eq!(apply(&netns, &preferred(), owner, wanted.clone()), (backend, Vec::new()));
        assert!(
            netns.sh("nft list tables").lines().all(|table| !table.starts_with("table inet ")),
            "{backend}"
        );
    }
    // Native ones stay after the setting is removed, also beside foreign rules.
    let netns = pod_netns("native");
    restore(&netns, Backend::Nft, Family::V4, "*nat\n-A OUTPUT -p udp -j ACCEPT\nCOMMIT\n");
    assert_eq!(apply(&netns, &preferred(), owner, wanted.clone()).0, Backend::Native);
    assert_eq!(apply(&netns, &FirewallOptions::default(), owner, wanted), (Backend::Native, Vec::new()));
    let save = rules(&save_text(&netns, Backend::Nft, Family::V4));
    let built_in = ":PREROUTING ACCEPT\n:INPUT ACCEPT\n:OUTPUT ACCEPT\n:POSTROUTING ACCEPT";
    assert_eq!(save, format!("*nat\n{built_in}\n-A OUTPUT -p udp -j ACCEPT\nCOMMIT"));
}
