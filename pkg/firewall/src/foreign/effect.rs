//! Effects of a rule on packets that reach ours later.

use std::{collections::BTreeMap, fmt};

use model::Mark;
use netlink::{Attributes, ListBounds, Malformed};
use nftables::uapi::{
    BITWISE_MASK, BITWISE_REGISTER, BITWISE_SOURCE, BITWISE_XOR, CT_SOURCE, DATA_VALUE, DATA_VERDICT,
    EXPRESSION_DATA, EXPRESSION_NAME, IMMEDIATE_DATA, IMMEDIATE_REGISTER, LOOKUP_REGISTER, META_KEY,
    META_MARK, META_REGISTER, META_SOURCE, PAYLOAD_SOURCE, VERDICT_CHAIN, XT_INFO, XT_NAME,
};

/// `XT_CT_NOTRACK`.
const NOTRACK: u16 = 1;
/// `struct xt_set_info_target_v3`: offset of the set whose members have marks, and its index if there is none.
const MAP_SET: usize = 8;
const NO_SET: u16 = u16::MAX;
/// Size of this structure; earlier revisions, which have no such set, are smaller.
const SET_WITH_MAP: usize = 20;

/// A rule of another component.
#[derive(Debug)]
pub(super) struct FoundEffect {
    /// Table and chain.
    pub(super) place: String,
    pub(super) effect: RuleEffect,
}

/// Effect on packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RuleEffect {
    /// The mark of packets or connections becomes one of ours.
    Marks(u32),
    /// The mark becomes an unknown value.
    AnyMark,
    /// The connection is not tracked, without which no packet is redirected.
    Untracked,
    /// Packets are sent elsewhere or rewritten, by this expression or target.
    Diverts(String),
    /// There are too many rules to read.
    TooMany(u32),
    /// There are more chains or rules than are read in a pod.
    Unlisted,
    /// The table has rules ahead of ours, and a name that is not UTF-8 or rules that the kernel does not list.
    Unreadable,
    /// The kernel does not evaluate these rules of ours, or evaluates them otherwise; the reason, as text.
    Inactive(&'static str),
}

/// Chains to which a rule may jump.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum JumpTarget {
    #[default]
    Nowhere,
    To(String),
    /// Decided by a map.
    Anywhere,
}

impl fmt::Display for FoundEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.place)?;
        match &self.effect {
            RuleEffect::Marks(mark) => write!(f, "sets the mark {mark:#x}, which is ztunnel's"),
            RuleEffect::AnyMark => f.write_str("sets a mark whose value cannot be determined"),
            RuleEffect::Untracked => f.write_str("exempts packets from connection tracking"),
            RuleEffect::Diverts(how) => write!(f, "diverts packets ({how})"),
            RuleEffect::TooMany(rules) => {
                write!(f, "has {rules} rules ahead of ours, too many to be examined")
            }
            RuleEffect::Unlisted => write!(f, "cannot be listed within {}", ListBounds::POD),
            RuleEffect::Unreadable => f.write_str("has rules ahead of ours that cannot be examined"),
            RuleEffect::Inactive(why) => f.write_str(why),
        }
    }
}

/// Content of a register with a mark, as far as known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MarkRegister {
    /// The mark of the packet, or of its connection, with these bits replaced by those of the value.
    Kept {
        replaced: u32,
        value: u32,
    },
    Unknown,
}

impl MarkRegister {
    const UNTOUCHED: MarkRegister = MarkRegister::Kept { replaced: 0, value: 0 };

    const fn from_constant(value: u32) -> MarkRegister {
        MarkRegister::Kept { replaced: u32::MAX, value }
    }

    /// Computes `(register & mask) ^ xor`
    fn apply_bitwise(self, mask: u32, xor: u32) -> MarkRegister {
        match self {
            // An inverted bit is neither kept nor known.
            MarkRegister::Kept { replaced, .. } if xor & mask & !replaced != 0 => MarkRegister::Unknown,
            MarkRegister::Kept { replaced, value } => {
                MarkRegister::Kept { replaced: replaced | !mask, value: (value & mask) ^ xor }
            }
            MarkRegister::Unknown if mask == 0 => MarkRegister::from_constant(xor),
            MarkRegister::Unknown => MarkRegister::Unknown,
        }
    }

