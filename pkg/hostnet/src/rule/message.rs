//! Policy rules on the wire: `struct fib_rule_hdr` and its attributes.

use netlink::{Attribute, Malformed, MessageFlags, NetlinkRequest, ReceivedMessage};

use super::{PolicyRule, RuleAction};
use crate::Mark;
use crate::wire;
use crate::{Family, IpNet, IpProtocol, RouteProtocol, TableId};

const RTM_NEWRULE: u16 = 32;
const RTM_DELRULE: u16 = 33;
const RTM_GETRULE: u16 = 34;

const FRA_DST: u16 = 1;
const FRA_SRC: u16 = 2;
const FRA_IIFNAME: u16 = 3;
const FRA_GOTO: u16 = 4;
const FRA_PRIORITY: u16 = 6;
const FRA_FWMARK: u16 = 10;
const FRA_SUPPRESS_IFGROUP: u16 = 13;
const FRA_SUPPRESS_PREFIXLEN: u16 = 14;
const FRA_TABLE: u16 = 15;
const FRA_FWMASK: u16 = 16;
const FRA_PAD: u16 = 18;
const FRA_PROTOCOL: u16 = 21;
const FRA_IP_PROTO: u16 = 22;
const FRA_SPORT_RANGE: u16 = 23;
const FRA_DPORT_RANGE: u16 = 24;

/// `FIB_RULE_INVERT`: matches packets that do *not* meet the conditions.
const INVERTED: u32 = 0x2;

