//! Rule sets of in-pod capture: in a captured pod's own namespace, where its traffic is redirected to the listeners
//! that ztunnel opened there; and on the node, where the node's probes of captured pods get a source address by which
//! the pods' rules recognise them. Chains and numbers are those of Istio 1.21 and later.
//!
//! Packets that ztunnel sends in a pod's namespace have a mark. If ztunnel connects to the application with a client's
//! source address, the rules mark the connection, so that the application's replies are routed back to ztunnel instead
//! of out of the pod.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use model::{Family, IfName, IpNet, Mark, Port, TableId};

use crate::ir::{
    AddressSide, Chain, Hook, JumpPlace, LocalRoute, Match, MatchValue, Rule, RuleSet, Table, Target,
};
use crate::sidecar::port_matches;

/// Arriving packets in a pod.
pub const PRERT: Chain = Chain::named("ISTIO_PRERT");
/// Packets that the pod sends.
pub const OUTPUT: Chain = Chain::named("ISTIO_OUTPUT");
/// Packets that leave the node.
pub const POSTRT: Chain = Chain::named("ISTIO_POSTRT");
/// Packets with the probes' source address that belong to no probe.
pub const PROBES: Chain = Chain::named("ISTIO_PROBES");

/// Priority of the policy rule for [`InPodRulesConfig::local_route`].
pub const PRIORITY: u32 = 32764;

const LOOPBACK: IfName = IfName::known("lo");
const DNS: Port = Port(53);
/// Conntrack zone that separates a pod's own DNS queries from those that ztunnel sends for it.
const DNS_ZONE: u16 = 1;

/// Marks, ports and addresses. The defaults are those of ztunnel and Istio's own agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InPodRulesConfig {
    /// Mark of every packet that ztunnel sends.
    pub proxy: Mark,
    /// Mark of connections that ztunnel opened with a client's source address, and of their replies.
    pub connection: Mark,
    /// Table by which packets with that mark are delivered locally.
    pub table: TableId,
    /// Listener of outbound connections.
    pub outbound: Port,
    /// Listener of plain inbound connections.
    pub inbound: Port,
    /// Listener of tunnels (HBONE).
    pub tunnel: Port,
    /// Listener of DNS.
    pub dns: Port,
    /// Source address of the node's probes, which pods exempt.
    pub probes: ProbeAddresses,
    /// Whether the node's probes get routes past the network interfaces that AWS's CNI plugin gives to pods.
    pub branch_probes: bool,
}

/// The source addresses of the node's probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeAddresses {
    /// Over IPv4.
    pub v4: Ipv4Addr,
    /// Over IPv6.
    pub v6: Ipv6Addr,
}

impl ProbeAddresses {
    /// Returns the address of one family.
    pub fn address_for(self, family: Family) -> IpAddr {
        match family {
            Family::V4 => self.v4.into(),
            Family::V6 => self.v6.into(),
        }
    }
}

impl Default for ProbeAddresses {
    fn default() -> ProbeAddresses {
        ProbeAddresses {
            v4: Ipv4Addr::new(169, 254, 7, 127),
            v6: Ipv6Addr::new(0xfd16, 0x9254, 0x7127, 0x1337, 0xffff, 0xffff, 0xffff, 0xffff),
        }
    }
}

impl Default for InPodRulesConfig {
    fn default() -> InPodRulesConfig {
        InPodRulesConfig {
            proxy: Mark { value: 0x539, mask: 0xfff },
            connection: Mark { value: 0x111, mask: 0xfff },
            table: TableId(100),
            outbound: Port(15001),
            inbound: Port(15006),
            tunnel: Port(15008),
            dns: Port(15053),
            probes: ProbeAddresses::default(),
            branch_probes: true,
        }
    }
}

impl InPodRulesConfig {
    /// Returns the policy route that accompanies a pod's rules, in both families.
    pub fn local_route(&self) -> LocalRoute {
        LocalRoute { mark: self.connection, table: self.table }
    }
}

/// Properties of a pod on which its rules depend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodOptions {
    /// Whether ztunnel answers the pod's DNS queries.
    pub dns: bool,
    /// Whether inbound connections bypass ztunnel.
    pub bypass_inbound: bool,
    /// Interfaces of virtual machines in the pod, on which their outbound connections arrive.
    pub virtual_interfaces: Vec<IfName>,
    /// Traffic that is excluded from the mesh on purpose.
    pub exceptions: PodExceptions,
    /// Whether nothing is redirected for now: no ztunnel is available, and [`PodExceptions::without_ztunnel`] lets the
    /// pod's traffic continue.
    pub open: bool,
}

/// Traffic of a captured pod that is not redirected. [`PodOptions::dns`] alone decides about its DNS, except on an
/// excepted interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodExceptions {
    /// Destination ports of its TCP connections.
    pub outbound_ports: Vec<Port>,
    /// Destinations of its TCP connections, of both families.
    pub outbound_networks: Vec<IpNet>,
    /// Local ports that are reached without ztunnel.
    pub inbound_ports: Vec<Port>,
    /// Network interfaces whose traffic is not redirected.
    pub interfaces: Vec<IfName>,
    /// Whether the pod's DNS, which is redirected by default, is excepted: the reason why [`PodOptions::dns`] is off.
    pub dns: bool,
    /// Whether nothing is redirected while no ztunnel is available.
    pub without_ztunnel: bool,
}

