//! Matches and targets of x_tables, as the kernel's structures lay them out (`include/uapi/linux/netfilter/xt_*.h`).
//!
//! Numbers are in host byte order unless a comment says otherwise. A structure is followed by zeros up to a multiple of
//! eight bytes (`XT_ALIGN`); the kernel may leave out pointers of its own at the end when it shows one.

use std::{
    borrow::Cow,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use model::{Family, Mark, Port};
use rules::{AddressSide, CtStates, Match, MatchValue, Target, TransportProtocol};

use crate::sets::SetNumbers;

/// A match or target: its name, its revision, and its structure.
pub(crate) type XtInfo = (&'static str, u32, Vec<u8>);

/// `enum` of `xt_owner.h`.
const OWNER_UID: u8 = 1;
const OWNER_GID: u8 = 2;
const OWNER_SOCKET: u8 = 4;
/// `XT_CONNTRACK_STATE`, and where `struct xt_conntrack_mtinfo3` has its `match_flags` and `state_mask`.
const CONNTRACK_STATE: u16 = 1;
const CONNTRACK_FLAGS: usize = 146;
const CONNTRACK_STATES: usize = 150;
const CONNTRACK_SIZE: usize = 164;
/// `IPSET_INV_MATCH`, and `IPSET_DIM_ONE_SRC`; the size of `struct xt_set_info_match_v4`.
const SET_INVERTED: u8 = 1;
const SET_SOURCE: u8 = 2;
const SET_SIZE: usize = 44;
/// `NF_NAT_RANGE_*`.
const RANGE_ADDRESSES: u32 = 1;
const RANGE_PORTS: u32 = 2;
/// `XT_CONNMARK_*`: modes of the target.
const CONNMARK_SET: u8 = 0;
const CONNMARK_SAVE: u8 = 1;
const CONNMARK_RESTORE: u8 = 2;
/// `XT_NFLOG_F_COPY_LEN`, and the size of a prefix.
const NFLOG_COPY_LENGTH: u16 = 1;
const NFLOG_PREFIX: usize = 64;

/// The structure in the making.
#[derive(Default)]
struct Layout(Vec<u8>);

impl Layout {
    fn u8(mut self, value: u8) -> Layout {
        self.0.push(value);
        self
    }

    fn u16(self, value: u16) -> Layout {
        self.bytes(&value.to_ne_bytes())
    }

    fn be16(self, value: u16) -> Layout {
        self.bytes(&value.to_be_bytes())
    }

    fn u32(self, value: u32) -> Layout {
        self.bytes(&value.to_ne_bytes())
    }

    fn bytes(mut self, value: &[u8]) -> Layout {
        self.0.extend_from_slice(value);
        self
    }

    fn mark(self, mark: &Mark) -> Layout {
        self.u32(mark.value).u32(mark.mask)
    }

    /// `union nf_inet_addr`.
    fn address(self, ip: IpAddr) -> Layout {
        match ip {
            IpAddr::V4(ip) => self.bytes(&ip.octets()).zeros(12),
            IpAddr::V6(ip) => self.bytes(&ip.octets()),
        }
    }

    fn zeros(mut self, count: usize) -> Layout {
        self.0.resize(self.0.len() + count, 0);
        self
    }

    /// Zeros up to this offset.
    fn up_to(mut self, offset: usize) -> Layout {
        self.0.resize(offset, 0);
        self
    }

    fn aligned(mut self) -> Vec<u8> {
        let length = self.0.len().next_multiple_of(8);
        self.0.resize(length, 0);
        self.0
    }
}

/// A structure of the kernel's, read from its beginning. What it lacks at its end counts as zeros.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut value = [0; N];
        let (front, rest) = self.0.split_at(self.0.len().min(N));
        value.iter_mut().zip(front).for_each(|(into, from)| *into = *from);
        self.0 = rest;
        value
    }

    fn u8(&mut self) -> u8 {
        u8::from_ne_bytes(self.array())
    }

    fn u16(&mut self) -> u16 {
        u16::from_ne_bytes(self.array())
    }

    fn be16(&mut self) -> u16 {
        u16::from_be_bytes(self.array())
    }

    fn u32(&mut self) -> u32 {
        u32::from_ne_bytes(self.array())
    }

    fn mark(&mut self) -> Mark {
        let value = self.u32();
        Mark { value, mask: self.u32() }
    }

    fn ip(&mut self, family: Family) -> Option<IpAddr> {
        match family {
            Family::V4 => {
                let ip = Ipv4Addr::from(self.array::<4>());
                (self.array::<12>() == [0; 12]).then_some(IpAddr::V4(ip))
            }
            Family::V6 => Some(IpAddr::V6(Ipv6Addr::from(self.array::<16>()))),
        }
    }

    /// Nothing but zeros follows.
    fn end<T>(&self, value: T) -> Option<T> {
        self.0.iter().all(|byte| *byte == 0).then_some(value)
    }
}

