//! Arbitrary rules, rule sets, configurations, and namespaces that other components have changed before.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use model::{Family, IfName, IpNet, Mark, Port, TableId};
use proptest::{collection::vec, option, prelude::*, sample};
use rules::{
    AddressSide, Chain, ChainSet, CtStates, Hook, HookJump, JumpPlace, Match, MatchValue, PortRange, Rule,
    RuleSet, Table, TableRules, Target, TransportProtocol,
    sidecar::{DnsCapture, InboundMode, NetworkSelection, OwnerGroups, PortSelection, SidecarConfig},
};

use crate::{
    kernel::{self, Kernel},
    node_cases,
};

pub(crate) fn family() -> impl Strategy<Value = Family> {
    sample::select(Family::BOTH.to_vec())
}

pub(crate) fn port() -> impl Strategy<Value = Port> {
    prop_oneof![Just(53), Just(15008), any::<u16>()].prop_map(Port)
}

fn port_range() -> impl Strategy<Value = PortRange> {
    (1..u16::MAX, 1..=u16::MAX)
        .prop_map(|(first, more)| PortRange::new(Port(first), Port(first.saturating_add(more))).unwrap())
}

pub(crate) fn ports() -> impl Strategy<Value = PortSelection> {
    prop_oneof![
        Just(PortSelection::All),
        Just(PortSelection::NONE),
        port_range().prop_map(|range| PortSelection::Ranges(vec![range.first().0..=range.last().0])),
        vec(port(), 0..4).prop_map(PortSelection::List)
    ]
}

pub(crate) fn ip() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<u32>().prop_map(|bits| Ipv4Addr::from_bits(bits).into()),
        any::<u128>().prop_map(|bits| Ipv6Addr::from_bits(bits).into()),
        Just(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        Just(IpAddr::V6(Ipv6Addr::LOCALHOST)),
    ]
}

/// A network, including host bits; every length from `shortest` on.
pub(crate) fn net(shortest: u8) -> impl Strategy<Value = IpNet> {
    (ip(), prop_oneof![Just(0), any::<u8>()]).prop_map(move |(ip, len)| {
        let longest = if ip.is_ipv4() { 32 } else { 128 };
        IpNet::new(ip, shortest + len % (longest + 1 - shortest)).unwrap()
    })
}

pub(crate) fn interface() -> impl Strategy<Value = IfName> {
    prop_oneof![
        Just("lo".to_owned()),
        Just("+".to_owned()),
        "[a-z]{2,4}[0-9]{1,2}",
        "[a-z]{2,4}[+]",
        "[A-Za-z0-9_.@$#;,+=äß-]{1,15}",
    ]
    .prop_filter_map("no interface name", |name| IfName::new(&name).ok())
}

fn mark() -> impl Strategy<Value = Mark> {
    prop_oneof![
        any::<u32>().prop_map(Mark::with_full_mask),
        (any::<u32>(), any::<u32>()).prop_map(|(value, mask)| Mark { value, mask }),
    ]
}

fn is<T: std::fmt::Debug>(value: impl Strategy<Value = T>) -> impl Strategy<Value = MatchValue<T>> {
    (any::<bool>(), value).prop_map(|(negated, value)| MatchValue { negated, value })
}

/// Both owners.
pub(crate) const OWNERS: [ChainSet; 2] = [ChainSet::SIDECAR, ChainSet::NODE];

/// The chains of both.
fn own_chains() -> Vec<&'static str> {
    OWNERS.iter().flat_map(|owner| owner.chains).copied().collect()
}

pub(crate) fn owner() -> impl Strategy<Value = ChainSet> {
    sample::select(OWNERS.to_vec())
}

/// Name of a chain, ours or foreign.
pub(crate) fn chain() -> impl Strategy<Value = Chain> {
    prop_oneof![
        sample::select(own_chains()).prop_map(Chain::named),
        "[A-Za-z_][A-Za-z0-9_:-]{0,20}[0-9]".prop_map(|name| Chain(name.into())),
    ]
}

