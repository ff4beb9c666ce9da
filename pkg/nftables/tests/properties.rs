//! Rules as expressions, and back.
#![allow(clippy::unwrap_used, reason = "a test: a panic is its failure")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use model::{Family, IfName, IpNet, Mark, Port};
use nftables::fuzzing::{SET, decode_rule, encode_rule};
use proptest::{collection::vec, option, prelude::*, sample};
use rules::{AddressSide, Chain, CtStates, Match, MatchValue, PortRange, Rule, Target, TransportProtocol};

fn ip(family: Family) -> impl Strategy<Value = IpAddr> {
    any::<u128>().prop_map(move |bits| match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::from_bits((bits >> 96) as u32)),
        Family::V6 => IpAddr::V6(Ipv6Addr::from_bits(bits)),
    })
}

fn net(family: Family) -> impl Strategy<Value = IpNet> {
    (ip(family), any::<u8>()).prop_map(|(ip, length)| {
        let longest = if ip.is_ipv4() { 32 } else { 128 };
        IpNet::new(ip, 1 + length % longest).unwrap().trunc()
    })
}

fn interface() -> impl Strategy<Value = IfName> {
    prop_oneof!["[a-z]{1,4}[0-9.]{1,4}", "[a-z]{2,4}[+]{1,2}", "[A-Za-z_.@$#;,+=äß-]{1,6}[a-z]"]
        .prop_filter_map("no interface name", |name| IfName::new(&name).ok())
}

fn mark() -> impl Strategy<Value = Mark> {
    (any::<u32>(), prop_oneof![Just(u32::MAX), any::<u32>()]).prop_map(|(value, mask)| Mark { value, mask })
}

fn is<T: std::fmt::Debug>(value: impl Strategy<Value = T>) -> impl Strategy<Value = MatchValue<T>> {
    (any::<bool>(), value).prop_map(|(negated, value)| MatchValue { negated, value })
}

fn port() -> impl Strategy<Value = Port> {
    any::<u16>().prop_map(Port)
}

fn condition(with_ports: bool) -> impl Strategy<Value = Match> {
    let other =
        prop_oneof![
            is(any::<u32>()).prop_map(Match::Uid),
            is(any::<u32>()).prop_map(Match::Gid),
            any::<bool>().prop_map(|negated| Match::SocketExists { negated }),
            is(mark()).prop_map(Match::Mark),
            is(mark()).prop_map(Match::ConnMark),
            sample::select(CtStates::ALL.to_vec()).prop_map(Match::CtState),
            (sample::select(AddressSide::ALL.to_vec()), any::<bool>())
                .prop_map(|(side, negated)| Match::Set { name: SET.into(), side, negated }),
        ];
    let port = prop_oneof![
        is(port()).prop_map(Match::SourcePort),
        is(port()).prop_map(Match::DestPort),
        (0..1000_u16, 1001..=u16::MAX)
            .prop_map(|(first, last)| Match::DestPortRange(PortRange::new(Port(first), Port(last)).unwrap())),
        is(vec(port(), 1..=15)).prop_map(Match::DestPorts),
    ];
    if with_ports { prop_oneof![other, port].boxed() } else { other.boxed() }
}

fn target(family: Family) -> impl Strategy<Value = Target> {
    let chain = || "[A-Za-z_][A-Za-z0-9_:-]{0,27}".prop_map(|name| Chain(name.into()));
    prop_oneof![
        sample::select(vec![Target::Return, Target::Accept, Target::Drop, Target::SaveMark]),
        chain().prop_map(Target::Jump),
        chain().prop_map(Target::Goto),
        port().prop_map(Target::Redirect),
        (ip(family), port()).prop_map(|(ip, port)| Target::Dnat { ip, port }),
        ip(family).prop_map(Target::Snat),
        (port(), mark()).prop_map(|(port, mark)| Target::Tproxy { port, mark }),
        mark().prop_map(Target::SetMark),
        mark().prop_map(Target::SetConnMark),
        any::<u32>().prop_map(Target::RestoreMark),
        any::<u16>().prop_map(Target::CtZone),
        ("[ -~]{1,63}", any::<u16>(), any::<u32>()).prop_map(|(prefix, group, size)| Target::Nflog {
            prefix: prefix.into(),
            group,
            size
        }),
    ]
}

fn rule(family: Family) -> impl Strategy<Value = Rule> {
    let protocols = vec![TransportProtocol::Tcp, TransportProtocol::Udp];
    let proto = option::of(is(sample::select(protocols)));
    let ends = (option::of(is(net(family))), option::of(is(net(family))));
    let interfaces = (option::of(is(interface())), option::of(is(interface())));
    (ends, interfaces, proto, target(family)).prop_flat_map(
        |((source, dest), (input, output), proto, target)| {
            let with_ports = proto.as_ref().is_some_and(|proto| !proto.negated);
            let rule = Rule { source, dest, input, output, proto, matches: Vec::new(), target };
            vec(condition(with_ports), 0..4).prop_map(move |matches| Rule { matches, ..rule.clone() })
        },
    )
}

fn family() -> impl Strategy<Value = Family> {
    sample::select(Family::BOTH.to_vec())
}

proptest! {
    #[test]
    fn a_rule_is_read_as_it_was_written((family, rule) in family().prop_flat_map(|family| (Just(family), rule(family)))) {
        let bytes = encode_rule(family, &rule).unwrap();
        prop_assert_eq!(decode_rule(family, &bytes), Some(rule));
    }

    #[test]
    fn a_rule_with_a_byte_changed_is_no_panic_and_never_the_same_by_chance(
        (family, rule) in family().prop_flat_map(|family| (Just(family), rule(family))),
        place in any::<sample::Index>(),
        change in 1..=u8::MAX,
    ) {
        let mut bytes = encode_rule(family, &rule).unwrap();
        let place = place.index(bytes.len());
        bytes[place] ^= change;
        if let Some(read) = decode_rule(family, &bytes) {
            // Its content can be encoded, and decodes to the same.
            let written = encode_rule(family, &read).unwrap();
            prop_assert_eq!(decode_rule(family, &written), Some(read));
        }
    }

    #[test]
    fn arbitrary_bytes_are_no_panic(family in family(), bytes in vec(any::<u8>(), 0..300)) {
        let _ = decode_rule(family, &bytes);
    }
}
