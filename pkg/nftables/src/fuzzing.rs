//! Entry points for fuzz targets and property tests: parsers of foreign bytes.

use model::Family;
use netlink::{Attributes, Malformed, MessageFlags, NetlinkRequest, ReceivedMessage};
use rules::Rule;

use crate::{decode, encode, maps::add_target_chains, native::ListedRule, sets::SetNumbers};

/// Name of the only set that exists.
pub const SET: &str = "a-set";

struct OneSet;

impl SetNumbers for OneSet {
    fn number_by_name(&mut self, name: &str) -> Option<u16> {
        (name == SET).then_some(7)
    }

    fn name_by_number(&mut self, number: u16) -> Option<String> {
        (number == 7).then(|| SET.to_owned())
    }
}

/// Reads the attributes of a rule.
pub fn decode_rule(family: Family, attributes: &[u8]) -> Option<Rule> {
    decode::read_rule(family, "", &Attributes::new(attributes), &mut OneSet).rule
}

/// Returns the target chains of the elements of a map.
///
/// # Errors
/// The message is malformed.
pub fn map_jumps(message: &ReceivedMessage<'_>) -> Result<Vec<String>, Malformed> {
    let mut jumps = Vec::new();
    add_target_chains(message, &mut jumps).map(|()| jumps)
}

/// Returns whether the attributes of two rules are equal in a native table.
pub fn same_native_rule(one: &[u8], other: &[u8]) -> bool {
    let [one, other] = [one, other].map(|attributes| ListedRule::new(&Attributes::new(attributes)));
    one == other
}

/// Returns the attributes of a rule; `None` if it cannot be expressed.
pub fn encode_rule(family: Family, rule: &Rule) -> Option<Vec<u8>> {
    let mut message = NetlinkRequest::new(0, MessageFlags::NONE, &[]);
    let is_written = encode::write_rule(&mut message, family, rule, &mut OneSet);
    let bytes = message.finish(0, MessageFlags::NONE).ok()?;
    is_written.then(|| bytes.get(16..).unwrap_or_default().to_vec()) // after struct nlmsghdr
}
