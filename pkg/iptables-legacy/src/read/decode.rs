//! Decoding of a rule of a legacy table to the model. Nothing is guessed: a condition, a match or a target that we
//! never write makes it foreign.

use model::{Family, IfName, IpNet};
use nftables::XtablesDecoder;
use rules::{Chain, MatchValue, Rule, SavedRule, Target, TransportProtocol};

use super::{
    chains::{ACCEPT, LegacyRule, RETURN, TARGET_DATA, parse_c_string, read_u32},
    entries::EntryLayout,
};

/// `IPT_INV_*`, the same as `IP6T_INV_*`.
const NOT_INPUT: u8 = 0x01;
const NOT_OUTPUT: u8 = 0x02;
const NOT_SOURCE: u8 = 0x08;
const NOT_DEST: u8 = 0x10;
const NOT_PROTO: u8 = 0x40;
/// Length of an interface name with its trailing NUL (`IFNAMSIZ`).
const INTERFACE: usize = 16;
/// `struct xt_entry_match`, the same as `struct xt_entry_target`: length, name, revision, then data.
const NAME: usize = 2;
const REVISION: usize = 31;
const DATA: usize = TARGET_DATA;
/// `-NF_DROP - 1`
const DROP: i32 = -1;

/// Decodes a rule.
pub(super) fn decode_rule(
    family: Family,
    layout: &EntryLayout,
    rule: &LegacyRule<'_>,
    decoder: &mut XtablesDecoder,
) -> SavedRule {
    let matches = XtMatch::parse_all(rule.entry.bytes, layout, rule.entry.target);
    let mut names: Vec<&str> = matches.iter().flatten().map(|found| found.name).collect();
    names.extend(Some(rule.target).filter(|name| !name.is_empty()));
    let conditions = EntryConditions { family, layout, entry: rule.entry.bytes };
    let decoded = matches.and_then(|matches| conditions.build_rule(rule, matches, decoder));
    nftables::saved_rule(family, rule.chain, decoded, rule.target_chain, &names)
}

/// A match of an entry.
struct XtMatch<'a> {
    name: &'a str,
    revision: u8,
    data: &'a [u8],
}

impl<'a> XtMatch<'a> {
    /// Parses all matches of an entry; `None`: malformed.
    fn parse_all(entry: &'a [u8], layout: &EntryLayout, target: &[u8]) -> Option<Vec<XtMatch<'a>>> {
        let mut rest = entry.get(layout.size..entry.len().checked_sub(target.len())?)?;
        let mut found = Vec::new();
        while !rest.is_empty() {
            let size = usize::from(u16::from_ne_bytes(*rest.first_chunk()?));
            let (one, after) = rest.split_at_checked(size)?;
            let (header, data) = one.split_at_checked(DATA)?;
            let name = parse_c_string(header.get(NAME..REVISION)?)?;
            found.push(XtMatch { name, revision: *header.get(REVISION)?, data });
            rest = after;
        }
        Some(found)
    }
}

/// Conditions of an entry that are no matches.
struct EntryConditions<'a> {
    family: Family,
    layout: &'a EntryLayout,
    entry: &'a [u8],
}

