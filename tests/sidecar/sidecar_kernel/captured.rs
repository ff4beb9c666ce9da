//! Which traffic is redirected, by the kernel's rules.

use firewall::{Backend, CapturedTraffic};
use kit::Netns;
use model::Family;
use rules::ChainSet;

use super::{
    apply, at_once,
    cases::{self, Case},
    state::{BACKENDS, iptables, pod_netns, rehook},
};

fn captured(netns: &Netns) -> CapturedTraffic {
    netns.run(|| CapturedTraffic::observe_netns(ChainSet::SIDECAR)).unwrap()
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
    // The other cases redirect no port of inbound connections.
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

/// The rules are unchanged.
#[test]
fn tables_and_chains_that_the_kernel_does_not_evaluate_redirect_nothing() {
    let lost = |netns: &Netns, before: &CapturedTraffic| before.missing_from(&captured(netns));
    let of_case = |name: &str, backend| {
        let netns = pod_netns("captured");
        let case = cases::all().into_iter().find(|case| case.name == name).unwrap();
        apply(&netns, &case, backend);
        let before = captured(&netns);
        (netns, before)
    };
    for (table, family) in [("ip nat", "IPv4"), ("ip6 nat", "IPv6"), ("inet istio-proxy-nat", "IPv4 or IPv6")]
    {
        let is_native = table.starts_with("inet");
        let backend = if is_native { Backend::Native } else { Backend::Nft };
        let [inbound, outbound] = ["inbound", "outbound"].map(|direction| format!("{family} {direction}"));
        let (netns, before) = of_case("injected", backend);
        netns.pipe("nft -f -", &format!("add table {table} {{ flags dormant; }}"));
        assert_eq!(lost(&netns, &before), [inbound.clone(), outbound.clone()], "{table} is dormant");
        netns.pipe("nft -f -", &format!("add table {table}"));
        assert_eq!(lost(&netns, &before), [""; 0], "{table} is active again");
        let [prerouting, output] = ["PREROUTING", "OUTPUT"]
            .map(|chain| if is_native { chain.to_lowercase() } else { chain.to_owned() });
        rehook(&netns, table, &output, "");
        assert_eq!(lost(&netns, &before), [outbound.as_str()], "{table} without a hook");
        rehook(&netns, table, &output, "nat hook output priority -100");
        assert_eq!(lost(&netns, &before), [""; 0], "{table} at its hook again");
        rehook(&netns, table, &prerouting, "nat hook output priority -90");
        assert_eq!(lost(&netns, &before), [inbound], "{table} at another hook");
    }
    for (name, backend, table) in [
        ("tproxy", Backend::Nft, "ip mangle"),
        ("injected", Backend::Nft, "ip mangle"),
        ("injected", Backend::Legacy, "ip nat"),
    ] {
        let (netns, before) = of_case(name, backend);
        netns.pipe("nft -f -", &format!("add table {table} {{ flags dormant; }}"));
        let expected: &[&str] = if name == "tproxy" { &["IPv4 inbound"] } else { &[] };
        assert_eq!(lost(&netns, &before), expected, "{name} {backend}: {table} is dormant");
    }
}
