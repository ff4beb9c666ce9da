//! Encoding of a rule of a native table as expressions, in the order of `nft`.

use std::net::IpAddr;

use model::{Family, IfName, Mark};
use netlink::NetlinkRequest;
use rules::{Match, MatchValue, Rule, Target, TransportProtocol, native::NativeRule};

use crate::{
    encode::{
        add_counter, add_expression, apply_bitwise, compare_by, compare_register, load_meta, load_payload,
        match_addresses, set_verdict,
    },
    uapi::{
        ANY_FAMILY, CMP_AT_LEAST, CMP_AT_MOST, CMP_NOT_EQUAL, CT_KEY, CT_MARK, CT_REGISTER, CT_SOURCE,
        CT_STATE, CT_ZONE, DATA_VALUE, IMMEDIATE_DATA, IMMEDIATE_REGISTER, LOG_GROUP, LOG_LENGTH, LOG_PREFIX,
        META_INPUT_NAME, META_KEY, META_L4PROTO, META_MARK, META_NFPROTO, META_OUTPUT_NAME, META_SOCKET_GID,
        META_SOCKET_UID, META_SOURCE, NAT_ADDRESS_MAX, NAT_ADDRESS_MIN, NAT_FAMILY, NAT_SOURCE, NAT_TYPE,
        PORT_SPECIFIED, REDIR_FLAGS, REDIR_PORT_MAX, REDIR_PORT_MIN, REGISTER_1, RULE_EXPRESSIONS,
        TPROXY_FAMILY, TPROXY_PORT, TRANSPORT_HEADER,
    },
    xt::state_mask,
};

/// Size of an interface name in a register (`IFNAMSIZ`).
const NAME: usize = 16;
/// Offsets of the ports in the headers of TCP and UDP.
const SOURCE_PORT: u32 = 0;
const DEST_PORT: u32 = 2;

/// Adds the attribute `NFTA_RULE_EXPRESSIONS`. Returns false if the rule has a condition or verdict that cannot be
/// expressed.
pub(super) fn write_rule(request: &mut NetlinkRequest, native: &NativeRule) -> bool {
    let mut is_expressed = true;
    request.put_nested(RULE_EXPRESSIONS, |list| {
        is_expressed = add_conditions(list, native.family, &native.rule);
        if native.counts {
            add_counter(list);
        }
        is_expressed &= add_target(list, native.family, &native.rule.target);
    });
    is_expressed
}

fn add_conditions(list: &mut NetlinkRequest, family: Option<Family>, rule: &Rule) -> bool {
    let has_address = rule.source.is_some() || rule.dest.is_some();
    let has_ports = rule.matches.iter().any(is_about_ports);
    if let Some(family) = family.filter(|_| !has_address) {
        match_family(list, family);
    }
    if let Some(name) = &rule.input {
        match_interface(list, META_INPUT_NAME, name);
    }
    if let Some(name) = &rule.output {
        match_interface(list, META_OUTPUT_NAME, name);
    }
    if let Some(proto) = rule.proto.as_ref().filter(|_| !has_ports) {
        match_protocol(list, proto);
    }
    if has_address {
        let Some(family) = family else { return false };
        match_family(list, family);
        match_addresses(list, family, rule);
    }
    let mut proto = rule.proto.as_ref().filter(|_| has_ports);
    rule.matches.iter().all(|condition| {
        if is_about_ports(condition)
            && let Some(proto) = proto.take()
        {
            match_protocol(list, proto);
        }
        add_condition(list, condition)
    })
}

fn is_about_ports(condition: &Match) -> bool {
    matches!(
        condition,
        Match::SourcePort(_) | Match::DestPort(_) | Match::DestPortRange(_) | Match::DestPorts(_)
    )
}

fn match_family(list: &mut NetlinkRequest, family: Family) {
    load_meta(list, META_NFPROTO);
    compare_register(list, false, &[family.address_family()]);
}

