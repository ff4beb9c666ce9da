//! Rules compared with what they were, without any tool: what an agent does whose image has none.

use std::net::TcpStream;

use model::Family;
use netfilter::Backend;
use redirect::FamilyChoice;

use super::{
    apply, at_once,
    cases::{self, Case},
    state::{BACKENDS, iptables, pod_netns},
};

/// Rules of another component, which move ours in the kernel's list and are no business of ours.
fn foreign(netns: &kit::Netns, backend: Backend) {
    for family in Family::BOTH {
        iptables(netns, backend, family, "-t nat -N THEIRS");
        iptables(netns, backend, family, "-t nat -A THEIRS -p udp --dport 9 -j RETURN");
        iptables(netns, backend, family, "-t nat -I OUTPUT -p udp --dport 9 -j THEIRS");
        iptables(netns, backend, family, "-t mangle -A OUTPUT -p udp --dport 9 -j ACCEPT");
    }
}

fn shows_what_changed(case: &Case, backend: Backend) {
    let what = format!("{} {backend}", case.name);
    let netns = pod_netns("digest");
    let blank = netns.run(redirect::rules_now).unwrap();
    assert!(blank.is_empty(), "{what}: {blank:?}");
    apply(&netns, case, backend);
    let then = netns.run(redirect::rules_now).unwrap();
    assert!(then.lines().contains_key("IPv4 nat: ISTIO_REDIRECT"), "{what}: {then:?}");
    let differences = || netns.run(|| redirect::compare(&case.config, FamilyChoice::Dual, &then)).unwrap();
    assert_eq!(differences(), [""; 0], "{what}");
    apply(&netns, case, backend);
    netns.run(|| drop(TcpStream::connect("127.0.0.1:9"))); // counters move
    foreign(&netns, backend);
    assert_eq!(differences(), [""; 0], "{what}: other rules, counters and a repetition");

    for family in Family::BOTH {
        iptables(&netns, backend, family, "-t nat -D ISTIO_REDIRECT 1");
        assert_eq!(differences(), [format!("{family} nat: ISTIO_REDIRECT: its rules are missing")], "{what}");
        iptables(&netns, backend, family, "-t nat -A ISTIO_REDIRECT -p tcp -j REDIRECT --to-ports 15002");
        assert_eq!(
            differences(),
            [format!("{family} nat: ISTIO_REDIRECT: its rules were changed")],
            "{what}"
        );
        apply(&netns, case, backend);
        assert_eq!(differences(), [""; 0], "{what}: repaired");
    }
    iptables(&netns, backend, Family::V4, "-t nat -F OUTPUT");
    assert_eq!(differences(), ["IPv4 nat: OUTPUT: its rules are missing"], "{what}");
    apply(&netns, case, backend);
    iptables(&netns, backend, Family::V6, "-t nat -A PREROUTING -p tcp -j ISTIO_REDIRECT");
    let [added] = differences().try_into().unwrap();
    assert!(added.starts_with("IPv6 nat: PREROUTING: "), "{what}: {added}");
}

#[test]
fn a_digest_of_rules_shows_changes_of_ours_and_no_others() {
    let wanted = ["injected", "tproxy-everything", "dns-servers", "kubevirt-networks", "trace"];
    let cases: Vec<Case> = cases::all().into_iter().filter(|case| wanted.contains(&case.name)).collect();
    assert_eq!(cases.len(), wanted.len());
    for backend in BACKENDS {
        at_once(&cases, |case| shows_what_changed(case, backend));
    }
}
