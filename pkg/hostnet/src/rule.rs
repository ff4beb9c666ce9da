//! Policy rules, which select the table in which a packet is looked up.

use std::{fmt, net::IpAddr};

use netlink::{Errno, ListBounds, MessageFlags, ReplyMessages};

use crate::error::kernel_error;
use crate::wire::CREATE;
use crate::{ChangeOutcome, Error, Family, IpNet, IpProtocol, Mark, RouteProtocol, RtnetlinkHandle, TableId};

pub(crate) mod message;

/// Maximum number of deletions of equal rules: a component that adds them again that fast does not stop.
const DELETIONS: u32 = 64;
/// Limit for a pod's list, 5,000 rules and more: the kernel's time grows with the square of the number.
const BEGINNING: ListBounds = ListBounds { bytes: 1 << 20, ..ListBounds::POD };

/// A policy rule, created with [`PolicyRule::new`] and further conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyRule {
    /// IPv4 or IPv6.
    pub family: Family,
    /// Priority, lowest first; `None`: chosen by the kernel (before all but the first), and equal to any.
    pub priority: Option<u32>,
    /// Only packets with this mark.
    pub fwmark: Option<Mark>,
    /// Only packets that arrive on this link (`lo`: that this host sends).
    pub iif: Option<String>,
    /// Only packets to these addresses.
    pub dest: Option<IpNet>,
    /// Only packets of this protocol.
    pub ip_proto: Option<IpProtocol>,
    /// Action for packets that meet all conditions.
    pub action: RuleAction,
    /// Origin of the rule: no condition, and not compared by [`PolicyRule::is_match_for`].
    pub protocol: RouteProtocol,
    /// Whether the rule has conditions beyond these fields. Only set in rules that were read: such a rule is not ours,
    /// and equals none of ours.
    pub unmodelled: bool,
    /// The further conditions, as far as they are known.
    pub other: OtherConditions,
}

/// Conditions of a rule that was read, which no rule of ours has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OtherConditions {
    /// Only packets from these addresses.
    pub source: Option<IpNet>,
    /// Whether the rule matches packets that do *not* meet the conditions.
    pub inverted: bool,
    /// Routes with a prefix of this length or shorter are ignored.
    pub suppressed: Option<u32>,
    /// Only packets of certain sockets of this host, of a VRF or of a tunnel; or an unknown condition.
    pub narrow: bool,
}

impl OtherConditions {
    /// No condition.
    pub const NONE: OtherConditions =
        OtherConditions { source: None, inverted: false, suppressed: None, narrow: false };
}

/// Action of a rule (`FR_ACT_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RuleAction {
    /// Look the packet up in a table; continue with the next rule if it has no route.
    Lookup(TableId),
    /// Continue with the rule of this priority, which must be a later one.
    Goto(u32),
    /// Continue with the next rule.
    Nop,
    /// Drop the packet silently.
    Blackhole,
    /// Reject the packet with "network unreachable".
    Unreachable,
    /// Reject the packet with "administratively prohibited".
    Prohibit,
    /// A number without a name.
    Other(u8),
}

impl PolicyRule {
    /// Returns a rule for all packets.
    pub const fn new(family: Family, priority: Option<u32>, action: RuleAction) -> Self {
        let protocol = RouteProtocol::ANY;
        let (fwmark, iif, dest, ip_proto) = (None, None, None, None);
        let (unmodelled, other) = (false, OtherConditions::NONE);
        Self { family, priority, fwmark, iif, dest, ip_proto, action, protocol, unmodelled, other }
    }

    /// Returns whether this rule makes packets that meet its conditions, and those of a later rule at `priority`, use
    /// other tables than these.
    pub fn leads_past(&self, priority: u32, tables: &[TableId]) -> bool {
        match self.action {
            RuleAction::Lookup(table) => table != TableId::LOCAL && !tables.contains(&table),
            RuleAction::Goto(target) => target > priority,
            _ => false,
        }
    }

    /// Returns whether forwarded TCP packets with this mark and no other, from or to any of the `sources`, can meet the
    /// conditions. Conditions on single links count as not met.
    pub fn takes_forwarded(&self, mark: u32, sources: &[IpAddr]) -> bool {
        let OtherConditions { source, inverted, narrow, .. } = self.other;
        let has_mark = self.fwmark.is_none_or(|own| mark & own.mask == own.value & own.mask);
        if inverted {
            let has_more = self.iif.is_some() || self.dest.is_some() || source.is_some() || narrow;
            return has_more || !has_mark;
        }
        let has_protocol = self.ip_proto.is_none_or(|protocol| protocol == IpProtocol::TCP);
        let has_source = source.is_none_or(|net| sources.iter().any(|ip| net.contains(ip)));
        has_mark && has_protocol && has_source && self.iif.is_none() && !narrow
    }

