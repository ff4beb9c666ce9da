//! Targets: verdicts on packets.

use std::{
    borrow::Cow,
    net::{IpAddr, Ipv4Addr},
};

use model::{Family, Mark, Port};
use rules::Target;

use super::{
    XtInfo,
    layout::{Fields, Layout},
};

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

/// Encodes a verdict as a target; `None` if it needs no x_tables target.
pub(crate) fn encode_target(target: &Target, family: Family) -> Option<XtInfo> {
    let info = Layout::default();
    Some(match target {
        Target::Redirect(port) => {
            let info =
                range_v4_or_v6(family, RANGE_PORTS, family.unspecified_address()).be16(port.0).be16(port.0);
            ("REDIRECT", 0, info.into_aligned_bytes())
        }
        Target::Dnat { ip, port } => {
            // struct nf_nat_range2: flags, lowest and highest address, lowest, highest and base port
            let info = info.u32(RANGE_ADDRESSES | RANGE_PORTS).address(*ip).address(*ip);
            ("DNAT", 2, info.be16(port.0).be16(port.0).be16(0).into_aligned_bytes())
        }
        Target::Snat(ip) => {
            let info = range_v4_or_v6(family, RANGE_ADDRESSES, *ip).be16(0).be16(0);
            ("SNAT", u32::from(family == Family::V6), info.into_aligned_bytes())
        }
        Target::Tproxy { port, mark } => {
            // struct xt_tproxy_target_info_v1: mark_mask, mark_value, laddr, lport
            let info = info.u32(mark.mask).u32(mark.value).zeros(16).be16(port.0);
            ("TPROXY", 1, info.into_aligned_bytes())
        }
        // struct xt_mark_tginfo2: mark, mask
        Target::SetMark(mark) => ("MARK", 2, info.mark(mark).into_aligned_bytes()),
        Target::SetConnMark(mark) => encode_connmark(*mark, u32::MAX, CONNMARK_SET),
        Target::SaveMark => encode_connmark(Mark::with_full_mask(0), u32::MAX, CONNMARK_SAVE),
        Target::RestoreMark(mask) => encode_connmark(Mark { value: 0, mask: *mask }, *mask, CONNMARK_RESTORE),
        Target::CtZone(zone) => {
            // struct xt_ct_target_info_v1: flags, zone, ct_events, exp_events, helper[16], timeout[32], ct
            ("CT", 2, info.u16(0).u16(*zone).zeros(68).into_aligned_bytes())
        }
        Target::Nflog { prefix, group, size } => {
            // struct xt_nflog_info: len, group, threshold, flags, pad, prefix[64]
            let info = info.u32(*size).u16(*group).u16(0).u16(NFLOG_COPY_LENGTH).u16(0);
            let length = prefix.len().min(NFLOG_PREFIX - 1);
            let prefix = prefix.as_bytes().get(..length).unwrap_or_default();
            ("NFLOG", 0, info.bytes(prefix).up_to(12 + NFLOG_PREFIX).into_aligned_bytes())
        }
        Target::Return | Target::Accept | Target::Drop | Target::Jump(_) | Target::Goto(_) => return None,
    })
}