    /// Returns the effect if this content becomes the mark. `None`: none of our bits is changed, or they do not become
    /// ours.
    fn mark_effect(self, marks: &[Mark]) -> Option<RuleEffect> {
        let MarkRegister::Kept { replaced, value } = self else { return Some(RuleEffect::AnyMark) };
        let ours = marks.iter().find(|mark| {
            let bits = replaced & mark.mask;
            value & bits != 0 && (value ^ mark.value) & bits == 0
        });
        ours.map(|mark| RuleEffect::Marks(mark.value))
    }
}

/// Returns the effects of a rule of nf_tables, its jump targets, and the chains of which the kernel counts it as a use.
pub(super) fn rule_effects(
    expressions: Attributes<'_>,
    marks: &[Mark],
) -> Result<(Vec<RuleEffect>, JumpTarget, Vec<String>), Malformed> {
    let mut rule = RuleEvaluation::default();
    for expression in expressions {
        let parts = expression?.nested_attributes();
        let name =
            parts.find(EXPRESSION_NAME).ok_or(Malformed("an expression without a name"))?.read_str()?;
        rule.add_expression(name, &parts.find_nested(EXPRESSION_DATA), marks)?;
    }
    Ok((rule.effects, rule.jumps, rule.uses))
}

#[derive(Default)]
struct RuleEvaluation {
    registers: BTreeMap<u32, MarkRegister>,
    effects: Vec<RuleEffect>,
    jumps: JumpTarget,
    /// Chains of all verdicts, also of those behind the first one.
    uses: Vec<String>,
}

impl RuleEvaluation {
    fn add_expression(&mut self, name: &str, data: &Attributes<'_>, marks: &[Mark]) -> Result<(), Malformed> {
        match name {
            "immediate" => self.add_immediate(data)?,
            "bitwise" => self.add_bitwise(data)?,
            "meta" | "ct" => {
                let source = data.find_be32(if name == "ct" { CT_SOURCE } else { META_SOURCE })?;
                let is_mark = data.find_be32(META_KEY)? == Some(META_MARK);
                match (source, data.find_be32(META_REGISTER)?) {
                    (Some(register), _) if is_mark => {
                        self.effects.extend(self.read_register(register).mark_effect(marks));
                    }
                    (None, Some(register)) => {
                        let read = if is_mark { MarkRegister::UNTOUCHED } else { MarkRegister::Unknown };
                        self.write_register(register, read);
                    }
                    _ => {}
                }
            }
            "lookup" => match data.find_be32(LOOKUP_REGISTER)? {
                Some(0) => self.add_jump(JumpTarget::Anywhere),
                Some(register) => self.write_register(register, MarkRegister::Unknown),
                None => {}
            },
            "payload" if data.find(PAYLOAD_SOURCE).is_some() => self.add_diversion("payload set"),
            "notrack" => self.effects.push(RuleEffect::Untracked),
            "nat" | "redir" | "tproxy" | "fwd" | "dup" | "queue" => self.add_diversion(name),
            "target" => {
                let name = data.find(XT_NAME).map(|name| name.read_str()).transpose()?.unwrap_or_default();
                let info = data.find(XT_INFO).map(|info| info.payload).unwrap_or_default();
                self.effects.extend(from_target(name, info, marks));
            }
            "cmp" | "counter" | "limit" | "log" | "match" | "quota" | "range" => {}
            // The register content after an unknown expression is unknown.
            _ => self.registers.clear(),
        }
        Ok(())
    }

    fn add_diversion(&mut self, how: &str) {
        self.effects.push(RuleEffect::Diverts(how.to_owned()));
    }

    /// Adds a verdict. The first one ends the rule; that of a map, which may have none, leads anywhere.
    fn add_jump(&mut self, target: JumpTarget) {
        if self.jumps == JumpTarget::Nowhere {
            self.jumps = target;
        }
    }

    fn read_register(&self, number: u32) -> MarkRegister {
        self.registers.get(&register_offset(number)).copied().unwrap_or(MarkRegister::Unknown)
    }

    /// Stores the content of a register. Unknown content may be longer than a mark, and overlap other registers.
    fn write_register(&mut self, number: u32, content: MarkRegister) {
        match content {
            MarkRegister::Unknown => self.registers.clear(),
            known => drop(self.registers.insert(register_offset(number), known)),
        }
    }