pub(super) fn list_request(family: Family) -> NetlinkRequest {
    let header = [family.address_family(), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    NetlinkRequest::new(RTM_GETRULE, MessageFlags::NONE, &header)
}

pub(crate) fn add_request(rule: &PolicyRule, flags: MessageFlags) -> NetlinkRequest {
    change_request(RTM_NEWRULE, flags, rule)
}

pub(super) fn delete_request(rule: &PolicyRule) -> NetlinkRequest {
    change_request(RTM_DELRULE, MessageFlags::NONE, rule)
}

fn change_request(kind: u16, flags: MessageFlags, rule: &PolicyRule) -> NetlinkRequest {
    let (table, target) = match rule.action {
        RuleAction::Lookup(table) => (table.0, None),
        RuleAction::Goto(priority) => (0, Some(priority)),
        _ => (0, None),
    };
    // family, dst_len, src_len, tos, table, two reserved, action, flags
    let family = rule.family.address_family();
    let action = action_number(rule.action);
    let dst_len = rule.dest.map_or(0, |net| net.prefix_len());
    let header = [family, dst_len, 0, 0, wire::header_table(table), 0, 0, action, 0, 0, 0, 0];
    let mut message = NetlinkRequest::new(kind, flags, &header);
    let numbers = [
        (FRA_PRIORITY, rule.priority),
        // Without a mask the kernel assumes 0xffffffff.
        (FRA_FWMARK, rule.fwmark.map(|mark| mark.value)),
        (FRA_FWMASK, rule.fwmark.map(|mark| mark.mask)),
        (FRA_TABLE, (table != 0).then_some(table)),
        (FRA_GOTO, target),
    ];
    for (kind, number) in numbers {
        if let Some(number) = number {
            message.put_u32(kind, number);
        }
    }
    if let Some(iif) = &rule.iif {
        message.put_str(FRA_IIFNAME, iif);
    }
    if let Some(dest) = rule.dest {
        wire::put_ip(&mut message, FRA_DST, dest.addr());
    }
    if rule.protocol != RouteProtocol::ANY {
        message.put_u8(FRA_PROTOCOL, rule.protocol.0);
    }
    if let Some(protocol) = rule.ip_proto {
        message.put_u8(FRA_IP_PROTO, protocol.0);
    }
    message
}

/// A rule while its attributes are read, with those that need others.
struct RuleParts {
    rule: PolicyRule,
    /// Prefix lengths in the header: of the destination, and of the source.
    lengths: [u8; 2],
    mark: Option<u32>,
    mask: Option<u32>,
    table: u32,
    target: Option<u32>,
}

/// Reads a rule of a dump; `None` for other messages and families.
pub(crate) fn parse(reply: &ReceivedMessage<'_>) -> Result<Option<PolicyRule>, Malformed> {
    let Some((header, attributes)) = reply.split_kind::<12>(RTM_NEWRULE)? else { return Ok(None) };
    let [family, dst_len, src_len, tos, table, _, _, action, f0, f1, f2, f3] = *header;
    let Some(family) = Family::from_address_family(family) else { return Ok(None) };
    let rule = PolicyRule::new(family, Some(0), RuleAction::Nop);
    let (lengths, table) = ([dst_len, src_len], u32::from(table));
    let mut parts = RuleParts { rule, lengths, mark: None, mask: None, table, target: None };
    for attribute in attributes {
        parts.read_attribute(&attribute?)?;
    }
    let (fwmark, action) = (parts.fwmark(), action_from(action, TableId(parts.table), parts.target));
    let mut rule = PolicyRule { fwmark, action, ..parts.rule };
    rule.other.inverted = u32::from_ne_bytes([f0, f1, f2, f3]) & INVERTED != 0;
    rule.unmodelled |= rule.other.inverted || src_len != 0 || tos != 0;
    if (dst_len != 0 && rule.dest.is_none()) || (src_len != 0 && rule.other.source.is_none()) {
        return Err(Malformed("a rule without its addresses"));
    }
    Ok(Some(rule))
}

impl RuleParts {
    fn read_attribute(&mut self, attribute: &Attribute<'_>) -> Result<(), Malformed> {
        let (rule, [dst_len, src_len]) = (&mut self.rule, self.lengths);
        match attribute.kind {
            FRA_PRIORITY => rule.priority = Some(attribute.read_u32()?),
            FRA_FWMARK => self.mark = Some(attribute.read_u32()?),
            FRA_FWMASK => self.mask = Some(attribute.read_u32()?),
            FRA_IIFNAME => rule.iif = Some(attribute.read_name().to_owned()),
            FRA_IP_PROTO => rule.ip_proto = Some(IpProtocol(attribute.read_u8()?)),
            FRA_TABLE => self.table = attribute.read_u32()?,
            FRA_GOTO => self.target = Some(attribute.read_u32()?),
            // -1 means "nothing suppressed", and is always present
            FRA_SUPPRESS_IFGROUP => rule.unmodelled |= attribute.read_u32()? != u32::MAX,
            FRA_SUPPRESS_PREFIXLEN => {
                rule.other.suppressed = Some(attribute.read_u32()?).filter(|length| *length != u32::MAX);
                rule.unmodelled |= rule.other.suppressed.is_some();
            }
            FRA_PROTOCOL => rule.protocol = RouteProtocol(attribute.read_u8()?),
            FRA_DST => rule.dest = read_network(attribute, dst_len)?,
            FRA_SRC => rule.other.source = read_network(attribute, src_len)?,
            FRA_PAD => {}
            FRA_SPORT_RANGE | FRA_DPORT_RANGE => rule.unmodelled = true,
            _ => (rule.unmodelled, rule.other.narrow) = (true, true),
        }
        Ok(())
    }

    /// Returns the mark: the kernel omits a mark of 0, and the mask only if both are 0.
    fn fwmark(&self) -> Option<Mark> {
        let mask = self.mask.or(self.mark.map(|_| u32::MAX))?;
        Some(Mark { value: self.mark.unwrap_or(0), mask })
    }
}

/// Reads the addresses of a condition; `None`: any.
fn read_network(attribute: &Attribute<'_>, length: u8) -> Result<Option<IpNet>, Malformed> {
    Ok(Some(wire::read_net(attribute, length)?).filter(|_| length != 0))
}

const fn action_from(number: u8, table: TableId, target: Option<u32>) -> RuleAction {
    match (number, target) {
        (1, _) => RuleAction::Lookup(table),
        (2, Some(priority)) => RuleAction::Goto(priority),
        (3, _) => RuleAction::Nop,
        (6, _) => RuleAction::Blackhole,
        (7, _) => RuleAction::Unreachable,
        (8, _) => RuleAction::Prohibit,
        (other, _) => RuleAction::Other(other),
    }
}

const fn action_number(action: RuleAction) -> u8 {
    match action {
        RuleAction::Lookup(_) => 1,
        RuleAction::Goto(_) => 2,
        RuleAction::Nop => 3,
        RuleAction::Blackhole => 6,
        RuleAction::Unreachable => 7,
        RuleAction::Prohibit => 8,
        RuleAction::Other(number) => number,
    }
}
