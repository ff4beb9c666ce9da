//! What fuzz targets feed; nobody else calls it.

use netlink::{Malformed, ReceivedMessage};

use crate::{builtin, captured};

/// A rule of nf_tables as the kernel tells it: its chain, and the chain that it jumps to.
///
/// # Errors
/// It makes no sense.
pub fn nft_rule(message: &ReceivedMessage<'_>) -> Result<(String, Option<String>), Malformed> {
    let (_, rule) = captured::parse_rule(message)?;
    Ok((rule.chain, rule.jumps_to))
}

/// A chain of nf_tables as the kernel tells it: whether it is built in, and nothing is in it.
///
/// # Errors
/// It makes no sense.
pub fn nft_chain(message: &ReceivedMessage<'_>) -> Result<bool, Malformed> {
    builtin::ChainInfo::parse_chain(message).map(|chain| chain.is_unused())
}