fn match_protocol(list: &mut NetlinkRequest, proto: &MatchValue<TransportProtocol>) {
    load_meta(list, META_L4PROTO);
    compare_register(list, proto.negated, &[proto.value.number()]);
}

/// Compares an interface name: a complete one fills the register, a prefix has its own length.
fn match_interface(list: &mut NetlinkRequest, key: u32, name: &MatchValue<IfName>) {
    let text = name.value.as_str();
    let mut bytes = text.strip_suffix('+').unwrap_or(text).as_bytes().to_vec();
    if !text.ends_with('+') {
        bytes.resize(NAME, 0);
    }
    if !bytes.is_empty() {
        load_meta(list, key);
        compare_register(list, name.negated, &bytes);
    }
}

fn add_condition(list: &mut NetlinkRequest, condition: &Match) -> bool {
    match condition {
        Match::SourcePort(port) => match_ports(list, SOURCE_PORT, port.negated, &[port.value.0]),
        Match::DestPort(port) => match_ports(list, DEST_PORT, port.negated, &[port.value.0]),
        Match::DestPortRange(range) => {
            load_payload(list, TRANSPORT_HEADER, DEST_PORT, 2);
            compare_by(list, CMP_AT_LEAST, &range.first().0.to_be_bytes());
            compare_by(list, CMP_AT_MOST, &range.last().0.to_be_bytes());
        }
        Match::DestPorts(all) if all.negated || all.value.len() == 1 => {
            let numbers: Vec<u16> = all.value.iter().map(|port| port.0).collect();
            match_ports(list, DEST_PORT, all.negated, &numbers);
        }
        Match::Uid(id) => {
            load_meta(list, META_SOCKET_UID);
            compare_register(list, id.negated, &id.value.to_ne_bytes());
        }
        Match::Gid(id) => {
            load_meta(list, META_SOCKET_GID);
            compare_register(list, id.negated, &id.value.to_ne_bytes());
        }
        // Without a socket there is no user ID, and the rule does not match.
        Match::SocketExists { negated: false } => {
            load_meta(list, META_SOCKET_UID);
            compare_by(list, CMP_AT_LEAST, &0_u32.to_ne_bytes());
        }
        Match::Mark(mark) => {
            load_meta(list, META_MARK);
            match_mark(list, mark);
        }
        Match::ConnMark(mark) => {
            load_conntrack(list, CT_MARK);
            match_mark(list, mark);
        }
        Match::CtState(states) => {
            load_conntrack(list, CT_STATE);
            apply_bitwise(list, &u32::from(state_mask(*states)).to_ne_bytes(), &[0; 4]);
            compare_by(list, CMP_NOT_EQUAL, &[0; 4]);
        }
        Match::SocketExists { negated: true } | Match::DestPorts(_) | Match::Set { .. } => return false,
    }
    true
}

/// Compares ports. Each excluded port is a separate comparison; a list of allowed ports would need a set.
fn match_ports(list: &mut NetlinkRequest, offset: u32, negated: bool, numbers: &[u16]) {
    for number in numbers {
        load_payload(list, TRANSPORT_HEADER, offset, 2);
        compare_register(list, negated, &number.to_be_bytes());
    }
}

fn match_mark(list: &mut NetlinkRequest, mark: &MatchValue<Mark>) {
    let Mark { value, mask } = mark.value;
    if mask != u32::MAX {
        apply_bitwise(list, &mask.to_ne_bytes(), &[0; 4]);
    }
    compare_register(list, mark.negated, &value.to_ne_bytes());
}

fn load_conntrack(list: &mut NetlinkRequest, key: u32) {
    add_expression(list, "ct", &|data| {
        data.put_be32(CT_REGISTER, REGISTER_1).put_be32(CT_KEY, key);
    });
}

fn set_connection(list: &mut NetlinkRequest, key: u32) {
    add_expression(list, "ct", &|data| {
        data.put_be32(CT_KEY, key).put_be32(CT_SOURCE, REGISTER_1);
    });
}