    /// Returns whether this rule, read from the kernel, is the desired one.
    pub fn is_match_for(&self, desired: &Self) -> bool {
        let desired = Self { protocol: self.protocol, ..desired.as_read(self.priority) };
        !self.unmodelled && *self == desired
    }

    /// Returns this rule as the kernel would show it: without conditions that hold for every packet.
    fn as_read(&self, priority: Option<u32>) -> Self {
        Self {
            priority: self.priority.or(priority),
            fwmark: self.fwmark.filter(|mark| (mark.value, mark.mask) != (0, 0)),
            iif: self.iif.clone().filter(|name| !name.is_empty()),
            dest: self.dest.filter(|net| net.prefix_len() != 0).map(|net| net.trunc()),
            ip_proto: self.ip_proto.filter(|protocol| protocol.0 != 0),
            unmodelled: false,
            ..*self
        }
    }

    /// Refuses rules that the kernel would interpret differently, so that they would never be found again.
    fn check_supported(&self) -> Result<(), Error> {
        let reason = match self.action {
            _ if self.unmodelled => "it has conditions that are not known here",
            RuleAction::Lookup(TableId(0)) => "0 is not a table",
            _ => return Ok(()),
        };
        Err(Error::UnsuitableRule { rule: self.to_string(), reason })
    }

    /// Returns whether the kernel would select this rule when asked to delete `desired`: conditions that `desired` does
    /// not have are not compared (`rule_find` in `net/core/fib_rules.c`).
    fn answers_to(&self, desired: &Self) -> bool {
        let marks = desired.fwmark.is_none_or(|mark| {
            let own = self.fwmark.unwrap_or(Mark { value: 0, mask: 0 });
            (mark.value == 0 || mark.value == own.value) && (mark.mask == 0 || mark.mask == own.mask)
        });
        marks
            && self.action == desired.action
            && (desired.priority.is_none() || self.priority == desired.priority)
            && (desired.iif.is_none() || self.iif == desired.iif)
            && (desired.dest.is_none() || self.dest == desired.dest)
            && (desired.protocol == RouteProtocol::ANY || self.protocol == desired.protocol)
            && (desired.ip_proto.is_none() || self.ip_proto == desired.ip_proto)
    }
}

impl fmt::Display for PolicyRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(priority) = self.priority {
            write!(f, "{priority}: ")?;
        }
        if self.other.inverted {
            f.write_str("not ")?;
        }
        match self.other {
            OtherConditions { source: Some(source), .. } => write!(f, "from {source}")?,
            OtherConditions { narrow: false, inverted, suppressed, .. }
                if !self.unmodelled || inverted || suppressed.is_some() =>
            {
                f.write_str("from all")?;
            }
            _ => f.write_str("from (more conditions)")?,
        }
        if let Some(dest) = &self.dest {
            write!(f, " to {dest}")?;
        }
        if let Some(mark) = self.fwmark {
            write!(f, " fwmark {}", FwMark(mark))?;
        }
        if let Some(iif) = &self.iif {
            write!(f, " iif {iif}")?;
        }
        if let Some(protocol) = self.ip_proto {
            write!(f, " ipproto {protocol}")?;
        }
        write!(f, " {}", self.action)?;
        self.other.suppressed.map_or(Ok(()), |length| write!(f, " suppress_prefixlength {length}"))
    }
}

/// A mark as `ip rule` prints it: the firewall tools, and so [`Mark`] itself, print `0x0` for zero.
struct FwMark(Mark);

impl fmt::Display for FwMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Mark { value: 0, mask } => write!(f, "0/{mask:#x}"),
            mark => mark.fmt(f),
        }
    }
}

impl fmt::Display for RuleAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lookup(table) => write!(f, "lookup {table}"),
            Self::Goto(priority) => write!(f, "goto {priority}"),
            Self::Nop => f.write_str("nop"),
            Self::Blackhole => f.write_str("blackhole"),
            Self::Unreachable => f.write_str("unreachable"),
            Self::Prohibit => f.write_str("prohibit"),
            Self::Other(number) => write!(f, "action {number}"),
        }
    }
}

