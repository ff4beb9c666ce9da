//! Every rule set of a sidecar pod, in the kernel, with both backends: it reads back as desired, applying it again changes nothing,
//! damage is repaired, and after removal the namespace is as before. The host's own tools report the state, never the code under
//! test.

mod captured;
#[path = "../../pkg/rules/tests/cases.rs"]
pub(crate) mod cases;
mod choice;
mod damage;
mod lock;
mod recorded;
pub(crate) mod state;
mod unlisted;

use std::{
    panic::resume_unwind,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use firewall::{Backend, FirewallOptions};
use kit::Netns;
use model::{Family, Mark};
use redirect::{FamilyChoice, RedirectReport};
use rules::{ChainSet, SavedTables, sidecar};

use cases::Case;
use state::{State, forced, pod_netns, save_text};

/// Mark of all TPROXY cases, which identifies the policy rules to remove.
pub(crate) const MARK: Mark = Mark::with_full_mask(1337);

/// Applies the rule set of a case, for both families.
pub(crate) fn apply(netns: &Netns, case: &Case, backend: Backend) -> RedirectReport {
    let applied = netns.run(|| redirect::apply(&case.config, FamilyChoice::Dual, &forced(backend)));
    applied.unwrap_or_else(|error| panic!("{} with {backend}: {error}", case.name))
}

/// Removes everything, of this backend only, so that a test sees what each leaves.
fn remove(netns: &Netns, backend: Backend) -> Vec<String> {
    netns.run(|| redirect::remove_all(MARK, &forced(backend), false)).unwrap()
}

/// Runs a test for each element, several at a time: these tests mostly wait for the kernel, which needs time to create and remove
/// namespaces.
pub(crate) fn at_once<T: Sync>(all: &[T], each: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(one) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            each(one);
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..all.len().min(3)).map(|_| scope.spawn(work)).collect();
        for thread in threads {
            thread.join().unwrap_or_else(|panic| resume_unwind(panic));
        }
    });
}

fn other(backend: Backend) -> Backend {
    if backend == Backend::Nft { Backend::Legacy } else { Backend::Nft }
}

/// Asserts that the kernel has exactly the desired rules, by our own parser of the host's save.
fn reads_back(netns: &Netns, case: &Case, backend: Backend) {
    for family in Family::BOTH {
        let text = save_text(netns, backend, family);
        let saved = SavedTables::parse(&text).unwrap();
        let strange: Vec<_> =
            saved.tables.values().flat_map(|table| &table.rules).filter(|rule| rule.rule.is_none()).collect();
        assert!(strange.is_empty(), "{} {backend} {family}: not understood: {strange:?}", case.name);
        let change = ChainSet::SIDECAR.apply(&sidecar::rule_set(&case.config, family), &saved);
        assert!(change.is_empty(), "{} {backend} {family}: {change:?} for\n{text}", case.name);
    }
}

fn comes_and_goes(case: &Case, backend: Backend) {
    let netns = pod_netns("kernel");
    let before = State::of(&netns);
    let name = case.name;
    let made = apply(&netns, case, backend);
    assert!(!made.is_unchanged() && made.backend == backend && made.families == Family::BOTH, "{made:?}");
    reads_back(&netns, case, backend);
    let there = State::of(&netns);
    assert!(
        there.has_no_table(other(backend)),
        "{name} {backend}: the other backend got a table: {there:#?}"
    );
    let verified =
        netns.run(|| redirect::verify(&case.config, FamilyChoice::Dual, None, &forced(backend))).unwrap();
    assert!(verified.is_unchanged(), "{name} {backend}: {verified:?}");
    let again = apply(&netns, case, backend);
    assert!(again.is_unchanged(), "{name} {backend}: {again:?}");
    State::of(&netns).assert_is(&there, &format!("{name} {backend}, a second time"));
    assert!(!remove(&netns, backend).is_empty());
    let after = State::of(&netns);
    assert!(after.is_blank(backend) && after.has_no_table(other(backend)), "{name} {backend}: {after:#?}");
    assert_eq!(after.network, before.network, "{name} {backend}: routes, policy rules and addresses");
    assert_eq!(remove(&netns, backend), [""; 0], "{name} {backend}: there is nothing left to remove");
}