fn set_mark(list: &mut NetlinkRequest) {
    add_expression(list, "meta", &|data| {
        data.put_be32(META_KEY, META_MARK).put_be32(META_SOURCE, REGISTER_1);
    });
}

fn load_immediate(list: &mut NetlinkRequest, value: &[u8]) {
    add_expression(list, "immediate", &|data| {
        data.put_be32(IMMEDIATE_REGISTER, REGISTER_1).put_nested(IMMEDIATE_DATA, |data| {
            data.put_bytes(DATA_VALUE, value);
        });
    });
}

/// Loads a mark with its own bits replaced; if these are all bits, the previous mark is not read.
fn replace_mark_bits(list: &mut NetlinkRequest, mark: Mark, read: impl FnOnce(&mut NetlinkRequest)) {
    if mark.mask == u32::MAX {
        load_immediate(list, &mark.value.to_ne_bytes());
    } else {
        read(list);
        apply_bitwise(list, &(!mark.mask).to_ne_bytes(), &mark.value.to_ne_bytes());
    }
}

fn add_target(list: &mut NetlinkRequest, family: Option<Family>, target: &Target) -> bool {
    match target {
        Target::Return | Target::Accept | Target::Drop | Target::Jump(_) | Target::Goto(_) => {
            set_verdict(list, target);
        }
        Target::Redirect(port) => {
            load_immediate(list, &port.0.to_be_bytes());
            add_expression(list, "redir", &|data| {
                data.put_be32(REDIR_PORT_MIN, REGISTER_1)
                    .put_be32(REDIR_PORT_MAX, REGISTER_1)
                    .put_be32(REDIR_FLAGS, PORT_SPECIFIED);
            });
        }
        Target::Snat(ip) => {
            let Some(family) = family else { return false };
            match ip {
                IpAddr::V4(ip) => load_immediate(list, &ip.octets()),
                IpAddr::V6(ip) => load_immediate(list, &ip.octets()),
            }
            add_expression(list, "nat", &|data| {
                data.put_be32(NAT_TYPE, NAT_SOURCE)
                    .put_be32(NAT_FAMILY, u32::from(family.address_family()))
                    .put_be32(NAT_ADDRESS_MIN, REGISTER_1)
                    .put_be32(NAT_ADDRESS_MAX, REGISTER_1);
            });
        }
        Target::Tproxy { port, mark } => {
            replace_mark_bits(list, *mark, |list| load_meta(list, META_MARK));
            set_mark(list);
            load_immediate(list, &port.0.to_be_bytes());
            add_expression(list, "tproxy", &|data| {
                data.put_be32(TPROXY_FAMILY, ANY_FAMILY).put_be32(TPROXY_PORT, REGISTER_1);
            });
            set_verdict(list, &Target::Accept);
        }
        Target::SetMark(mark) => {
            replace_mark_bits(list, *mark, |list| load_meta(list, META_MARK));
            set_mark(list);
        }
        Target::SaveMark => {
            load_meta(list, META_MARK);
            set_connection(list, CT_MARK);
        }
        Target::RestoreMark(u32::MAX) => {
            load_conntrack(list, CT_MARK);
            set_mark(list);
        }
        Target::SetConnMark(mark) => {
            replace_mark_bits(list, *mark, |list| load_conntrack(list, CT_MARK));
            set_connection(list, CT_MARK);
        }
        Target::CtZone(zone) => {
            load_immediate(list, &zone.to_ne_bytes());
            set_connection(list, CT_ZONE);
        }
        Target::Nflog { prefix, group, size } => add_expression(list, "log", &|data| {
            data.put_be16(LOG_GROUP, *group).put_str(LOG_PREFIX, prefix).put_be32(LOG_LENGTH, *size);
        }),
        Target::RestoreMark(_) | Target::Dnat { .. } => return false,
    }
    true
}