    fn add_immediate(&mut self, data: &Attributes<'_>) -> Result<(), Malformed> {
        let content = data.find_nested(IMMEDIATE_DATA);
        if let Some(verdict) = content.find(DATA_VERDICT) {
            if let Some(chain) = verdict.nested_attributes().find(VERDICT_CHAIN) {
                let chain = chain.read_name().to_owned();
                self.uses.push(chain.clone());
                self.add_jump(JumpTarget::To(chain));
            }
        } else if let Some(register) = data.find_be32(IMMEDIATE_REGISTER)? {
            let value = content.find(DATA_VALUE).and_then(|value| value.read_u32().ok());
            let known = value.map_or(MarkRegister::Unknown, MarkRegister::from_constant);
            self.write_register(register, known);
        }
        Ok(())
    }

    fn add_bitwise(&mut self, data: &Attributes<'_>) -> Result<(), Malformed> {
        let value = |kind| data.find_nested(kind).find(DATA_VALUE)?.read_u32().ok();
        let registers = data.find_be32(BITWISE_SOURCE)?.zip(data.find_be32(BITWISE_REGISTER)?);
        let Some((from, to)) = registers else { return Ok(()) };
        let result = match (value(BITWISE_MASK), value(BITWISE_XOR)) {
            (Some(mask), Some(xor)) => self.read_register(from).apply_bitwise(mask, xor),
            _ => MarkRegister::Unknown,
        };
        self.write_register(to, result);
        Ok(())
    }
}

/// The kernel numbers registers in units of 16 bytes (1 to 4), or, for the same memory, of 4 (8 to 23: `NFT_REG32_00`).
fn register_offset(register: u32) -> u32 {
    match register {
        1..=4 => 8 + (register - 1) * 4,
        other => other,
    }
}

/// Returns the effect of an iptables target with this data, of either backend.
pub(super) fn from_target(name: &str, info: &[u8], marks: &[Mark]) -> Option<RuleEffect> {
    let number = |at: usize| info.get(at..).and_then(<[u8]>::first_chunk).copied().map(u32::from_ne_bytes);
    match name {
        // struct xt_mark_tginfo2: mark, mask
        "MARK" => match (number(0), number(4)) {
            (Some(mark), Some(mask)) => MarkRegister::UNTOUCHED.apply_bitwise(!mask, mark).mark_effect(marks),
            _ => Some(RuleEffect::AnyMark),
        },
        // struct xt_connmark_tginfo1: ctmark, ctmask, nfmask, mode, padding; xt_connmark_tginfo2 has direction and
        // shift bits before the mode. The modes are 0 (set), 1 (save) and 2 (restore); anything ambiguous is treated as
        // set.
        "CONNMARK" => match (number(0), number(4), info.get(13..15)) {
            (Some(mark), Some(mask), Some([0, 0])) => {
                MarkRegister::UNTOUCHED.apply_bitwise(!mask, mark).mark_effect(marks)
            }
            (Some(_), Some(_), Some([0, 1 | 2])) => None,
            _ => Some(RuleEffect::AnyMark),
        },
        "SET" => {
            let map = info.get(MAP_SET..).and_then(<[u8]>::first_chunk).copied().map(u16::from_ne_bytes);
            (info.len() >= SET_WITH_MAP && map != Some(NO_SET)).then_some(RuleEffect::AnyMark)
        }
        // struct xt_ct_target_info: flags
        "CT" => {
            let flags = info.first_chunk().copied().map_or(NOTRACK, u16::from_ne_bytes);
            (flags & NOTRACK != 0).then_some(RuleEffect::Untracked)
        }
        "NOTRACK" => Some(RuleEffect::Untracked),
        // These do not affect the decision of our rules.
        "" | "standard" | "ERROR" | "LOG" | "NFLOG" | "ULOG" | "REJECT" | "DROP" | "ACCEPT" | "SNAT"
        | "MASQUERADE" | "TCPMSS" | "TTL" | "HL" | "DSCP" | "TOS" | "CLASSIFY" | "AUDIT" | "TRACE"
        | "CHECKSUM" | "SECMARK" | "CONNSECMARK" | "IDLETIMER" => None,
        other => Some(RuleEffect::Diverts(super::printable_name(other))),
    }
}

#[cfg(test)]
mod tests;