fn condition(with_ports: bool) -> impl Strategy<Value = Match> {
    let other = prop_oneof![
        is(any::<u32>()).prop_map(Match::Uid),
        is(any::<u32>()).prop_map(Match::Gid),
        is(mark()).prop_map(Match::Mark),
        is(mark()).prop_map(Match::ConnMark),
        sample::select(CtStates::ALL.to_vec()).prop_map(Match::CtState),
        any::<bool>().prop_map(|negated| Match::SocketExists { negated }),
        ("[A-Za-z_][A-Za-z0-9_:.-]{0,30}", sample::select(AddressSide::ALL.to_vec()), any::<bool>())
            .prop_map(|(name, side, negated)| Match::Set { name: name.into(), side, negated }),
    ];
    let port = prop_oneof![
        is(port()).prop_map(Match::SourcePort),
        is(port()).prop_map(Match::DestPort),
        port_range().prop_map(Match::DestPortRange),
        is(vec(port(), 1..15)).prop_map(Match::DestPorts),
    ];
    if with_ports { prop_oneof![other, port].boxed() } else { other.boxed() }
}

fn target(chains: Vec<Chain>) -> impl Strategy<Value = Target> {
    let fixed = prop_oneof![
        Just(Target::Return),
        Just(Target::Accept),
        Just(Target::Drop),
        Just(Target::SaveMark),
        any::<u32>().prop_map(Target::RestoreMark),
        mark().prop_map(Target::SetConnMark),
        (ip(), port()).prop_map(|(ip, port)| Target::Dnat { ip, port }),
        ip().prop_map(Target::Snat),
        port().prop_map(Target::Redirect),
        (port(), mark()).prop_map(|(port, mark)| Target::Tproxy { port, mark }),
        mark().prop_map(Target::SetMark),
        any::<u16>().prop_map(Target::CtZone),
        ("[ -~]{1,20}", any::<u16>(), any::<u32>()).prop_map(|(prefix, group, size)| Target::Nflog {
            prefix: prefix.into(),
            group,
            size
        }),
    ];
    if chains.is_empty() {
        return fixed.boxed();
    }
    let leads = (sample::select(chains), any::<bool>());
    let leads = leads.prop_map(|(chain, back)| if back { Target::Jump(chain) } else { Target::Goto(chain) });
    prop_oneof![3 => fixed, 2 => leads].boxed()
}

/// Any rule of the model: a port only with its protocol. Jumps go to one of `chains`.
pub(crate) fn rule(chains: Vec<Chain>) -> impl Strategy<Value = Rule> {
    let proto = option::of(is(sample::select(vec![TransportProtocol::Tcp, TransportProtocol::Udp])));
    let net = || option::of(is(net(1).prop_map(|net| net.trunc())));
    let interface =
        || option::of(is(interface().prop_filter("matches everything", |name| name.as_str() != "+")));
    proto.prop_flat_map(move |proto| {
        let with_ports = proto.as_ref().is_some_and(|proto| !proto.negated);
        let ends = (net(), net(), interface(), interface());
        (ends, vec(condition(with_ports), 0..3), target(chains.clone())).prop_map(
            move |(ends, matches, target)| {
                let (source, dest, input, output) = ends;
                Rule { source, dest, input, output, proto: proto.clone(), matches, target }
            },
        )
    })
}

/// Several of our chains with any rules, jumps only to later chains (no loops), and at most one jump per hook.
fn table_rules(owner: ChainSet, table: Table) -> impl Strategy<Value = TableRules> {
    let names = sample::subsequence(owner.chains.to_vec(), 1..5).prop_shuffle();
    names.prop_flat_map(move |names| {
        let names: Vec<Chain> = names.into_iter().map(Chain::named).collect();
        let rules: Vec<_> =
            (0..names.len()).map(|index| vec(rule(names[index + 1..].to_vec()), 0..4)).collect();
        let hooks: Vec<Hook> =
            Hook::ALL.into_iter().filter(|hook| kernel::built_in(table).contains(&hook.as_str())).collect();
        let place = sample::select(vec![JumpPlace::First, JumpPlace::Last]);
        let goal = sample::select(names.clone());
        let jump = (rule(vec![]), goal, place, any::<bool>());
        let jumps = (sample::subsequence(hooks, 0..3), vec(jump, 3));
        (Just(names), rules, jumps).prop_map(|(names, rules, (hooks, jumps))| TableRules {
            chains: names.into_iter().zip(rules).collect(),
            jumps: (hooks.into_iter().zip(jumps))
                .map(|(hook, (rule, goal, place, bare))| {
                    let rule = if bare { Rule::jump_to(goal) } else { rule.with_target(Target::Jump(goal)) };
                    HookJump { hook, rule, place }
                })
                .collect(),
        })
    })
}