/// Decodes a target as a verdict.
pub(crate) fn decode_target(name: &str, revision: u32, info: &[u8], family: Family) -> Option<Target> {
    let mut fields = Fields(info);
    match (name, revision) {
        ("REDIRECT", 0) => {
            let (flags, _) = read_range(&mut fields, family)?;
            let (port, highest) = (fields.read_be16(), fields.read_be16());
            let is_one = flags == RANGE_PORTS && port == highest;
            is_one.then(|| fields.finish_with(Target::Redirect(Port(port))))?
        }
        ("SNAT", 0 | 1) => {
            let (flags, ip) = read_range(&mut fields, family)?;
            (flags == RANGE_ADDRESSES).then(|| fields.finish_with(Target::Snat(ip)))?
        }
        ("DNAT", 2) => {
            let flags = fields.read_u32();
            let (ip, highest) = (fields.read_address(family)?, fields.read_address(family)?);
            decode_dnat(flags, [ip, highest], &mut fields)
        }
        ("DNAT", 0 | 1) => {
            let (flags, ip) = read_range(&mut fields, family)?;
            decode_dnat(flags, [ip; 2], &mut fields)
        }
        ("TPROXY", 1) => {
            let (mask, value) = (fields.read_u32(), fields.read_u32());
            let address: [u8; 16] = fields.read_array();
            let port = Port(fields.read_be16());
            let target = Target::Tproxy { port, mark: Mark { value, mask } };
            (address == [0; 16]).then(|| fields.finish_with(target))?
        }
        ("MARK", 2) => {
            let mark = fields.read_mark();
            fields.finish_with(Target::SetMark(mark))
        }
        ("CONNMARK", 1 | 2) => {
            let (mark, mask) = (fields.read_mark(), fields.read_u32());
            let mode = if revision == 1 {
                fields.read_u8()
            } else {
                u16::from_be_bytes(fields.read_array()).eq(&0).then(|| fields.read_u8())?
            };
            let target = match mode {
                CONNMARK_SET if mask == u32::MAX => Target::SetConnMark(mark),
                CONNMARK_SAVE if mark == Mark::with_full_mask(0) && mask == u32::MAX => Target::SaveMark,
                CONNMARK_RESTORE if mark.value == 0 && mark.mask == mask => Target::RestoreMark(mask),
                _ => return None,
            };
            fields.finish_with(target)
        }
        ("CT", 1 | 2) => {
            let (flags, zone) = (fields.read_u16(), fields.read_u16());
            let rest: [u8; 56] = fields.read_array(); // followed by a pointer of the kernel
            (flags == 0 && rest == [0; 56]).then_some(Target::CtZone(zone))
        }
        ("NFLOG", 0) => {
            let (size, group) = (fields.read_u32(), fields.read_u16());
            let rest = [fields.read_u16(), fields.read_u16(), fields.read_u16()];
            let text: [u8; NFLOG_PREFIX] = fields.read_array();
            let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
            let prefix = Cow::Owned(std::str::from_utf8(text).ok()?.to_owned());
            (rest == [0, NFLOG_COPY_LENGTH, 0])
                .then(|| fields.finish_with(Target::Nflog { prefix, group, size }))?
        }
        _ => None,
    }
}

/// `struct nf_nat_ipv4_multi_range_compat` with one range, or `struct nf_nat_range`: the fields before the ports.
fn range_v4_or_v6(family: Family, flags: u32, ip: IpAddr) -> Layout {
    let info = Layout::default();
    match (family, ip) {
        (Family::V4, IpAddr::V4(ip)) => info.u32(1).u32(flags).bytes(&ip.octets()).bytes(&ip.octets()),
        _ => info.u32(flags).address(ip).address(ip),
    }
}

/// Reads the flags and the single address of such a structure.
fn read_range(fields: &mut Fields<'_>, family: Family) -> Option<(u32, IpAddr)> {
    let (flags, lowest, highest) = match family {
        Family::V4 => {
            let (count, flags) = (fields.read_u32(), fields.read_u32());
            let mut ip = || IpAddr::V4(Ipv4Addr::from(fields.read_array::<4>()));
            let addresses = (ip(), ip());
            (Some(flags).filter(|_| count == 1)?, addresses.0, addresses.1)
        }
        Family::V6 => (fields.read_u32(), fields.read_address(family)?, fields.read_address(family)?),
    };
    (lowest == highest).then_some((flags, lowest))
}

fn decode_dnat(flags: u32, [ip, highest_ip]: [IpAddr; 2], fields: &mut Fields<'_>) -> Option<Target> {
    let (port, highest) = (fields.read_be16(), fields.read_be16());
    let is_one = flags == RANGE_ADDRESSES | RANGE_PORTS && ip == highest_ip && port == highest;
    is_one.then(|| fields.finish_with(Target::Dnat { ip, port: Port(port) }))?
}

/// `struct xt_connmark_tginfo2`, since Linux 4.17: ctmark, ctmask, nfmask, shift_dir, shift_bits, mode. (iptables reads
/// every structure as the newest revision that tool and kernel support: an older one would be misread.)
fn encode_connmark(mark: Mark, mask: u32, mode: u8) -> XtInfo {
    ("CONNMARK", 2, Layout::default().mark(&mark).u32(mask).u16(0).u8(mode).into_aligned_bytes())
}
