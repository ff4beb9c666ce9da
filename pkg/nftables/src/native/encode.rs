//! A rule of a native table as expressions, in the order in which `nft` writes them.

use std::net::IpAddr;

use model::{Family, IfName, Mark};
use netlink::NetlinkRequest;
use rules::{CtStates, Match, MatchValue, Rule, Target, TransportProtocol, native::NativeRule};

use crate::{
    encode::{
        address, address_size, bitwise, compare, compare_by, counter, expression, meta, payload,
        protocol_number, source_offset, verdict,
    },
    uapi::{
        ANY_FAMILY, CMP_AT_LEAST, CMP_AT_MOST, CMP_NOT_EQUAL, CT_KEY, CT_MARK, CT_REGISTER, CT_SOURCE,
        CT_STATE, CT_ZONE, DATA_VALUE, IMMEDIATE_DATA, IMMEDIATE_REGISTER, LOG_GROUP, LOG_LENGTH, LOG_PREFIX,
        META_INPUT_NAME, META_KEY, META_L4PROTO, META_MARK, META_NFPROTO, META_OUTPUT_NAME, META_SOCKET_GID,
        META_SOCKET_UID, META_SOURCE, NAT_ADDRESS_MAX, NAT_ADDRESS_MIN, NAT_FAMILY, NAT_SOURCE, NAT_TYPE,
        PORT_SPECIFIED, REDIR_FLAGS, REDIR_PORT_MAX, REDIR_PORT_MIN, REGISTER_1, RULE_EXPRESSIONS,
        TPROXY_FAMILY, TPROXY_PORT, TRANSPORT_HEADER, header,
    },
};

/// Size of an interface name in a register (`IFNAMSIZ`).
const NAME: usize = 16;
/// Offsets of the ports in the headers of TCP and UDP.
const SOURCE_PORT: u32 = 0;
const DEST_PORT: u32 = 2;

/// Adds the attribute `NFTA_RULE_EXPRESSIONS`; false if the rule has a condition or verdict that cannot be expressed.
pub(super) fn rule(request: &mut NetlinkRequest, native: &NativeRule) -> bool {
    let mut is_expressed = true;
    request.nested(RULE_EXPRESSIONS, |list| {
        is_expressed = conditions(list, native.family, &native.rule);
        if native.counts {
            counter(list);
        }
        is_expressed &= target(list, native.family, &native.rule.target);
    });
    is_expressed
}

fn conditions(list: &mut NetlinkRequest, family: Option<Family>, rule: &Rule) -> bool {
    let has_address = rule.source.is_some() || rule.dest.is_some();
    let has_ports = rule.matches.iter().any(is_about_ports);
    if let Some(family) = family.filter(|_| !has_address) {
        of_family(list, family);
    }
    if let Some(name) = &rule.input {
        interface(list, META_INPUT_NAME, name);
    }
    if let Some(name) = &rule.output {
        interface(list, META_OUTPUT_NAME, name);
    }
    if let Some(proto) = rule.proto.as_ref().filter(|_| !has_ports) {
        protocol(list, proto);
    }
    if has_address {
        let Some(family) = family else { return false };
        of_family(list, family);
        if let Some(net) = &rule.source {
            address(list, family, source_offset(family), net);
        }
        if let Some(net) = &rule.dest {
            address(list, family, source_offset(family) + address_size(family), net);
        }
    }
    let mut proto = rule.proto.as_ref().filter(|_| has_ports);
    rule.matches.iter().all(|condition| {
        if is_about_ports(condition)
            && let Some(proto) = proto.take()
        {
            protocol(list, proto);
        }
        expressed(list, condition)
    })
}

fn is_about_ports(condition: &Match) -> bool {
    matches!(
        condition,
        Match::SourcePort(_) | Match::DestPort(_) | Match::DestPortRange(_) | Match::DestPorts(_)
    )
}

