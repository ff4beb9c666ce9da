use std::net::IpAddr;

use model::Port;

use super::*;
use crate::{
    inpod::{self, InPodRulesConfig, PodOptions},
    sidecar::{self, DnsCapture, InboundMode, NetworkSelection, PortSelection, SidecarConfig},
};

fn sidecars() -> Vec<SidecarConfig> {
    let all = SidecarConfig {
        include_inbound: PortSelection::All,
        include_networks: NetworkSelection::All,
        dns: DnsCapture::All,
        ..SidecarConfig::default()
    };
    let servers: Vec<IpAddr> = vec!["10.0.0.10".parse().unwrap(), "fd00::a".parse().unwrap()];
    let nets = |text: &str| text.split(',').map(|net| net.parse().unwrap()).collect::<Vec<_>>();
    vec![
        SidecarConfig::default(),
        all.clone(),
        SidecarConfig {
            dns: DnsCapture::Servers(servers),
            include_networks: NetworkSelection::List(nets("10.0.0.0/8,fd00::/8,192.168.0.0/16")),
            exclude_networks: nets("10.1.0.0/16,fd01::/16,10.2.0.0/16,10.3.0.0/16"),
            include_outbound: PortSelection::List(vec![Port(80), Port(81)]),
            ..all.clone()
        },
        // One family has networks and servers, the other none.
        SidecarConfig {
            dns: DnsCapture::Servers(vec!["10.0.0.10".parse().unwrap()]),
            include_networks: NetworkSelection::List(nets("10.0.0.0/8")),
            ..all.clone()
        },
        SidecarConfig {
            inbound_mode: InboundMode::Tproxy {
                mark: model::Mark { value: 1337, mask: u32::MAX },
                table: model::TableId(133),
            },
            drop_invalid: true,
            ..all
        },
    ]
}

/// Rules by family, one rule set each.
fn cases() -> Vec<(&'static str, Vec<RuleSet>)> {
    let of = |rules: &dyn Fn(Family) -> RuleSet| Family::BOTH.into_iter().map(rules).collect::<Vec<_>>();
    let mut cases: Vec<_> = sidecars()
        .into_iter()
        .map(|config| ("istio-proxy", of(&|family| sidecar::rule_set(&config, family))))
        .collect();
    for dns in [false, true] {
        let pod = PodOptions { dns, ..PodOptions::default() };
        cases.push((
            "istio-ambient",
            of(&|family| inpod::pod_rules(&InPodRulesConfig::default(), &pod, family)),
        ));
    }
    cases
}

/// Rules that packets of a family meet in a chain; without those after a redirection to a transparent socket.
fn met(chain: &NativeChain, family: Family) -> Vec<Rule> {
    let rules = chain.rules.iter().filter(|rule| rule.family.is_none_or(|of| of == family));
    rules
        .map(|rule| rule.rule.clone())
        .filter(|rule| chain.name != "istio-tproxy" || rule.target != Target::Drop)
        .collect()
}

fn renamed(table: Table, mut rule: Rule) -> Rule {
    if table == Table::Raw {
        ports_first(&mut rule);
    }
    if let Target::Jump(chain) | Target::Goto(chain) = &mut rule.target {
        *chain = Chain(chain_name(&chain.0).into());
    }
    rule
}

#[test]
fn packets_of_each_family_meet_the_rules_of_their_family_in_their_order() {
    for (prefix, rules) in cases() {
        let native = NativeRules::new(prefix, rules.first(), rules.last());
        for (family, rules) in Family::BOTH.into_iter().zip(&rules) {
            for (table, wanted) in &rules.tables {
                let renamed = |rule| renamed(*table, rule);
                let name = table_name(prefix, *table);
                let table = native.tables.iter().find(|table| table.name == name).unwrap();
                for (chain, wanted) in &wanted.chains {
                    let chain = table.chains.iter().find(|found| found.name == chain_name(&chain.0)).unwrap();
                    let wanted: Vec<Rule> = wanted.iter().cloned().map(&renamed).collect();
                    assert_eq!(met(chain, family), wanted, "{name} {} {family}", chain.name);
                }
                for jump in &wanted.jumps {
                    let name = jump.hook.as_str().to_ascii_lowercase();
                    let chain = table.chains.iter().find(|chain| chain.name == name).unwrap();
                    assert_eq!(met(chain, family), [renamed(jump.rule.clone())]);
                }
            }
        }
    }
}

#[test]
fn rules_without_an_address_stand_there_once() {
    let rules = cases().pop().unwrap().1;
    let native = NativeRules::new("istio-ambient", rules.first(), rules.last());
    let nat = &native.tables[0];
    assert_eq!(nat.name, "istio-ambient-nat");
    let output = nat.chains.iter().find(|chain| chain.name == "istio-output").unwrap();
    let families: Vec<_> = output.rules.iter().map(|rule| rule.family).collect();
    let (v4, v6) = (Some(Family::V4), Some(Family::V6));
    // Probes, DNS over UDP, DNS over TCP, replies, the pod's own address, everything else.
    assert_eq!(families, [v4, v6, None, v4, v6, None, v4, v6, v4, v6]);
}

#[test]
fn with_one_family_alone_the_way_into_the_rules_is_its_own() {
    let config = SidecarConfig { include_networks: NetworkSelection::All, ..SidecarConfig::default() };
    let native = NativeRules::new("istio-proxy", Some(&sidecar::rule_set(&config, Family::V4)), None);
    let all = native.tables.iter().flat_map(|table| &table.chains).flat_map(|chain| &chain.rules);
    for rule in all {
        let is_scoped =
            is_family_specific(&rule.rule) || rule.rule == Rule::jump_to(Chain::named("istio-output")).tcp();
        assert_eq!(rule.family.is_some(), is_scoped, "{}", rule.rule);
    }
}

#[test]
fn a_hand_over_to_a_transparent_socket_never_falls_through() {
    let tproxy = sidecars().pop().unwrap();
    let native = NativeRules::new("istio-proxy", Some(&sidecar::rule_set(&tproxy, Family::V4)), None);
    let chain =
        native.tables.iter().flat_map(|table| &table.chains).find(|chain| chain.name == "istio-tproxy");
    let targets: Vec<_> = chain.unwrap().rules.iter().map(|rule| &rule.rule.target).collect();
    assert!(matches!(targets[..], [Target::Tproxy { .. }, Target::Drop]), "{targets:?}");
}