/// Condition as a match; none if it cannot be expressed: a port without its protocol, or a set that does not exist.
pub(crate) fn encode_match(
    condition: &Match,
    proto: Option<TransportProtocol>,
    sets: &mut dyn SetNumbers,
) -> Option<XtInfo> {
    let info = Layout::default();
    Some(match condition {
        Match::SourcePort(port) => ports(proto?, Some(port), None),
        Match::DestPort(port) => ports(proto?, None, Some(port)),
        Match::DestPorts(list) => {
            // struct xt_multiport_v1: flags, count, ports[15], pflags[15], invert
            let info = info.u8(1).u8(u8::try_from(list.value.len()).ok().filter(|count| *count <= 15)?);
            let info = list.value.iter().fold(info, |info, port| info.u16(port.0));
            ("multiport", 1, info.up_to(47).u8(list.negated.into()).aligned())
        }
        Match::Uid(id) => owner(OWNER_UID, id.value, 0, id.negated),
        Match::Gid(id) => owner(OWNER_GID, 0, id.value, id.negated),
        Match::SocketExists { negated } => owner(OWNER_SOCKET, 0, 0, *negated),
        // struct xt_mark_mtinfo1, and struct xt_connmark_mtinfo1: mark, mask, invert
        Match::Mark(mark) => ("mark", 1, info.mark(&mark.value).u8(mark.negated.into()).aligned()),
        Match::ConnMark(mark) => ("connmark", 1, info.mark(&mark.value).u8(mark.negated.into()).aligned()),
        Match::CtState(states) => {
            let info = info.up_to(CONNTRACK_FLAGS).u16(CONNTRACK_STATE).up_to(CONNTRACK_STATES);
            ("conntrack", 3, info.u16(state_mask(*states)).up_to(CONNTRACK_SIZE).aligned())
        }
        Match::Set { name, side, negated } => {
            // struct xt_set_info_match_v4: index, dim, flags; counters and flags that are not compared
            let source = if *side == AddressSide::Source { SET_SOURCE } else { 0 };
            let inverted = if *negated { SET_INVERTED } else { 0 };
            let info = info.u16(sets.number(name)?).u8(1).u8(source | inverted);
            ("set", 4, info.up_to(SET_SIZE).aligned())
        }
    })
}

