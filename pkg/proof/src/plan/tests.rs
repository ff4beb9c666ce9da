use rules::{
    inpod::{InPodRulesConfig, PodOptions},
    sidecar::{DnsCapture, NetworkSelection, OwnerGroups, PortSelection, SidecarConfig, rule_set},
};

use super::*;

fn planned(rules: RuleSet, proxy: ProxyIdentity) -> Vec<(String, String, u16)> {
    let spec = ProofSpec { rules: vec![(Family::V4, rules)], proxy, inbound: SIDECAR };
    let row = |path: Result<PlannedPath, ProofPath>| match path {
        Ok(path) => {
            let port = match path.expected {
                PacketVerdict::Redirected(port) => port.0,
                _ => 0,
            };
            (path.name.to_owned(), path.packet.dest.to_string(), port)
        }
        Err(row) => {
            assert_eq!(row.result, ProofResult::NotTestable);
            (row.name, row.destination, 0)
        }
    };
    plan_paths(&spec, |_| None).into_iter().map(row).collect()
}

fn rows(expected: &[(&str, &str, u16)]) -> Vec<(String, String, u16)> {
    expected.iter().map(|(name, dest, port)| ((*name).to_owned(), (*dest).to_owned(), *port)).collect()
}

const SIDECAR: InboundSpec = InboundSpec { tunnel: Port(15008), probes: None };
const OWNER: ProxyIdentity = ProxyIdentity::Owner { uid: 1337, gid: 1337, on_node: Some((1337, 1337)) };

#[test]
fn an_in_pod_rule_set_is_tested_with_and_without_the_proxys_mark() {
    let config = InPodRulesConfig::default();
    let rules = |dns| in_pod(&config, &PodOptions { dns, ..PodOptions::default() });
    let proxy = ProxyIdentity::Mark(config.proxy);
    let plain = [("application-tcp", "192.0.2.1:80", 15001), ("proxy-tcp", "192.0.2.1:80", 0)];
    assert_eq!(planned(rules(false), proxy), rows(&plain));
    let dns = [
        ("application-dns-udp", "192.0.2.1:53", 15053),
        ("proxy-dns-udp", "192.0.2.1:53", 0),
        ("application-dns-tcp", "192.0.2.1:53", 15053),
        ("proxy-dns-tcp", "192.0.2.1:53", 0),
    ];
    assert_eq!(planned(rules(true), proxy), rows(&[&plain[..], &dns].concat()));
}

fn in_pod(config: &InPodRulesConfig, options: &PodOptions) -> RuleSet {
    rules::inpod::pod_rules(config, options, Family::V4)
}

#[test]
fn what_annotations_exclude_is_not_tested() {
    let all = SidecarConfig { include_networks: NetworkSelection::All, ..SidecarConfig::default() };
    let net = |text: &str| text.parse::<model::IpNet>().unwrap();
    for (config, expected) in [
        (all.clone(), &[("application-tcp", "192.0.2.1:80", 15001), ("proxy-tcp", "192.0.2.1:80", 0)][..]),
        (
            SidecarConfig {
                exclude_networks: vec![net("192.0.2.0/24")],
                exclude_outbound: PortSelection::List(vec![Port(80), Port(443)]),
                ..all.clone()
            },
            &[("application-tcp", "198.51.100.1:8080", 15001), ("proxy-tcp", "198.51.100.1:8080", 0)],
        ),
        (
            SidecarConfig { exclude_networks: vec![net("0.0.0.0/1"), net("128.0.0.0/1")], ..all.clone() },
            &[("application-tcp", "", 0)],
        ),
        (
            SidecarConfig {
                include_networks: NetworkSelection::List(vec![net("10.0.0.0/8")]),
                ..all.clone()
            },
            &[("application-tcp", "", 0)],
        ),
        (
            SidecarConfig {
                include_networks: NetworkSelection::List(Vec::new()),
                include_outbound: PortSelection::List(vec![Port(9999)]),
                ..all.clone()
            },
            &[("application-tcp", "192.0.2.1:9999", 15001), ("proxy-tcp", "192.0.2.1:9999", 0)],
        ),
        (
            SidecarConfig {
                dns: DnsCapture::Servers(vec!["10.0.0.10".parse().unwrap()]),
                owner_groups: OwnerGroups::Only(vec![3000]),
                ..all
            },
            &[("application-tcp", "192.0.2.1:80", 15001), ("proxy-tcp", "192.0.2.1:80", 0)],
        ),
    ] {
        assert_eq!(planned(rule_set(&config, Family::V4), OWNER), rows(expected), "{config:?}");
    }
}