fn of_family(list: &mut NetlinkRequest, family: Family) {
    let [number, ..] = header(family);
    meta(list, META_NFPROTO);
    compare(list, false, &[number]);
}

fn protocol(list: &mut NetlinkRequest, proto: &MatchValue<TransportProtocol>) {
    meta(list, META_L4PROTO);
    compare(list, proto.negated, &[protocol_number(proto.value)]);
}

/// A whole name fills the register; the beginning of one is as long as it is.
fn interface(list: &mut NetlinkRequest, key: u32, name: &MatchValue<IfName>) {
    let text = name.value.as_str();
    let mut bytes = text.strip_suffix('+').unwrap_or(text).as_bytes().to_vec();
    if !text.ends_with('+') {
        bytes.resize(NAME, 0);
    }
    if !bytes.is_empty() {
        meta(list, key);
        compare(list, name.negated, &bytes);
    }
}

fn expressed(list: &mut NetlinkRequest, condition: &Match) -> bool {
    match condition {
        Match::SourcePort(port) => ports(list, SOURCE_PORT, port.negated, &[port.value.0]),
        Match::DestPort(port) => ports(list, DEST_PORT, port.negated, &[port.value.0]),
        Match::DestPortRange(range) => {
            payload(list, TRANSPORT_HEADER, DEST_PORT, 2);
            compare_by(list, CMP_AT_LEAST, &range.first().0.to_be_bytes());
            compare_by(list, CMP_AT_MOST, &range.last().0.to_be_bytes());
        }
        Match::DestPorts(all) if all.negated || all.value.len() == 1 => {
            let numbers: Vec<u16> = all.value.iter().map(|port| port.0).collect();
            ports(list, DEST_PORT, all.negated, &numbers);
        }
        Match::Uid(id) => {
            meta(list, META_SOCKET_UID);
            compare(list, id.negated, &id.value.to_ne_bytes());
        }
        Match::Gid(id) => {
            meta(list, META_SOCKET_GID);
            compare(list, id.negated, &id.value.to_ne_bytes());
        }
        // Without a socket there is no user, and the rule does not match.
        Match::SocketExists { negated: false } => {
            meta(list, META_SOCKET_UID);
            compare_by(list, CMP_AT_LEAST, &0_u32.to_ne_bytes());
        }
        Match::Mark(mark) => {
            meta(list, META_MARK);
            masked(list, mark);
        }
        Match::ConnMark(mark) => {
            connection(list, CT_MARK);
            masked(list, mark);
        }
        Match::CtState(states) => {
            connection(list, CT_STATE);
            bitwise(list, &state_bits(*states).to_ne_bytes(), &[0; 4]);
            compare_by(list, CMP_NOT_EQUAL, &[0; 4]);
        }
        Match::SocketExists { negated: true } | Match::DestPorts(_) | Match::Set { .. } => return false,
    }
    true
}

/// One of many that a port must not be is another comparison; a port that must be one of many would need a set.
fn ports(list: &mut NetlinkRequest, offset: u32, negated: bool, numbers: &[u16]) {
    for number in numbers {
        payload(list, TRANSPORT_HEADER, offset, 2);
        compare(list, negated, &number.to_be_bytes());
    }
}

fn masked(list: &mut NetlinkRequest, mark: &MatchValue<Mark>) {
    let Mark { value, mask } = mark.value;
    if mask != u32::MAX {
        bitwise(list, &mask.to_ne_bytes(), &[0; 4]);
    }
    compare(list, mark.negated, &value.to_ne_bytes());
}

/// `NF_CT_STATE_BIT` of `enum ip_conntrack_info`, and `NF_CT_STATE_INVALID_BIT`.
fn state_bits(states: CtStates) -> u32 {
    match states {
        CtStates::Invalid => 1,
        CtStates::New => 8,
        CtStates::RelatedEstablished => 2 | 4,
    }
}