/// Any rule set in chains of its owner.
pub(crate) fn rule_set(owner: ChainSet) -> impl Strategy<Value = RuleSet> {
    Table::ALL.map(|table| option::weighted(0.4, table_rules(owner, table))).prop_map(|tables| RuleSet {
        tables: Table::ALL
            .into_iter()
            .zip(tables)
            .filter_map(|(table, rules)| Some((table, rules?)))
            .collect(),
    })
}

/// Any configuration.
pub(crate) fn config() -> impl Strategy<Value = SidecarConfig> {
    let interfaces = || vec(interface(), 0..3);
    let ids = || vec(prop_oneof![Just(1337), any::<u32>()], 0..3);
    let mode = prop_oneof![
        Just(InboundMode::Redirect),
        any::<u32>()
            .prop_map(|mark| InboundMode::Tproxy { mark: Mark::with_full_mask(mark), table: TableId(133) }),
    ];
    let networks =
        prop_oneof![Just(NetworkSelection::All), vec(net(0), 0..4).prop_map(NetworkSelection::List)];
    let owner_groups = prop_oneof![ids().prop_map(OwnerGroups::Except), ids().prop_map(OwnerGroups::Only)];
    let dns = prop_oneof![
        Just(DnsCapture::Off),
        Just(DnsCapture::All),
        vec(ip(), 0..4).prop_map(DnsCapture::Servers)
    ];
    let listeners = (port(), port(), port());
    let inbound = (mode, ports(), ports());
    let outbound = (networks, vec(net(0), 0..3), ports(), ports());
    let owners = (ids(), ids(), owner_groups);
    let loopback = sample::select(vec!["127.0.0.1/32", "127.0.0.0/8", "127.1.0.0/16"])
        .prop_map(|network| network.parse().unwrap());
    let rest = (interfaces(), interfaces(), dns, any::<bool>(), any::<bool>(), loopback);
    (listeners, inbound, outbound, owners, rest).prop_map(|(listeners, inbound, outbound, owners, rest)| {
        SidecarConfig {
            outbound_port: listeners.0,
            inbound_port: listeners.1,
            tunnel_port: listeners.2,
            inbound_mode: inbound.0,
            include_inbound: inbound.1,
            exclude_inbound: inbound.2,
            include_networks: outbound.0,
            exclude_networks: outbound.1,
            include_outbound: outbound.2,
            exclude_outbound: outbound.3,
            proxy_uids: owners.0,
            proxy_gids: owners.1,
            owner_groups: owners.2,
            exclude_interfaces: rest.0,
            kubevirt_interfaces: rest.1,
            dns: rest.2,
            drop_invalid: rest.3,
            trace: rest.4,
            loopback: rest.5,
        }
    })
}

