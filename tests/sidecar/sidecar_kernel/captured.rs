//! Which traffic is redirected, by what the kernel holds.

use firewall::{Backend, CapturedTraffic};
use kit::Netns;
use model::Family;
use rules::ChainSet;

use super::{
    apply, at_once,
    cases::{self, Case},
    state::{BACKENDS, iptables, pod_netns},
};

fn captured(netns: &Netns) -> CapturedTraffic {
    netns.run(|| CapturedTraffic::of_this_netns(ChainSet::SIDECAR)).unwrap()
}

fn is_shown(case: &Case, backend: Backend) {
    let what = format!("{} {backend}", case.name);
    let netns = pod_netns("captured");
    assert!(captured(&netns).is_empty(), "{what}: blank");
    apply(&netns, case, backend);
    let families = match backend {
        Backend::Native => vec!["IPv4 or IPv6"],
        _ => vec!["IPv4", "IPv6"],
    };
    // The other cases redirect no port of arriving connections.
    let takes_inbound =
        !["inbound-none", "tproxy-none", "nothing", "inbound-exclude-all"].contains(&case.name);
    for family in families {
        let lines = captured(&netns).to_lines();
        let [outbound, inbound] = ["outbound", "inbound"].map(|direction| format!("{family} {direction}"));
        assert!(lines.contains(&outbound), "{what}: {lines:?}");
        if case.name != "inbound-exclude-all" {
            assert_eq!(lines.contains(&inbound), takes_inbound, "{what}: {lines:?}");
        }
    }
}

#[test]
fn every_rule_set_redirects_outbound_traffic_and_inbound_traffic_if_a_port_is_listed() {
    for backend in Backend::ALL {
        at_once(&cases::all(), |case| is_shown(case, backend));
    }
}

#[test]
fn each_way_of_losing_traffic_shows() {
    let damages = [
        ("-t nat -F OUTPUT", "IPv4 outbound"),
        ("-t nat -F ISTIO_OUTPUT", "IPv4 outbound"),
        ("-t nat -I ISTIO_OUTPUT -j ACCEPT", "IPv4 outbound"),
        ("-t nat -I OUTPUT -j RETURN", "IPv4 outbound"),
        ("-t nat -F PREROUTING", "IPv4 inbound"),
        ("-t nat -F ISTIO_INBOUND", "IPv4 inbound"),
        ("-t nat -F ISTIO_IN_REDIRECT", "IPv4 inbound"),
        ("-t nat -I PREROUTING -j ACCEPT", "IPv4 inbound"),
    ];
    let harmless = [
        "-t nat -A ISTIO_OUTPUT -j ACCEPT",
        "-t nat -I ISTIO_OUTPUT -d 10.9.0.0/16 -j RETURN",
        "-t nat -I OUTPUT -p udp -j ACCEPT",
        "-t nat -I PREROUTING -i eth9 -j ACCEPT",
        "-t nat -D ISTIO_INBOUND 1",
        "-t mangle -I OUTPUT -j ACCEPT",
    ];
    let case = cases::all().into_iter().find(|case| case.name == "injected").unwrap();
    for backend in BACKENDS {
        let netns = pod_netns("captured");
        apply(&netns, &case, backend);
        let before = captured(&netns);
        for damage in harmless {
            iptables(&netns, backend, Family::V4, damage);
            assert_eq!(before.missing_from(&captured(&netns)), [""; 0], "{backend}: {damage}");
        }
        at_once(&damages, |(damage, lost)| {
            let netns = pod_netns("captured");
            apply(&netns, &case, backend);
            iptables(&netns, backend, Family::V4, damage);
            assert_eq!(before.missing_from(&captured(&netns)), [*lost], "{backend}: {damage}");
        });
    }
}
