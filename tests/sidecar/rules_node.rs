//! Every rule set of a node and of a ztunnel, in the kernel, with both backends: it reads back as written, applying it again
//! changes nothing, it replaces rules of Istio's own agent, and foreign rules stay.

#[path = "../../pkg/rules/tests/node_cases.rs"]
mod node_cases;

use std::net::{TcpListener, TcpStream};

use firewall::{Backend, Firewall};
use kit::Netns;
use model::Family;
use rules::{ChainSet, RuleChange, RuleSet, SavedTables};

use crate::sidecar_kernel::{
    at_once,
    state::{BACKENDS, State, forced, pod_netns, restore, save_text},
};
use node_cases::Case;

/// Foreign rules in every table that has ours, so that a removal must restore the exact state.
const FOREIGN: &str = "*mangle
:CALI-forward - [0:0]
-A PREROUTING -i cali+ -j CALI-forward
-A OUTPUT -p tcp -j CALI-forward
-A POSTROUTING -o eth0 -j RETURN
-A CALI-forward -m mark --mark 0x200/0x200 -j RETURN
COMMIT
*filter
-A FORWARD -j ACCEPT
COMMIT
*nat
:KUBE-SERVICES - [0:0]
-A PREROUTING -m comment --comment \"before -j ztunnel-PREROUTING\" -j KUBE-SERVICES
-A POSTROUTING -o eth0 -j MASQUERADE
COMMIT
";

/// Rules of Istio's own agent: unconditional jumps, one of them duplicated, and other rules in chains of these names.
const ISTIOS: &str = "*mangle
:ztunnel-PREROUTING - [0:0]
:ztunnel-INPUT - [0:0]
:ztunnel-FORWARD - [0:0]
:ztunnel-OUTPUT - [0:0]
:ztunnel-POSTROUTING - [0:0]
-A PREROUTING -j ztunnel-PREROUTING
-A INPUT -j ztunnel-INPUT
-A FORWARD -j ztunnel-FORWARD
-A OUTPUT -j ztunnel-OUTPUT
-A OUTPUT -j ztunnel-OUTPUT
-A POSTROUTING -j ztunnel-POSTROUTING
-A ztunnel-PREROUTING -i istioin -j MARK --set-mark 0x200/0x200
-A ztunnel-PREROUTING -m mark --mark 0x200/0x200 -j RETURN
-A ztunnel-PREROUTING ! -i lo -m connmark --mark 0x220/0x220 -j MARK --set-mark 0x200/0x200
-A ztunnel-FORWARD -m mark --mark 0x220/0x220 -j CONNMARK --save-mark --nfmask 0x220 --ctmask 0x220
-A ztunnel-INPUT -m mark --mark 0x220/0x220 -j CONNMARK --save-mark --nfmask 0x220 --ctmask 0x220
-A ztunnel-OUTPUT -m mark --mark 0x100 -j ACCEPT
COMMIT
*nat
:ztunnel-PREROUTING - [0:0]
:ztunnel-POSTROUTING - [0:0]
-A PREROUTING -j ztunnel-PREROUTING
-A POSTROUTING -j ztunnel-POSTROUTING
-A ztunnel-PREROUTING -m mark --mark 0x100/0x100 -j ACCEPT
-A ztunnel-POSTROUTING -m mark --mark 0x100/0x100 -j ACCEPT
COMMIT
";

/// A namespace with the sets that the rules name, and with foreign rules.
fn node(backend: Backend) -> Netns {
    let netns = pod_netns("node");
    for (set, family) in node_cases::SETS.into_iter().zip(["inet", "inet6"]) {
        netns.sh(&format!("ipset create {set} hash:ip family {family}"));
    }
    for family in Family::BOTH {
        restore(&netns, backend, family, FOREIGN);
    }
    netns
}

/// Writes the changes that `plan` returns for one family.
fn write(
    netns: &Netns,
    backend: Backend,
    family: Family,
    plan: impl FnOnce(&SavedTables) -> RuleChange + Send,
) -> RuleChange {
    netns.run(move || {
        let (firewall, observed) = Firewall::open(&forced(backend)).unwrap();
        let change = plan(observed.family_tables(family));
        firewall.apply(&vec![(family, change.clone())].into(), Vec::new()).unwrap();
        change
    })
}

fn apply(netns: &Netns, case: &Case, backend: Backend) -> RuleChange {
    write(netns, backend, case.family, |saved| ChainSet::NODE.apply(&case.rules, saved))
}

fn remove(netns: &Netns, backend: Backend, family: Family) -> RuleChange {
    write(netns, backend, family, |saved| ChainSet::NODE.remove(saved))
}