#[test]
fn a_selected_group_is_that_of_the_packet() {
    let config = SidecarConfig {
        include_networks: NetworkSelection::All,
        owner_groups: OwnerGroups::Only(vec![3000]),
        ..SidecarConfig::default()
    };
    let rules = vec![(Family::V4, rule_set(&config, Family::V4))];
    let found = plan_paths(&ProofSpec { rules, proxy: OWNER, inbound: SIDECAR }, |_| None);
    let owners: Vec<_> = found.into_iter().map(|path| path.map(|path| path.sender)).collect();
    assert_eq!(owners, [Ok((0, 3000)), Ok((1337, 1337))]);
}

#[test]
fn a_proxy_in_a_user_namespace_sends_as_its_user_on_the_node() {
    let config = SidecarConfig { include_networks: NetworkSelection::All, ..SidecarConfig::default() };
    let rules = vec![(Family::V4, rule_set(&config, Family::V4))];
    for (on_node, expected) in [(Some((101_337, 101_338)), Some((101_337, 101_338))), (None, None)] {
        let proxy = ProxyIdentity::Owner { uid: 1337, gid: 1337, on_node };
        let found = plan_paths(&ProofSpec { rules: rules.clone(), proxy, inbound: SIDECAR }, |_| None);
        let senders: Vec<_> = found.into_iter().map(|path| path.ok().map(|path| path.sender)).collect();
        assert_eq!(senders, [Some((0, 0)), expected]);
    }
}

/// Each path's name, its packet, and the port to which it must be redirected; 0 means none.
fn arriving(rules: &RuleSet, spec: InboundSpec) -> Vec<(&'static str, String, u16)> {
    let row = |path: PlannedPath| {
        let PlannedPath { name, packet, expected, .. } = path;
        let port = match expected {
            PacketVerdict::Redirected(port) | PacketVerdict::Tproxied(port) => port.0,
            PacketVerdict::Untouched | PacketVerdict::Dropped => 0,
        };
        (name, format!("{} {}", packet.source.unwrap(), packet.dest), port)
    };
    plan_inbound("10.0.0.2".parse().unwrap(), rules, spec).into_iter().map(row).collect()
}

fn owned<'n>(expected: &[(&'n str, &str, u16)]) -> Vec<(&'n str, String, u16)> {
    expected.iter().map(|(name, packet, port)| (*name, (*packet).to_owned(), *port)).collect()
}

#[test]
fn what_arrives_in_ambient_mode_is_plain_in_a_tunnel_a_probe_or_excluded() {
    let config = InPodRulesConfig::default();
    let spec = InboundSpec { tunnel: config.tunnel, probes: Some(config.probes) };
    let all = [
        ("inbound-tcp", "192.0.2.1 10.0.0.2:80", 15006),
        ("inbound-tunnel", "192.0.2.1 10.0.0.2:15008", 15008),
        ("inbound-probe", "169.254.7.127 10.0.0.2:80", 0),
    ];
    let mut options = PodOptions::default();
    assert_eq!(arriving(&in_pod(&config, &options), spec), owned(&all));
    options.exceptions.inbound_ports = vec![Port(80), Port(9090)];
    let other = [
        ("inbound-tcp", "192.0.2.1 10.0.0.2:443", 15006),
        all[1],
        ("inbound-probe", "169.254.7.127 10.0.0.2:443", 0),
        ("inbound-excluded", "192.0.2.1 10.0.0.2:80", 0),
    ];
    assert_eq!(arriving(&in_pod(&config, &options), spec), owned(&other));
    options.bypass_inbound = true;
    let none = [("inbound-excluded", "192.0.2.1 10.0.0.2:80", 0)];
    assert_eq!(arriving(&in_pod(&config, &options), spec), owned(&none));
}

#[test]
fn what_arrives_at_a_sidecar_is_what_its_annotations_include() {
    let config = |include_inbound, exclude_inbound| {
        let config = SidecarConfig { include_inbound, exclude_inbound, ..SidecarConfig::default() };
        rule_set(&config, Family::V4)
    };
    let ports = |ports: &[u16]| PortSelection::List(ports.iter().map(|port| Port(*port)).collect());
    let plain = ("inbound-tcp", "192.0.2.1 10.0.0.2:80", 15006);
    for (rules, expected) in [
        (
            config(PortSelection::All, ports(&[15020])),
            &[plain, ("inbound-excluded", "192.0.2.1 10.0.0.2:15020", 0)][..],
        ),
        (config(PortSelection::All, ports(&[])), &[plain]),
        (
            config(ports(&[9090]), ports(&[])),
            &[
                ("inbound-tcp", "192.0.2.1 10.0.0.2:9090", 15006),
                ("inbound-excluded", "192.0.2.1 10.0.0.2:80", 0),
            ],
        ),
        (config(ports(&[]), ports(&[])), &[("inbound-excluded", "192.0.2.1 10.0.0.2:80", 0)]),
    ] {
        assert_eq!(arriving(&rules, SIDECAR), owned(expected));
    }
}