impl RtnetlinkHandle {
    /// Returns the rules of a family, in the order in which the kernel evaluates them.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub fn list_rules(&mut self, family: Family) -> Result<Vec<PolicyRule>, Error> {
        let listed = self.socket.dump(&message::list_request(family));
        Ok(parse_list(family, listed.map(|replies| (replies, true)))?.0)
    }

    /// Returns the first rules of a family, and whether these include all with this priority or a lower number. A pod
    /// may have any number of rules, so at most the first 1 MiB of its list is read.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub fn rules_until(
        &mut self,
        family: Family,
        last: Option<u32>,
    ) -> Result<(Vec<PolicyRule>, bool), Error> {
        if !self.in_pod {
            return Ok((self.list_rules(family)?, true));
        }
        let listed = self.socket.dump_until(&message::list_request(family), BEGINNING);
        let (rules, is_all) = parse_list(family, listed)?;
        if is_all {
            return Ok((rules, true));
        }
        *self = Self::open_in_pod()?; // the kernel would continue that list
        let is_behind = |rule: &PolicyRule| last.is_some() && rule.priority > last;
        let is_enough = rules.last().is_some_and(is_behind);
        Ok((rules, is_enough))
    }

    /// Adds a rule, unless an equal one exists.
    ///
    /// The kernel ignores the replace flag for rules, and without the exclusive flag adds an equal one again. With the
    /// flag, it also refuses a rule that only resembles one with more conditions: source, destination and TOS that ours
    /// does not have are not compared (`rule_exists`, `fib4_rule_compare`). So the rules are read first, the rule is
    /// added exclusively (against concurrent additions), and a refusal is verified by reading again.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`]; [`Error::UnsuitableRule`] for table 0 and for [`PolicyRule::unmodelled`].
    pub fn ensure_rule(&mut self, rule: &PolicyRule) -> Result<ChangeOutcome, Error> {
        rule.check_supported()?;
        let (rules, is_all) = self.rules_until(rule.family, rule.priority)?;
        if rules.iter().any(|found| found.is_match_for(rule)) {
            return Ok(ChangeOutcome::No);
        }
        let failed = |source| kernel_error(format_args!("add rule {rule}"), source);
        let added = self.send_change(message::add_request(rule, CREATE), &[Errno::EXIST]).map_err(failed)?;
        if added.is_yes() || !is_all || self.has_rule(rule)? {
            return Ok(added);
        }
        self.send_change(message::add_request(rule, MessageFlags::CREATE), &[]).map_err(failed)
    }

    /// Returns whether an equal rule exists, as far as known: in a pod, more rules may precede it than are read.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub fn has_rule(&mut self, rule: &PolicyRule) -> Result<bool, Error> {
        let (rules, is_all) = self.rules_until(rule.family, rule.priority)?;
        Ok(!is_all || rules.iter().any(|found| found.is_match_for(rule)))
    }

    /// Deletes all equal rules. Rules that only resemble it stay, unless more rules precede it than are read.
    ///
    /// # Errors
    ///
    /// As [`RtnetlinkHandle::ensure_rule`]; [`Error::ConflictingRule`] if the kernel would select a rule that is not
    /// equal, [`Error::RuleReappears`] if it is added again after each deletion.
    pub fn delete_rule(&mut self, rule: &PolicyRule) -> Result<ChangeOutcome, Error> {
        rule.check_supported()?;
        let mut changed = ChangeOutcome::No;
        for _ in 0..DELETIONS {
            let (rules, is_all) = self.rules_until(rule.family, rule.priority)?;
            let mut equal: Vec<_> =
                rules.iter().enumerate().filter(|(_, found)| found.is_match_for(rule)).collect();
            if equal.is_empty() && !is_all {
                equal.push((0, rule));
            }
            let mut is_gone = true;
            for (at, equal) in equal {
                let mut before = rules.iter().take(at).filter(|found| !found.is_match_for(rule));
                if let Some(other) = before.find(|found| found.answers_to(equal)) {
                    return Err(Error::ConflictingRule { rule: rule.to_string(), other: other.to_string() });
                }
                let deleted = self.send_change(message::delete_request(equal), &[Errno::NOENT]);
                if deleted.map_err(|error| kernel_error(format_args!("delete rule {rule}"), error))?.is_yes()
                {
                    (changed, is_gone) = (ChangeOutcome::Yes, false);
                }
            }
            if is_gone {
                return Ok(changed);
            }
        }
        Err(Error::RuleReappears { rule: rule.to_string(), attempts: DELETIONS })
    }
}

fn parse_list(
    family: Family,
    listed: Result<(ReplyMessages, bool), netlink::Error>,
) -> Result<(Vec<PolicyRule>, bool), Error> {
    let list = |source| kernel_error(format_args!("list {family} rules"), source);
    match listed {
        // A kernel without IPv6 (`ipv6.disable=1`) has no IPv6 rules (`fib_nl_dumprule`).
        Err(refused) if refused.errno() == Some(Errno::AFNOSUPPORT) => Ok((Vec::new(), true)),
        Err(other) => Err(list(other)),
        Ok((replies, is_all)) => Ok((replies.parse_all(message::parse).map_err(list)?, is_all)),
    }
}

#[cfg(test)]
mod tests;
