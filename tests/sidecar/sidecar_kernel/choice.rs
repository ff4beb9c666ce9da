//! Which backend is used where, and that reading leaves no trace.

use firewall::{Backend, FirewallOptions};
use kit::Netns;
use model::Family;
use redirect::FamilyChoice;

use super::{
    cases,
    state::{State, detecting, forced, iptables, pod_netns},
};

const OURS: &str = "-t nat -N ISTIO_OUTPUT";
const FOREIGN: &str = "-t filter -A INPUT -p tcp --dport 7 -j DROP";

fn chosen(netns: &Netns, options: &FirewallOptions) -> Backend {
    netns.run(|| redirect::verify(&cases::injected(), FamilyChoice::Dual, None, options)).unwrap().backend
}

/// Backend of the host's plain `iptables`, by its version.
fn hosts_default(netns: &Netns) -> Backend {
    if netns.sh("iptables --version").contains("nf_tables") { Backend::Nft } else { Backend::Legacy }
}

#[test]
fn what_a_namespace_holds_decides_the_backend() {
    use Backend::{Legacy, Nft};
    let blank = pod_netns("blank");
    let default = hosts_default(&blank);
    assert_eq!(chosen(&blank, &detecting()), default);
    let cases: [(&[(Backend, &str)], Backend); 7] = [
        (&[(Legacy, FOREIGN)], Legacy),
        (&[(Nft, FOREIGN)], Nft),
        (&[(Legacy, FOREIGN), (Nft, FOREIGN)], Nft),
        (&[(Legacy, OURS), (Nft, FOREIGN)], Legacy),
        (&[(Legacy, FOREIGN), (Nft, OURS)], Nft),
        (&[(Legacy, OURS), (Nft, OURS)], Nft),
        // Empty tables decide nothing.
        (&[(Legacy, "-t nat -L -n")], default),
    ];
    for (rules, expected) in cases {
        for family in Family::BOTH {
            let netns = pod_netns("choice");
            for (backend, rule) in rules {
                iptables(&netns, *backend, family, rule);
            }
            assert_eq!(chosen(&netns, &detecting()), expected, "{family} {rules:?}");
            for backend in [Nft, Legacy] {
                assert_eq!(chosen(&netns, &forced(backend)), backend, "forced beside {rules:?}");
            }
        }
    }
}

/// Only the selected backend is written, whatever the other has.
#[test]
fn rules_go_where_others_already_are() {
    for backend in super::state::BACKENDS {
        let netns = pod_netns("company");
        iptables(&netns, backend, Family::V4, FOREIGN);
        let apply = || redirect::apply(&cases::injected(), FamilyChoice::Dual, &detecting());
        assert_eq!(netns.run(apply).unwrap().backend, backend);
        let state = State::of(&netns);
        assert!(state.has_no_table(super::other(backend)), "{state:#?}");
        assert!(state.of_backend(backend).all(|(_, save)| save.keys().any(super::state::Chain::is_ours)));
    }
}

/// Names of the legacy tables of this namespace.
fn legacy_tables(netns: &Netns) -> String {
    let read = |name| std::fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap_or_default();
    netns.run(|| read("ip_tables_names") + &read("ip6_tables_names"))
}

#[test]
fn looking_makes_no_table_of_either_backend() {
    let netns = pod_netns("look");
    let before = State::of(&netns);
    let untouched = |what: &str| {
        assert_eq!(legacy_tables(&netns), "", "{what}");
        assert_eq!(netns.sh("nft list ruleset"), "", "{what}");
        assert_eq!(State::of(&netns), before, "{what}");
    };
    untouched("the test itself");
    for options in [detecting(), forced(Backend::Nft), forced(Backend::Legacy)] {
        let verified =
            netns.run(|| redirect::verify(&cases::injected(), FamilyChoice::Dual, None, &options)).unwrap();
        assert!(!verified.is_unchanged());
        untouched(&format!("verify with {:?}", options.forced));
        for dry_run in [true, false] {
            let removed = netns.run(|| redirect::remove_all(super::MARK, &options, dry_run)).unwrap();
            assert_eq!(removed, [""; 0]);
        }
        untouched(&format!("remove with {:?}", options.forced));
    }
}

#[test]
fn each_backend_makes_only_its_own_tables() {
    let (nft, legacy) = (pod_netns("nft"), pod_netns("legacy"));
    for case in cases::all() {
        super::apply(&nft, &case, Backend::Nft);
        super::apply(&legacy, &case, Backend::Legacy);
    }
    assert_eq!(legacy_tables(&nft), "");
    assert!(nft.sh("nft list ruleset").lines().any(|line| line == "\tchain ISTIO_OUTPUT {"));
    assert!(legacy_tables(&legacy).lines().any(|table| table == "nat"));
    assert_eq!(legacy.sh("nft list ruleset"), "");
}