fn connection(list: &mut NetlinkRequest, key: u32) {
    expression(list, "ct", &|data| {
        data.be32(CT_REGISTER, REGISTER_1).be32(CT_KEY, key);
    });
}

fn set_connection(list: &mut NetlinkRequest, key: u32) {
    expression(list, "ct", &|data| {
        data.be32(CT_KEY, key).be32(CT_SOURCE, REGISTER_1);
    });
}

fn set_mark(list: &mut NetlinkRequest) {
    expression(list, "meta", &|data| {
        data.be32(META_KEY, META_MARK).be32(META_SOURCE, REGISTER_1);
    });
}

fn immediate(list: &mut NetlinkRequest, value: &[u8]) {
    expression(list, "immediate", &|data| {
        data.be32(IMMEDIATE_REGISTER, REGISTER_1).nested(IMMEDIATE_DATA, |data| {
            data.bytes(DATA_VALUE, value);
        });
    });
}

/// The register gets a mark with its own bits replaced; all of them need no look at what was there.
fn replaced(list: &mut NetlinkRequest, mark: Mark, read: impl FnOnce(&mut NetlinkRequest)) {
    if mark.mask == u32::MAX {
        immediate(list, &mark.value.to_ne_bytes());
    } else {
        read(list);
        bitwise(list, &(!mark.mask).to_ne_bytes(), &mark.value.to_ne_bytes());
    }
}

fn target(list: &mut NetlinkRequest, family: Option<Family>, target: &Target) -> bool {
    match target {
        Target::Return | Target::Accept | Target::Drop | Target::Jump(_) | Target::Goto(_) => {
            verdict(list, target);
        }
        Target::Redirect(port) => {
            immediate(list, &port.0.to_be_bytes());
            expression(list, "redir", &|data| {
                data.be32(REDIR_PORT_MIN, REGISTER_1)
                    .be32(REDIR_PORT_MAX, REGISTER_1)
                    .be32(REDIR_FLAGS, PORT_SPECIFIED);
            });
        }
        Target::Snat(ip) => {
            let Some([number, ..]) = family.map(header) else { return false };
            match ip {
                IpAddr::V4(ip) => immediate(list, &ip.octets()),
                IpAddr::V6(ip) => immediate(list, &ip.octets()),
            }
            expression(list, "nat", &|data| {
                data.be32(NAT_TYPE, NAT_SOURCE)
                    .be32(NAT_FAMILY, u32::from(number))
                    .be32(NAT_ADDRESS_MIN, REGISTER_1)
                    .be32(NAT_ADDRESS_MAX, REGISTER_1);
            });
        }
        Target::Tproxy { port, mark } => {
            replaced(list, *mark, |list| meta(list, META_MARK));
            set_mark(list);
            immediate(list, &port.0.to_be_bytes());
            expression(list, "tproxy", &|data| {
                data.be32(TPROXY_FAMILY, ANY_FAMILY).be32(TPROXY_PORT, REGISTER_1);
            });
            verdict(list, &Target::Accept);
        }
        Target::SetMark(mark) => {
            replaced(list, *mark, |list| meta(list, META_MARK));
            set_mark(list);
        }
        Target::SaveMark => {
            meta(list, META_MARK);
            set_connection(list, CT_MARK);
        }
        Target::RestoreMark(u32::MAX) => {
            connection(list, CT_MARK);
            set_mark(list);
        }
        Target::SetConnMark(mark) => {
            replaced(list, *mark, |list| connection(list, CT_MARK));
            set_connection(list, CT_MARK);
        }
        Target::CtZone(zone) => {
            immediate(list, &zone.to_ne_bytes());
            set_connection(list, CT_ZONE);
        }
        Target::Nflog { prefix, group, size } => expression(list, "log", &|data| {
            data.be16(LOG_GROUP, *group).str(LOG_PREFIX, prefix).be32(LOG_LENGTH, *size);
        }),
        Target::RestoreMark(_) | Target::Dnat { .. } => return false,
    }
    true
}
