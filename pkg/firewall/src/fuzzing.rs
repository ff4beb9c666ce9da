//! Entry points for fuzz targets only.

use netlink::{Malformed, ReceivedMessage};

use crate::{builtin, captured};

/// Parses a rule of nf_tables: its chain, and the chain that it jumps to.
///
/// # Errors
/// The message is malformed.
pub fn nft_rule(message: &ReceivedMessage<'_>) -> Result<(String, Option<String>), Malformed> {
    let (_, rule) = captured::parse_rule(message)?;
    Ok((rule.chain, rule.jumps_to))
}

/// Parses a chain of nf_tables, and returns whether it is an empty built-in one.
///
/// # Errors
/// The message is malformed.
pub fn nft_chain(message: &ReceivedMessage<'_>) -> Result<bool, Malformed> {
    builtin::ChainInfo::parse_chain(message).map(|chain| chain.is_unused())
}
