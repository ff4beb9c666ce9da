//! What fuzz targets feed; nobody else calls it.

use model::Family;
use netlink::{Malformed, ReceivedMessage};

use crate::{builtin, captured, legacy};

/// A rule of nf_tables as the kernel tells it: its chain, and the chain that it jumps to.
///
/// # Errors
/// It makes no sense.
pub fn nft_rule(message: &ReceivedMessage<'_>) -> Result<(String, Option<String>), Malformed> {
    let (_, rule) = captured::told(message)?;
    Ok((rule.chain, rule.jumps_to))
}

/// A chain of nf_tables as the kernel tells it: whether it is built in, and nothing is in it.
///
/// # Errors
/// It makes no sense.
pub fn nft_chain(message: &ReceivedMessage<'_>) -> Result<bool, Malformed> {
    builtin::ChainInfo::told(message).map(|chain| chain.is_unused())
}

/// A rule of a legacy table.
#[derive(Debug, PartialEq, Eq)]
pub struct LegacyRule {
    /// The chain that it is in.
    pub chain: String,
    /// The chain that it jumps to.
    pub jumps_to: Option<String>,
    /// The rule as text.
    pub text: String,
}

/// The rules of a legacy table, from the answers to `IPT_SO_GET_INFO` and `IPT_SO_GET_ENTRIES`.
///
/// # Errors
/// What is wrong with it.
pub fn legacy_table(
    family: Family,
    info: &[u8],
    entries: &mut [u8],
) -> Result<Vec<LegacyRule>, &'static str> {
    let rules = legacy::told(family, info, entries)?;
    Ok(rules
        .into_iter()
        .map(|(rule, text)| LegacyRule { chain: rule.chain, jumps_to: rule.jumps_to, text })
        .collect())
}
