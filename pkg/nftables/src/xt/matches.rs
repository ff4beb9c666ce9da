//! Matches: conditions on packets.

use std::borrow::Cow;

use model::{Mark, Port};
use rules::{AddressSide, CtStates, Match, MatchValue, PortRange, TransportProtocol};

use super::{
    XtInfo,
    layout::{Fields, Layout},
};
use crate::sets::SetNumbers;

/// `enum` of `xt_owner.h`.
const OWNER_UID: u8 = 1;
const OWNER_GID: u8 = 2;
const OWNER_SOCKET: u8 = 4;
/// `XT_CONNTRACK_STATE`, and the offsets of `match_flags` and `state_mask` in `struct xt_conntrack_mtinfo3`.
const CONNTRACK_STATE: u16 = 1;
const CONNTRACK_FLAGS: usize = 146;
const CONNTRACK_STATES: usize = 150;
const CONNTRACK_SIZE: usize = 164;
/// `IPSET_INV_MATCH`, and `IPSET_DIM_ONE_SRC`; the size of `struct xt_set_info_match_v4`.
const SET_INVERTED: u8 = 1;
const SET_SOURCE: u8 = 2;
const SET_SIZE: usize = 44;

const ANY_PORT: [u16; 2] = [0, u16::MAX];

/// Encodes a condition as a match; `None` if it cannot be expressed: a port without its protocol, or a set that does
/// not exist.
pub(crate) fn encode_match(
    condition: &Match,
    proto: Option<TransportProtocol>,
    sets: &mut dyn SetNumbers,
) -> Option<XtInfo> {
    let info = Layout::default();
    Some(match condition {
        Match::SourcePort(MatchValue { negated, value }) => {
            encode_ports(proto?, [[value.0; 2], ANY_PORT], u8::from(*negated))
        }
        Match::DestPort(MatchValue { negated, value }) => {
            encode_ports(proto?, [ANY_PORT, [value.0; 2]], u8::from(*negated) << 1)
        }
        Match::DestPortRange(range) => encode_ports(proto?, [ANY_PORT, [range.first().0, range.last().0]], 0),
        Match::DestPorts(list) => {
            // struct xt_multiport_v1: flags, count, ports[15], pflags[15], invert
            let info = info.u8(1).u8(u8::try_from(list.value.len()).ok().filter(|count| *count <= 15)?);
            let info = list.value.iter().fold(info, |info, port| info.u16(port.0));
            ("multiport", 1, info.up_to(47).u8(list.negated.into()).into_aligned_bytes())
        }
        Match::Uid(id) => encode_owner(OWNER_UID, id.value, 0, id.negated),
        Match::Gid(id) => encode_owner(OWNER_GID, 0, id.value, id.negated),
        Match::SocketExists { negated } => encode_owner(OWNER_SOCKET, 0, 0, *negated),
        Match::Mark(mark) => encode_mark("mark", mark),
        Match::ConnMark(mark) => encode_mark("connmark", mark),
        Match::CtState(states) => {
            let info = info.up_to(CONNTRACK_FLAGS).u16(CONNTRACK_STATE).up_to(CONNTRACK_STATES);
            ("conntrack", 3, info.u16(state_mask(*states)).up_to(CONNTRACK_SIZE).into_aligned_bytes())
        }
        Match::Set { name, side, negated } => {
            // struct xt_set_info_match_v4: index, dim, flags; then counters and flags that are not compared
            let source = if *side == AddressSide::Source { SET_SOURCE } else { 0 };
            let inverted = if *negated { SET_INVERTED } else { 0 };
            let info = info.u16(sets.number_by_name(name)?).u8(1).u8(source | inverted);
            ("set", 4, info.up_to(SET_SIZE).into_aligned_bytes())
        }
    })
}

