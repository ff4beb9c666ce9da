//! Tables that are in use by any component.

use std::collections::BTreeSet;

use iptables_legacy::{IptablesTools, ToolKind, ToolVerb};
use model::Family;
use netlink::{ListBounds, NetlinkProtocol, Socket};
use nftables::uapi::{CHAIN_NAME, GET_CHAIN, query_message};

use crate::{
    Error,
    presence::{all_nft_tables, or_empty},
};

/// Returns the names of the chains that have rules in legacy tables of the calling thread's network namespace, in both families.
///
/// # Errors
/// The kernel could not be queried, its answer is malformed, or a table is longer than any pod's.
pub fn legacy_chains() -> Result<BTreeSet<String>, Error> {
    let mut chains = BTreeSet::new();
    for family in Family::BOTH {
        iptables_legacy::read_rules(family, |_, rule| {
            chains.insert(rule.chain.to_owned());
        })?;
    }
    Ok(chains)
}

/// Returns the names of the tables of nf_tables in the calling thread's network namespace, and of their chains within
/// the first 4 MiB of the list; empty if the kernel has no nf_tables.
///
/// # Errors
/// The kernel could not be queried, or its answer is malformed.
pub fn nft_names() -> Result<BTreeSet<String>, Error> {
    let tables = all_nft_tables()?.into_iter().flatten().map(|(_, name)| name);
    Ok(tables.chain(or_empty(list_nft_chains())?).collect())
}

fn list_nft_chains() -> Result<BTreeSet<String>, netlink::Error> {
    let mut names = BTreeSet::new();
    let socket = Socket::open(NetlinkProtocol::Netfilter)?.with_bounds(ListBounds::POD);
    let (replies, _) = socket.dump_head(&query_message(GET_CHAIN, 0, &[]), ListBounds::POD.bytes)?;
    for reply in replies.iter() {
        let (_, attributes) = reply.split_header::<4>()?;
        names.extend(attributes.find(CHAIN_NAME).map(|name| name.read_name().to_owned()));
    }
    Ok(names)
}

/// Returns whether a tool that changes legacy tables exists.
pub fn has_legacy_tool() -> bool {
    IptablesTools::from_environment().find_tool(ToolKind::Legacy, Family::V4, ToolVerb::Restore).is_ok()
}