/// A match as a condition.
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
            let ports = [fields.u16(), fields.u16(), fields.u16(), fields.u16()];
            let [option, flags, compared, inverted] = fields.array();
            (option == 0 && flags == 0 && compared == 0).then(|| port(ports, inverted, &fields))?
        }
        ("udp", 0) if proto == Some(TransportProtocol::Udp) => {
            let ports = [fields.u16(), fields.u16(), fields.u16(), fields.u16()];
            let [inverted] = fields.array();
            port(ports, inverted, &fields)
        }
        ("multiport", 1) => {
            let (flags, count) = (fields.u8(), usize::from(fields.u8()));
            let ports: [Port; 15] = std::array::from_fn(|_| Port(fields.u16()));
            let ranges: [u8; 15] = fields.array();
            let negated = flag(fields.u8())?;
            let value = ports.get(..count).filter(|_| flags == 1 && ranges == [0; 15])?.to_vec();
            fields.end(Match::DestPorts(MatchValue { negated, value }))
        }
        ("owner", 1) => {
            let [uid, uid_max, gid, gid_max] = [fields.u32(), fields.u32(), fields.u32(), fields.u32()];
            let (what, inverted) = (fields.u8(), fields.u8());
            let negated = inverted == what;
            let condition = match what {
                _ if inverted != 0 && !negated => None,
                OWNER_UID if uid == uid_max => Some(Match::Uid(MatchValue { negated, value: uid })),
                OWNER_GID if gid == gid_max => Some(Match::Gid(MatchValue { negated, value: gid })),
                OWNER_SOCKET => Some(Match::SocketExists { negated }),
                _ => None,
            };
            fields.end(condition?)
        }
        ("mark", 1) | ("connmark", 1) => {
            let value = fields.mark();
            let mark = MatchValue { negated: flag(fields.u8())?, value };
            fields.end(if name == "mark" { Match::Mark(mark) } else { Match::ConnMark(mark) })
        }
        ("conntrack", 3) => {
            let condition =
                Match::CtState(states_of(u16::from_ne_bytes(*info.get(CONNTRACK_STATES..)?.first_chunk()?))?);
            // Nothing else is asked for.
            (encode_match(&condition, None, sets)?.2 == with_zeros(info, CONNTRACK_SIZE)).then_some(condition)
        }
        ("set", 4) => {
            let (number, dimensions, flags) = (fields.u16(), fields.u8(), fields.u8());
            let side = if flags & SET_SOURCE == 0 { AddressSide::Dest } else { AddressSide::Source };
            let negated = flags & SET_INVERTED != 0;
            if dimensions != 1 || flags & !(SET_SOURCE | SET_INVERTED) != 0 {
                return None;
            }
            let name = Cow::Owned(sets.name(number)?);
            fields.end(Match::Set { name, side, negated })
        }
        _ => None,
    }
}

/// Verdict as a target; none if it is not a matter of x_tables.
pub(crate) fn encode_target(target: &Target, family: Family) -> Option<XtInfo> {
    let info = Layout::default();
    Some(match target {
        Target::Redirect(port) => {
            let info = range_v4_or_v6(family, RANGE_PORTS, family.unspecified()).be16(port.0).be16(port.0);
            ("REDIRECT", 0, info.aligned())
        }
        Target::Dnat { ip, port } => {
            // struct nf_nat_range2: flags, lowest and highest address, lowest, highest and base port
            let info = info.u32(RANGE_ADDRESSES | RANGE_PORTS).address(*ip).address(*ip);
            ("DNAT", 2, info.be16(port.0).be16(port.0).be16(0).aligned())
        }
        Target::Snat(ip) => {
            let info = range_v4_or_v6(family, RANGE_ADDRESSES, *ip).be16(0).be16(0);
            ("SNAT", u32::from(family == Family::V6), info.aligned())
        }
        Target::Tproxy { port, mark } => {
            // struct xt_tproxy_target_info_v1: mark_mask, mark_value, laddr, lport
            let info = info.u32(mark.mask).u32(mark.value).zeros(16).be16(port.0);
            ("TPROXY", 1, info.aligned())
        }
        // struct xt_mark_tginfo2: mark, mask
        Target::SetMark(mark) => ("MARK", 2, info.mark(mark).aligned()),
        Target::SetConnMark(mark) => connmark(*mark, u32::MAX, CONNMARK_SET),
        Target::SaveMark => connmark(Mark::exact(0), u32::MAX, CONNMARK_SAVE),
        Target::RestoreMark(mask) => connmark(Mark { value: 0, mask: *mask }, *mask, CONNMARK_RESTORE),
        Target::CtZone(zone) => {
            // struct xt_ct_target_info_v1: flags, zone, ct_events, exp_events, helper[16], timeout[32], ct
            ("CT", 2, info.u16(0).u16(*zone).zeros(68).aligned())
        }
        Target::Nflog { prefix, group, size } => {
            // struct xt_nflog_info: len, group, threshold, flags, pad, prefix[64]
            let info = info.u32(*size).u16(*group).u16(0).u16(NFLOG_COPY_LENGTH).u16(0);
            let length = prefix.len().min(NFLOG_PREFIX - 1);
            let prefix = prefix.as_bytes().get(..length).unwrap_or_default();
            ("NFLOG", 0, info.bytes(prefix).up_to(12 + NFLOG_PREFIX).aligned())
        }
        Target::Return | Target::Accept | Target::Drop | Target::Jump(_) | Target::Goto(_) => return None,
    })
}