impl PodOptions {
    /// Returns whether some of the pod's traffic is excluded from the mesh on purpose.
    pub fn has_exceptions(&self) -> bool {
        self.bypass_inbound || self.exceptions != PodExceptions::default()
    }

    /// Returns each kind of traffic that is excluded from the mesh on purpose, as text: "outbound TCP ports 5432,
    /// 6379".
    pub fn outside_descriptions(&self) -> Vec<String> {
        let PodExceptions { outbound_ports, outbound_networks, inbound_ports, interfaces, .. } =
            &self.exceptions;
        let kinds = [
            ("outbound TCP ports", join_values(outbound_ports.iter().map(|port| port.0))),
            ("outbound networks", join_values(outbound_networks)),
            ("inbound TCP ports", join_values(inbound_ports.iter().map(|port| port.0))),
            ("network interfaces", join_values(interfaces)),
        ];
        let given = kinds.into_iter().filter(|(_, values)| !values.is_empty());
        let given = given.map(|(kind, values)| format!("{kind} {values}"));
        let inbound = self.bypass_inbound.then(|| "inbound TCP".to_owned());
        let dns = self.exceptions.dns.then(|| "DNS".to_owned());
        let all =
            self.exceptions.without_ztunnel.then(|| "everything while no ztunnel is connected".to_owned());
        given.chain(inbound).chain(dns).chain(all).collect()
    }
}

impl PodExceptions {
    /// Returns whether a TCP connection with these ends is not redirected. `accepted`: the peer opened it. Interfaces
    /// are not considered.
    pub fn excludes_connection(&self, local: SocketAddr, remote: SocketAddr, accepted: bool) -> bool {
        match accepted {
            true => self.inbound_ports.contains(&Port(local.port())),
            false => {
                self.outbound_ports.contains(&Port(remote.port()))
                    || self.outbound_networks.iter().any(|network| network.contains(&remote.ip()))
            }
        }
    }

    fn networks_for(&self, family: Family) -> impl Iterator<Item = &IpNet> {
        self.outbound_networks.iter().filter(move |network| Family::from_ip(network.addr()) == family)
    }
}

fn join_values(values: impl IntoIterator<Item: ToString>) -> String {
    values.into_iter().map(|value| value.to_string()).collect::<Vec<_>>().join(", ")
}

/// Returns the rule set of one family in a pod. An open pod has none: when it gets rules again, its connections are
/// treated like those of a pod that joins.
pub fn pod_rules(config: &InPodRulesConfig, pod: &PodOptions, family: Family) -> RuleSet {
    let mut rules = RuleSet::default();
    if pod.open {
        return rules;
    }
    add_mark_rules(config, &mut rules);
    add_inbound_rules(config, pod, family, &mut rules);
    add_outbound_rules(config, pod, family, &mut rules);
    if pod.dns {
        dns_zones(config, pod, &mut rules);
    }
    rules
}

/// Connections with a client's source address are recognised when they arrive over `lo`, their replies when they leave.
fn add_mark_rules(config: &InPodRulesConfig, rules: &mut RuleSet) {
    add_first_jump(rules, Table::Mangle, Hook::Prerouting, &PRERT);
    let opened = Rule::new(Target::SetConnMark(config.connection)).when(mark_is(config.proxy));
    rules.table_mut(Table::Mangle).push(&PRERT, opened);
    add_first_jump(rules, Table::Mangle, Hook::Output, &OUTPUT);
    let answer =
        Rule::new(Target::RestoreMark(u32::MAX)).when(Match::ConnMark(MatchValue::eq(config.connection)));
    rules.table_mut(Table::Mangle).push(&OUTPUT, answer);
}

fn add_inbound_rules(config: &InPodRulesConfig, pod: &PodOptions, family: Family, rules: &mut RuleSet) {
    let mut chain = Vec::new();
    for interface in &pod.exceptions.interfaces {
        chain.push(Rule::new(Target::Accept).input(interface));
    }
    for interface in &pod.virtual_interfaces {
        chain.push(Rule::new(Target::Redirect(config.outbound)).input(interface).tcp());
    }
    if !pod.bypass_inbound {
        chain.push(Rule::new(Target::Accept).source(IpNet::from(config.probes.address_for(family))).tcp());
        let ports = port_matches(&pod.exceptions.inbound_ports);
        chain.extend(ports.into_iter().map(|port| Rule::new(Target::Accept).tcp().when(port)));
        let plain = Rule::new(Target::Redirect(config.inbound)).not_dest(loopback_net(family)).tcp();
        chain
            .push(plain.when(Match::DestPort(MatchValue::ne(config.tunnel))).when(mark_is_not(config.proxy)));
    }
    if !chain.is_empty() {
        add_first_jump(rules, Table::Nat, Hook::Prerouting, &PRERT);
        chain.into_iter().for_each(|rule| rules.table_mut(Table::Nat).push(&PRERT, rule));
    }
}