/// Any desired state with its owner: a rule set of any shape, or that of a configuration.
pub(crate) fn desired() -> impl Strategy<Value = (ChainSet, RuleSet)> {
    prop_oneof![
        owner().prop_flat_map(|owner| (Just(owner), rule_set(owner))),
        (config(), family())
            .prop_map(|(config, family)| (ChainSet::SIDECAR, rules::sidecar::rule_set(&config, family))),
        sample::select(node_cases::all()).prop_map(|case| (ChainSet::NODE, case.rules)),
    ]
}
/// Existing content of a table.
#[derive(Clone, Debug)]
pub(crate) enum Debris {
    /// A foreign rule, in a built-in chain or a foreign one.
    Foreign(&'static str),
    /// A chain of either owner, with some rules.
    Own(Vec<Rule>),
    /// A copy of a desired jump.
    Wanted,
    /// A rule that jumps to one of our chains and that we never wrote, in a built-in chain or a foreign one.
    Into(&'static str),
}

/// Foreign rules. Several mention our chains without jumping there.
const FOREIGN: [&str; 10] = [
    "-j ACCEPT",
    "-p tcp -m tcp --dport 80 -j RETURN",
    "-j CALI-forward",
    "-g CALI-forward",
    "-m comment --comment \"then -j ISTIO_INBOUND as before\" -j ACCEPT",
    "-m comment --comment -j -j RETURN",
    "-m comment --comment \"a \\\" quote -j ISTIO_OUTPUT\" -j CALI-forward",
    "-p udp -j DNAT --to-destination 10.0.0.1:53",
    "-m comment --comment \"only counts\"",
    "-p tcp -m tcp --dport 15001 -j REDIRECT --to-ports 15001",
];

/// Jumps to our chains; `CHAIN` is one of them.
const INTO: [&str; 6] = [
    "-j CHAIN",
    "-p udp -j CHAIN",
    "-g CHAIN",
    "-p tcp -m comment --comment \"from -j elsewhere\" -j CHAIN",
    "-m comment --comment -j -j CHAIN",
    "-m set --match-set pods src -m comment --comment \"x y\" -j CHAIN",
];

fn debris() -> impl Strategy<Value = Debris> {
    prop_oneof![
        3 => sample::select(FOREIGN.to_vec()).prop_map(Debris::Foreign),
        1 => vec(rule(own_chains().into_iter().map(Chain::named).collect()), 0..3).prop_map(Debris::Own),
        2 => Just(Debris::Wanted),
        2 => sample::select(INTO.to_vec()).prop_map(Debris::Into),
    ]
}

/// Debris, and three numbers for its position.
pub(crate) type Lying = (Table, Debris, [sample::Index; 3]);

pub(crate) fn dump() -> impl Strategy<Value = Vec<Lying>> {
    let lying = (sample::select(Table::ALL.to_vec()), debris(), any::<[sample::Index; 3]>());
    vec(lying, 0..16)
}

/// Adds debris to a namespace. Targets of its jumps exist afterwards.
pub(crate) fn throw(kernel: &mut Kernel, desired: &RuleSet, dump: &[Lying]) {
    for (table, debris, [which, place, goal]) in dump {
        let own = *goal.get(&own_chains());
        let mut homes = kernel::built_in(*table).to_vec();
        homes.extend(["CALI-forward", "OTHER"]);
        let home = *which.get(&homes);
        match debris {
            Debris::Foreign(text) => put(kernel, *table, home, place, text),
            Debris::Own(rules) => {
                rules.iter().for_each(|rule| put(kernel, *table, own, place, &rule.to_string()));
            }
            Debris::Into(text) => put(kernel, *table, home, place, &text.replace("CHAIN", own)),
            Debris::Wanted => {
                let jumps = desired.tables.get(table).map_or(&[][..], |rules| &rules.jumps);
                if !jumps.is_empty() {
                    let jump = which.get(jumps);
                    put(kernel, *table, jump.hook.as_str(), place, &jump.rule.to_string());
                }
            }
        }
    }
}

fn put(kernel: &mut Kernel, table: Table, chain: &str, place: &sample::Index, text: &str) {
    let chains = kernel.tables.get_mut(&table).unwrap();
    if let Some(goal) = kernel::verdict(&kernel::split(text))
        .filter(|goal| own_chains().contains(&goal.as_str()) || *goal == "CALI-forward")
    {
        chains.entry(goal.clone()).or_default();
    }
    let rules = chains.entry(chain.to_owned()).or_default();
    let position = place.index(rules.len() + 1) + 1;
    let call: Vec<String> =
        ["-t", table.as_str(), "-I", chain, &position.to_string()].into_iter().map(String::from).collect();
    kernel.call(&[call, kernel::split(text)].concat()).unwrap();
}