/// A target as a verdict.
pub(crate) fn decode_target(name: &str, revision: u32, info: &[u8], family: Family) -> Option<Target> {
    let mut fields = Fields(info);
    match (name, revision) {
        ("REDIRECT", 0) => {
            let (flags, _) = range(&mut fields, family)?;
            let (port, highest) = (fields.be16(), fields.be16());
            let is_one = flags == RANGE_PORTS && port == highest;
            is_one.then(|| fields.end(Target::Redirect(Port(port))))?
        }
        ("SNAT", 0 | 1) => {
            let (flags, ip) = range(&mut fields, family)?;
            (flags == RANGE_ADDRESSES).then(|| fields.end(Target::Snat(ip)))?
        }
        ("DNAT", 2) => {
            let flags = fields.u32();
            let (ip, highest) = (fields.ip(family)?, fields.ip(family)?);
            dnat(flags, [ip, highest], &mut fields)
        }
        ("DNAT", 0 | 1) => {
            let (flags, ip) = range(&mut fields, family)?;
            dnat(flags, [ip; 2], &mut fields)
        }
        ("TPROXY", 1) => {
            let (mask, value) = (fields.u32(), fields.u32());
            let address: [u8; 16] = fields.array();
            let port = Port(fields.be16());
            let target = Target::Tproxy { port, mark: Mark { value, mask } };
            (address == [0; 16]).then(|| fields.end(target))?
        }
        ("MARK", 2) => {
            let mark = fields.mark();
            fields.end(Target::SetMark(mark))
        }
        ("CONNMARK", 1 | 2) => {
            let (mark, mask) = (fields.mark(), fields.u32());
            let mode = if revision == 1 {
                fields.u8()
            } else {
                u16::from_be_bytes(fields.array()).eq(&0).then(|| fields.u8())?
            };
            let target = match mode {
                CONNMARK_SET if mask == u32::MAX => Target::SetConnMark(mark),
                CONNMARK_SAVE if mark == Mark::exact(0) && mask == u32::MAX => Target::SaveMark,
                CONNMARK_RESTORE if mark.value == 0 && mark.mask == mask => Target::RestoreMark(mask),
                _ => return None,
            };
            fields.end(target)
        }
        ("CT", 1 | 2) => {
            let (flags, zone) = (fields.u16(), fields.u16());
            let rest: [u8; 56] = fields.array(); // what follows is a pointer of the kernel's
            (flags == 0 && rest == [0; 56]).then_some(Target::CtZone(zone))
        }
        ("NFLOG", 0) => {
            let (size, group) = (fields.u32(), fields.u16());
            let rest = [fields.u16(), fields.u16(), fields.u16()];
            let text: [u8; NFLOG_PREFIX] = fields.array();
            let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
            let prefix = Cow::Owned(std::str::from_utf8(text).ok()?.to_owned());
            (rest == [0, NFLOG_COPY_LENGTH, 0]).then(|| fields.end(Target::Nflog { prefix, group, size }))?
        }
        _ => None,
    }
}

/// `struct xt_tcp` (spts, dpts, option, flg_mask, flg_cmp, invflags), or `struct xt_udp`, which has no options and flags.
fn ports(
    proto: TransportProtocol,
    source: Option<&MatchValue<Port>>,
    dest: Option<&MatchValue<Port>>,
) -> XtInfo {
    let range = |port: Option<&MatchValue<Port>>| port.map_or([0, u16::MAX], |port| [port.value.0; 2]);
    let is_negated = |port: Option<&MatchValue<Port>>| u8::from(port.is_some_and(|port| port.negated));
    let info = range(source).into_iter().chain(range(dest)).fold(Layout::default(), Layout::u16);
    let inverted = is_negated(source) | is_negated(dest) << 1;
    match proto {
        TransportProtocol::Tcp => ("tcp", 0, info.zeros(3).u8(inverted).aligned()),
        TransportProtocol::Udp => ("udp", 0, info.u8(inverted).aligned()),
    }
}