fn add_outbound_rules(config: &InPodRulesConfig, pod: &PodOptions, family: Family, rules: &mut RuleSet) {
    add_first_jump(rules, Table::Nat, Hook::Output, &OUTPUT);
    let mut push = |rule| rules.table_mut(Table::Nat).push(&OUTPUT, rule);
    // Replies to the node's probes.
    push(Rule::new(Target::Accept).dest(IpNet::from(config.probes.address_for(family))).tcp());
    for interface in &pod.exceptions.interfaces {
        push(Rule::new(Target::Accept).output(interface));
    }
    if pod.dns {
        let ask = || Rule::new(Target::Redirect(config.dns));
        push(ask().not_output(&LOOPBACK).udp().when(mark_is_not(config.proxy)).dport(DNS));
        push(ask().not_dest(loopback_net(family)).tcp().dport(DNS).when(mark_is_not(config.proxy)));
    }
    push(Rule::new(Target::Accept).tcp().when(mark_is(config.connection)));
    // The pod connects to itself by its own address.
    push(Rule::new(Target::Accept).not_dest(loopback_net(family)).output(&LOOPBACK));
    for port in port_matches(&pod.exceptions.outbound_ports) {
        push(Rule::new(Target::Accept).tcp().when(port));
    }
    for network in pod.exceptions.networks_for(family) {
        push(Rule::new(Target::Accept).dest(network.trunc()).tcp());
    }
    push(
        Rule::new(Target::Redirect(config.outbound))
            .not_dest(loopback_net(family))
            .tcp()
            .when(mark_is_not(config.proxy)),
    );
}

fn dns_zones(config: &InPodRulesConfig, pod: &PodOptions, rules: &mut RuleSet) {
    add_first_jump(rules, Table::Raw, Hook::Output, &OUTPUT);
    let zone = || Rule::new(Target::CtZone(DNS_ZONE)).udp();
    rules.table_mut(Table::Raw).push(&OUTPUT, zone().when(mark_is(config.proxy)).dport(DNS));
    add_first_jump(rules, Table::Raw, Hook::Prerouting, &PRERT);
    for interface in &pod.exceptions.interfaces {
        rules.table_mut(Table::Raw).push(&PRERT, Rule::new(Target::Accept).input(interface));
    }
    let answers = zone().when(mark_is_not(config.proxy)).when(Match::SourcePort(MatchValue::eq(DNS)));
    rules.table_mut(Table::Raw).push(&PRERT, answers);
}

/// Returns the rule set of one family on the node. `set`: the addresses of captured pods; it must exist before the
/// rules.
pub fn host(config: &InPodRulesConfig, set: &str, family: Family) -> RuleSet {
    let mut rules = RuleSet::default();
    add_first_jump(&mut rules, Table::Nat, Hook::Postrouting, &POSTRT);
    let member = Match::Set { name: Cow::Owned(set.to_owned()), side: AddressSide::Dest, negated: false };
    let probe = Rule::new(Target::Snat(config.probes.address_for(family))).tcp();
    let probe = probe.when(Match::SocketExists { negated: false }).when(member);
    rules.table_mut(Table::Nat).push(&POSTRT, probe);
    guard_probe_address(config.probes.address_for(family), &mut rules);
    rules
}

/// Protects the probes' source address: pods trust it, so no other sender may use it. Probes get it in POSTROUTING and
/// their replies lose it in PREROUTING, after `mangle`: no packet arrives with it as its source, and none is forwarded
/// to it. The second rule keeps pods from bypassing ztunnel even if another component uses the address. The table is
/// `mangle` rather than `raw`, because captured pods need `mangle`, too: if the kernel lacks it, there is nothing to
/// protect. On `lo` the address may be the node's own.
fn guard_probe_address(probes: IpAddr, rules: &mut RuleSet) {
    let net = IpNet::from(probes);
    let arriving = Rule::jump_to(PROBES).source(net).not_input(&LOOPBACK);
    rules.add_jump(Table::Mangle, Hook::Prerouting, arriving, JumpPlace::Early);
    rules.add_jump(Table::Mangle, Hook::Forward, Rule::jump_to(PROBES).dest(net), JumpPlace::Early);
    rules.table_mut(Table::Mangle).push(&PROBES, Rule::new(Target::Drop));
}

/// Adds a jump before all foreign rules: an application's own must not redirect traffic past the mesh.
fn add_first_jump(rules: &mut RuleSet, table: Table, hook: Hook, chain: &Chain) {
    rules.add_jump(table, hook, Rule::jump_to(chain.clone()), JumpPlace::First);
}

fn mark_is(mark: Mark) -> Match {
    Match::Mark(MatchValue::eq(mark))
}

fn mark_is_not(mark: Mark) -> Match {
    Match::Mark(MatchValue::ne(mark))
}

/// Returns the single loopback address that Istio does not redirect.
fn loopback_net(family: Family) -> IpNet {
    match family {
        Family::V4 => IpAddr::from(Ipv4Addr::LOCALHOST).into(),
        Family::V6 => IpAddr::from(Ipv6Addr::LOCALHOST).into(),
    }
}