#[test]
fn every_case_comes_reads_back_and_goes_with_nft() {
    at_once(&cases::all(), |case| comes_and_goes(case, Backend::Nft));
}

#[test]
fn every_case_comes_reads_back_and_goes_with_legacy() {
    at_once(&cases::all(), |case| comes_and_goes(case, Backend::Legacy));
}

/// One configuration after another in the same namespace, each from the state that the previous one left.
#[test]
fn every_case_follows_every_other_kind_of_case() {
    for backend in state::BACKENDS {
        let netns = pod_netns("follows");
        let before = state::network(&netns);
        for case in cases::all() {
            apply(&netns, &case, backend);
            reads_back(&netns, &case, backend);
        }
        remove(&netns, backend);
        let after = State::of(&netns);
        assert!(after.is_blank(backend), "{after:#?}");
        assert_eq!(after.network, before);
    }
}

/// With IPv4 alone, IPv6 has none of our rules; with IPv6 first, both are redirected.
#[test]
fn the_addresses_of_the_pod_decide_the_families() {
    let injected = cases::injected();
    let first = |netns: &Netns, families| {
        netns.run(|| redirect::apply(&injected, families, &forced(Backend::Nft))).unwrap()
    };
    let dual = pod_netns("dual");
    assert_eq!(first(&dual, FamilyChoice::Dual).families, Family::BOTH);
    // Applying again with IPv4 alone removes IPv6.
    assert_eq!(first(&dual, FamilyChoice::First).families, [Family::V4]);
    let v6 = &State::of(&dual).saves[&(Backend::Nft, Family::V6)];
    assert!(v6.keys().all(|chain| !chain.is_ours()), "{v6:#?}");

    let only_v6 = pod_netns("v6");
    only_v6.sh("ip address del 10.1.0.2/24 dev eth0");
    assert_eq!(first(&only_v6, FamilyChoice::First).families, Family::BOTH);
    let none = pod_netns("none");
    none.sh("ip link set eth0 down");
    none.sh("ip address flush dev eth0");
    let refused = none.run(|| redirect::apply(&injected, FamilyChoice::Dual, &forced(Backend::Nft)));
    let why = "the network namespace has no address beyond loopback and link-local ones";
    assert_eq!(refused.unwrap_err().to_string(), why);
}

/// The longest lists of networks that the annotations of a pod may have.
#[test]
fn thousands_of_rules_are_compared_one_by_one() {
    let netns = pod_netns("long");
    let network = |number: u16| {
        let [high, low] = number.to_be_bytes();
        format!("10.{high}.{low}.0/24").parse().unwrap()
    };
    let config = sidecar::SidecarConfig {
        include_networks: sidecar::NetworkSelection::List((0..1024).map(network).collect()),
        exclude_networks: (1024..2048).map(network).collect(),
        ..cases::injected()
    };
    let options = FirewallOptions { is_pod: true, ..forced(Backend::Nft) };
    let apply = || netns.run(|| redirect::apply(&config, FamilyChoice::First, &options)).unwrap();
    assert!(!apply().is_unchanged());
    assert_eq!(apply().differences, [""; 0]);
}

/// Without the policy route, TPROXY delivers nothing, but nothing bypasses the proxy either.
#[test]
fn a_route_that_cannot_be_added_keeps_no_rules_from_being_restored() {
    let case = cases::all().into_iter().find(|case| case.name == "tproxy").unwrap();
    for backend in state::BACKENDS {
        let netns = pod_netns("lo-down");
        apply(&netns, &case, backend);
        netns.sh("ip link set lo down");
        for family in Family::BOTH {
            state::iptables(&netns, backend, family, "-t mangle -F ISTIO_TPROXY");
        }
        let refused =
            netns.run(|| redirect::apply(&case.config, FamilyChoice::Dual, &forced(backend))).unwrap_err();
        assert!(matches!(refused, redirect::Error::Network(_)), "{backend}: {refused}");
        reads_back(&netns, &case, backend);
        netns.sh("ip link set lo up");
        apply(&netns, &case, backend);
        assert!(apply(&netns, &case, backend).is_unchanged(), "{backend}");
    }
}