impl EntryConditions<'_> {
    fn build_rule(
        &self,
        rule: &LegacyRule<'_>,
        matches: Vec<XtMatch<'_>>,
        decoder: &mut XtablesDecoder,
    ) -> Option<Rule> {
        let (flags, inverted) = (self.byte_at(self.layout.flags)?, self.byte_at(self.layout.invflags)?);
        // IPT_F_GOTO; IP6T_F_PROTO, which is set with a protocol, and IP6T_F_GOTO
        let (goto, known) = if self.family == Family::V4 { (0x02, 0x02) } else { (0x04, 0x05) };
        if flags & !known != 0 {
            return None;
        }
        let mut decoded = Rule::new(self.decode_target(rule, flags & goto != 0, decoder)?);
        let mut read = 0;
        let mut is_inverted = |flag: u8| {
            read |= flag;
            inverted & flag != 0
        };
        decoded.source = self.decode_network(0, is_inverted(NOT_SOURCE))?;
        decoded.dest = self.decode_network(1, is_inverted(NOT_DEST))?;
        decoded.input = self.decode_interface(0, is_inverted(NOT_INPUT))?;
        decoded.output = self.decode_interface(1, is_inverted(NOT_OUTPUT))?;
        decoded.proto = self.decode_protocol(is_inverted(NOT_PROTO))?;
        let proto = decoded.proto.as_ref().filter(|proto| !proto.negated).map(|proto| proto.value);
        for found in matches {
            decoded.matches.push(decoder.decode_match(found.name, found.revision, found.data, proto)?);
        }
        (inverted & !read == 0).then_some(decoded)
    }

    fn decode_target(
        &self,
        rule: &LegacyRule<'_>,
        is_goto: bool,
        decoder: &XtablesDecoder,
    ) -> Option<Target> {
        let target = rule.entry.target;
        if !rule.target.is_empty() {
            return decoder.decode_target(rule.target, *target.get(REVISION)?, rule.target_data, self.family);
        }
        if let Some(chain) = rule.target_chain {
            let chain = Chain(chain.to_owned().into());
            return Some(if is_goto { Target::Goto(chain) } else { Target::Jump(chain) });
        }
        match read_u32(target, DATA).ok()?.cast_signed() {
            DROP => Some(Target::Drop),
            ACCEPT => Some(Target::Accept),
            RETURN => Some(Target::Return),
            _ => None,
        }
    }

    fn byte_at(&self, at: usize) -> Option<u8> {
        self.entry.get(at).copied()
    }

    fn bytes_at(&self, at: usize, length: usize) -> Option<&[u8]> {
        self.entry.get(at..at + length)
    }

    /// Decodes the source (0) or destination (1). The inner `None`: any.
    fn decode_network(&self, place: usize, negated: bool) -> Option<Option<MatchValue<IpNet>>> {
        let length = self.layout.address;
        let address = self.bytes_at(place * length, length)?;
        let mask = self.bytes_at((2 + place) * length, length)?;
        let prefix = nftables::prefix_length(mask)?;
        if prefix == 0 && negated {
            return None;
        }
        let value = nftables::decode_network(self.family, address, prefix)?;
        Some((prefix > 0).then_some(MatchValue { negated, value }))
    }

    /// Decodes the input (0) or output (1) interface. The inner `None`: any.
    fn decode_interface(&self, place: usize, negated: bool) -> Option<Option<MatchValue<IfName>>> {
        let at = self.layout.interfaces + place * INTERFACE;
        let (name, mask) = (self.bytes_at(at, INTERFACE)?, self.bytes_at(at + 2 * INTERFACE, INTERFACE)?);
        let compared = mask.iter().take_while(|byte| **byte == 0xff).count();
        let name = parse_c_string(name)?;
        // The tool keeps the `+` of a prefix in the name.
        let beginning = name.strip_suffix('+').unwrap_or(name);
        let is_mask = mask.get(compared..)?.iter().all(|byte| *byte == 0);
        let value = match compared {
            0 => return (is_mask && !negated).then_some(None),
            full if full == name.len() + 1 => IfName::new(name),
            start if start == beginning.len() => IfName::new(&format!("{beginning}+")),
            _ => return None,
        };
        is_mask.then_some(Some(MatchValue { negated, value: value.ok()? }))
    }

    fn decode_protocol(&self, negated: bool) -> Option<Option<MatchValue<TransportProtocol>>> {
        let number = u16::from_ne_bytes(self.bytes_at(self.layout.proto, 2)?.try_into().ok()?);
        if number == 0 {
            return (!negated).then_some(None);
        }
        let value = TransportProtocol::ALL.into_iter().find(|proto| u16::from(proto.number()) == number)?;
        Some(Some(MatchValue { negated, value }))
    }
}