fn port(ports: [u16; 4], inverted: u8, rest: &Fields<'_>) -> Option<Match> {
    let condition = match (ports, inverted) {
        ([0, u16::MAX, low, high], 0 | 2) if low == high => {
            Match::DestPort(MatchValue { negated: inverted == 2, value: Port(low) })
        }
        ([low, high, 0, u16::MAX], 0 | 1) if low == high => {
            Match::SourcePort(MatchValue { negated: inverted == 1, value: Port(low) })
        }
        _ => return None,
    };
    rest.end(condition)
}

/// `struct xt_owner_match_info`: lowest and highest user and group, what is compared, and what of it is inverted.
fn owner(what: u8, uid: u32, gid: u32, negated: bool) -> XtInfo {
    let info = Layout::default().u32(uid).u32(uid).u32(gid).u32(gid);
    ("owner", 1, info.u8(what).u8(if negated { what } else { 0 }).aligned())
}

/// `XT_CONNTRACK_STATE_*`.
fn state_mask(states: CtStates) -> u16 {
    match states {
        CtStates::Invalid => 1,
        CtStates::RelatedEstablished => 6,
        CtStates::New => 8,
    }
}

fn states_of(mask: u16) -> Option<CtStates> {
    CtStates::ALL.into_iter().find(|states| state_mask(*states) == mask)
}

/// `struct nf_nat_ipv4_multi_range_compat` of one range, or `struct nf_nat_range`: what precedes the ports.
fn range_v4_or_v6(family: Family, flags: u32, ip: IpAddr) -> Layout {
    let info = Layout::default();
    match (family, ip) {
        (Family::V4, IpAddr::V4(ip)) => info.u32(1).u32(flags).bytes(&ip.octets()).bytes(&ip.octets()),
        _ => info.u32(flags).address(ip).address(ip),
    }
}

/// Flags and the one address of such.
fn range(fields: &mut Fields<'_>, family: Family) -> Option<(u32, IpAddr)> {
    let (flags, lowest, highest) = match family {
        Family::V4 => {
            let (count, flags) = (fields.u32(), fields.u32());
            let mut ip = || IpAddr::V4(Ipv4Addr::from(fields.array::<4>()));
            let addresses = (ip(), ip());
            (Some(flags).filter(|_| count == 1)?, addresses.0, addresses.1)
        }
        Family::V6 => (fields.u32(), fields.ip(family)?, fields.ip(family)?),
    };
    (lowest == highest).then_some((flags, lowest))
}

fn dnat(flags: u32, [ip, highest_ip]: [IpAddr; 2], fields: &mut Fields<'_>) -> Option<Target> {
    let (port, highest) = (fields.be16(), fields.be16());
    let is_one = flags == RANGE_ADDRESSES | RANGE_PORTS && ip == highest_ip && port == highest;
    is_one.then(|| fields.end(Target::Dnat { ip, port: Port(port) }))?
}

/// `struct xt_connmark_tginfo2`, since Linux 4.17: ctmark, ctmask, nfmask, shift_dir, shift_bits, mode. (iptables reads every
/// structure as the newest that tool and kernel know, whatever its revision: an older one would be misread.)
fn connmark(mark: Mark, mask: u32, mode: u8) -> XtInfo {
    ("CONNMARK", 2, Layout::default().mark(&mark).u32(mask).u16(0).u8(mode).aligned())
}

fn flag(byte: u8) -> Option<bool> {
    match byte {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

fn with_zeros(info: &[u8], length: usize) -> Vec<u8> {
    Layout::default().bytes(info.get(..length).unwrap_or(info)).up_to(length).aligned()
}