/// Our lines of a save, if the tools print what we write: all except the address of TPROXY.
fn lines(rules: &RuleSet, family: Family) -> Vec<String> {
    let on_ip = format!("--on-ip {} --tproxy-mark", family.unspecified_address());
    let mut lines = Vec::new();
    for table in rules.tables.values() {
        lines.extend(table.jumps.iter().map(|jump| format!("-A {} {}", jump.hook.as_str(), jump.rule)));
        for (chain, rules) in &table.chains {
            lines.extend(rules.iter().map(|rule| format!("-A {chain} {rule}")));
        }
    }
    lines.iter().map(|line| line.replace("--tproxy-mark", &on_ip)).collect()
}

/// Asserts that the kernel has the desired rules, by our own parser of the host's save and verbatim.
fn reads_back(netns: &Netns, case: &Case, backend: Backend) {
    let what = format!("{} {backend} {}", case.name, case.family);
    let text = save_text(netns, backend, case.family);
    let saved = SavedTables::parse(&text).unwrap();
    let change = ChainSet::NODE.apply(&case.rules, &saved);
    assert!(change.is_empty(), "{what}: {:?}", change.reasons().collect::<Vec<_>>());
    let ours =
        |line: &&str| line.starts_with("-A ztunnel-") || line.contains(" -j ztunnel-") && !line.contains('"');
    let mut found: Vec<&str> = text.lines().filter(ours).collect();
    let mut wanted = lines(&case.rules, case.family);
    found.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(found, wanted, "{what}");
}

fn comes_and_goes(case: &Case, backend: Backend) {
    let (netns, what) = (node(backend), format!("{} {backend} {}", case.name, case.family));
    let before = State::of(&netns);
    assert!(!apply(&netns, case, backend).is_empty());
    reads_back(&netns, case, backend);
    let there = State::of(&netns);
    assert!(apply(&netns, case, backend).is_empty(), "{what}, a second time");
    State::of(&netns).assert_is(&there, &format!("{what}, a second time"));
    assert!(!remove(&netns, backend, case.family).is_empty());
    State::of(&netns).assert_is(&before, &format!("{what}, removed"));
    assert!(remove(&netns, backend, case.family).is_empty());

    restore(&netns, backend, case.family, ISTIOS);
    apply(&netns, case, backend);
    reads_back(&netns, case, backend);
    State::of(&netns).assert_is(&there, &format!("{what}, after Istio's own agent"));
    restore(&netns, backend, case.family, ISTIOS); // flushes our chains, and adds jumps after ours
    assert!(!apply(&netns, case, backend).is_empty());
    State::of(&netns).assert_is(&there, &format!("{what}, with Istio's own agent"));
    restore(&netns, backend, case.family, ISTIOS);
    remove(&netns, backend, case.family);
    State::of(&netns).assert_is(&before, &format!("{what}, removed with what Istio's own agent left"));
}

#[test]
fn every_case_comes_reads_back_and_goes_with_nft() {
    at_once(&node_cases::all(), |case| comes_and_goes(case, Backend::Nft));
}

#[test]
fn every_case_comes_reads_back_and_goes_with_legacy() {
    at_once(&node_cases::all(), |case| comes_and_goes(case, Backend::Legacy));
}

/// One after another in the same namespace, as ztunnels start and end; and a jump that foreign ones have overtaken.
#[test]
fn every_case_follows_the_one_before() {
    at_once(&BACKENDS, |backend| {
        let netns = node(*backend);
        let before = State::of(&netns);
        for case in node_cases::all() {
            apply(&netns, &case, *backend);
            reads_back(&netns, &case, *backend);
            restore(&netns, *backend, case.family, "*mangle\n-I PREROUTING 1 -p udp -j RETURN\nCOMMIT\n");
            assert!(!apply(&netns, &case, *backend).is_empty(), "{} {backend}: not first", case.name);
            reads_back(&netns, &case, *backend);
            restore(&netns, *backend, case.family, "*mangle\n-D PREROUTING -p udp -j RETURN\nCOMMIT\n");
        }
        for family in Family::BOTH {
            remove(&netns, *backend, family);
        }
        State::of(&netns).assert_is(&before, &backend.to_string());
    });
}

/// The kubelet's probes of captured pods: their own process has closed the socket when the last packets are sent, so that these
/// look like forwarded ones.
#[test]
fn the_last_packets_of_a_local_connection_are_not_captured() {
    let case = node_cases::all().into_iter().find(|case| case.name == "host-one").unwrap();
    for backend in BACKENDS {
        let netns = node(backend);
        netns.sh(&format!("ipset add {} 127.0.0.1", node_cases::SETS[0]));
        apply(&netns, &case, backend);
        netns.run(|| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            for _ in 0..20 {
                let probe = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                let answer = listener.accept().unwrap();
                drop(probe);
                drop(answer);
            }
        });
        let text = netns.sh(&format!("iptables-{backend}-save -t mangle --counters"));
        let unused = |what: &str| text.lines().find(|line| line.contains(what)).unwrap().starts_with("[0:0]");
        assert!(!unused("-A OUTPUT -p tcp -j ztunnel-OUTPUT"), "no packet came by: {text}");
        assert!(unused("--match-set ztunnel-pods-v4 dst"), "{text}");
    }
}