/// Decodes a match as a condition.
pub(crate) fn decode_match(
    name: &str,
    revision: u32,
    info: &[u8],
    proto: Option<TransportProtocol>,
    sets: &mut dyn SetNumbers,
) -> Option<Match> {
    let mut fields = Fields(info);
    match (name, revision) {
        ("tcp", 0) if proto == Some(TransportProtocol::Tcp) => {
            let ports = std::array::from_fn(|_| fields.read_u16());
            let [option, flags, compared, inverted] = fields.read_array();
            (option == 0 && flags == 0 && compared == 0).then(|| decode_port(ports, inverted, &fields))?
        }
        ("udp", 0) if proto == Some(TransportProtocol::Udp) => {
            let ports = std::array::from_fn(|_| fields.read_u16());
            let [inverted] = fields.read_array();
            decode_port(ports, inverted, &fields)
        }
        ("multiport", 1) => {
            let (flags, count) = (fields.read_u8(), usize::from(fields.read_u8()));
            let ports: [Port; 15] = std::array::from_fn(|_| Port(fields.read_u16()));
            let ranges: [u8; 15] = fields.read_array();
            let negated = decode_flag(fields.read_u8())?;
            let value = ports.get(..count).filter(|_| flags == 1 && ranges == [0; 15])?.to_vec();
            fields.finish_with(Match::DestPorts(MatchValue { negated, value }))
        }
        ("owner", 1) => {
            let [uid, uid_max, gid, gid_max] = std::array::from_fn(|_| fields.read_u32());
            let (what, inverted) = (fields.read_u8(), fields.read_u8());
            let negated = inverted == what;
            let condition = match what {
                _ if inverted != 0 && !negated => None,
                OWNER_UID if uid == uid_max => Some(Match::Uid(MatchValue { negated, value: uid })),
                OWNER_GID if gid == gid_max => Some(Match::Gid(MatchValue { negated, value: gid })),
                OWNER_SOCKET => Some(Match::SocketExists { negated }),
                _ => None,
            };
            fields.finish_with(condition?)
        }
        ("mark", 1) | ("connmark", 1) => {
            let value = fields.read_mark();
            let mark = MatchValue { negated: decode_flag(fields.read_u8())?, value };
            fields.finish_with(if name == "mark" { Match::Mark(mark) } else { Match::ConnMark(mark) })
        }
        ("conntrack", 3) => {
            let condition = Match::CtState(decode_states(u16::from_ne_bytes(
                *info.get(CONNTRACK_STATES..)?.first_chunk()?,
            ))?);
            // No further condition is set.
            (encode_match(&condition, None, sets)?.2 == with_zeros(info, CONNTRACK_SIZE)).then_some(condition)
        }
        ("set", 4) => {
            let (number, dimensions, flags) = (fields.read_u16(), fields.read_u8(), fields.read_u8());
            let side = if flags & SET_SOURCE == 0 { AddressSide::Dest } else { AddressSide::Source };
            let negated = flags & SET_INVERTED != 0;
            if dimensions != 1 || flags & !(SET_SOURCE | SET_INVERTED) != 0 {
                return None;
            }
            let name = Cow::Owned(sets.name_by_number(number)?);
            fields.finish_with(Match::Set { name, side, negated })
        }
        _ => None,
    }
}

/// `struct xt_tcp` (spts, dpts, option, flg_mask, flg_cmp, invflags), or `struct xt_udp`, which has no options and flags.
fn encode_ports(proto: TransportProtocol, source_and_dest: [[u16; 2]; 2], inverted: u8) -> XtInfo {
    let info = source_and_dest.into_iter().flatten().fold(Layout::default(), Layout::u16);
    match proto {
        TransportProtocol::Tcp => ("tcp", 0, info.zeros(3).u8(inverted).into_aligned_bytes()),
        TransportProtocol::Udp => ("udp", 0, info.u8(inverted).into_aligned_bytes()),
    }
}

/// `struct xt_mark_mtinfo1`, and `struct xt_connmark_mtinfo1`: mark, mask, invert.
fn encode_mark(name: &'static str, mark: &MatchValue<Mark>) -> XtInfo {
    (name, 1, Layout::default().mark(&mark.value).u8(mark.negated.into()).into_aligned_bytes())
}

fn decode_port(ports: [u16; 4], inverted: u8, rest: &Fields<'_>) -> Option<Match> {
    let condition = match (ports, inverted) {
        ([0, u16::MAX, low, high], 0 | 2) if low == high => {
            Match::DestPort(MatchValue { negated: inverted == 2, value: Port(low) })
        }
        ([0, u16::MAX, low, high], 0) => Match::DestPortRange(PortRange::new(Port(low), Port(high))?),
        ([low, high, 0, u16::MAX], 0 | 1) if low == high => {
            Match::SourcePort(MatchValue { negated: inverted == 1, value: Port(low) })
        }
        _ => return None,
    };
    rest.finish_with(condition)
}

/// `struct xt_owner_match_info`: lowest and highest user and group, which of them are compared, and which are inverted.
fn encode_owner(what: u8, uid: u32, gid: u32, negated: bool) -> XtInfo {
    let info = Layout::default().u32(uid).u32(uid).u32(gid).u32(gid);
    ("owner", 1, info.u8(what).u8(if negated { what } else { 0 }).into_aligned_bytes())
}

/// `XT_CONNTRACK_STATE_*`, and the bits of the expression `ct state`: `NF_CT_STATE_BIT` of `enum ip_conntrack_info`.
pub(crate) fn state_mask(states: CtStates) -> u16 {
    match states {
        CtStates::Invalid => 1,
        CtStates::RelatedEstablished => 6,
        CtStates::New => 8,
    }
}

fn decode_states(mask: u16) -> Option<CtStates> {
    CtStates::ALL.into_iter().find(|states| state_mask(*states) == mask)
}

fn decode_flag(byte: u8) -> Option<bool> {
    match byte {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

fn with_zeros(info: &[u8], length: usize) -> Vec<u8> {
    Layout::default().bytes(info.get(..length).unwrap_or(info)).up_to(length).into_aligned_bytes()
}
