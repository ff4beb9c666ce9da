//! Tables and built-in chains of nf_tables that the kernel does not evaluate, or evaluates otherwise, although they have
//! rules of ours.

use std::collections::{BTreeMap, BTreeSet};

use model::Family;
use netlink::{Errno, NetlinkProtocol, NetlinkRequest, ReplyMessages, Socket, allow_missing};
use nftables::uapi::{
    CHAIN_NAME, CHAIN_TABLE, GET_CHAIN, GET_TABLE, TABLE_DORMANT, TABLE_FLAGS, TABLE_NAME, base_chain,
    query_message,
};
use rules::{ChainSet, Hook, SavedTables, Table};

use crate::{
    Backend, Error, Firewall, ObservedTables,
    foreign::{DORMANT, compare_base_chain, place_name},
};

impl Firewall {
    /// Returns, as text, the tables and built-in chains with jumps to the owner's chains in `observed` that the kernel
    /// does not evaluate. Only nf_tables has such tables.
    ///
    /// # Errors
    /// The kernel could not be queried, or its answer is malformed.
    pub fn inactive_rules(&self, owner: ChainSet, observed: &ObservedTables) -> Result<Vec<String>, Error> {
        match self.backend() {
            Backend::Nft => inactive_places(owner, &observed.families),
            Backend::Legacy | Backend::Native => Ok(Vec::new()),
        }
    }
}

/// Like [`Firewall::inactive_rules`], for rules in tables of iptables. Each object is requested by name, so foreign
/// objects cost nothing.
pub(crate) fn inactive_places(
    owner: ChainSet,
    observed: &BTreeMap<Family, SavedTables>,
) -> Result<Vec<String>, Error> {
    let tables = observed.iter().flat_map(|(family, tables)| {
        tables.tables.iter().map(move |(table, saved)| (*family, *table, owner.hooks_in(saved)))
    });
    let tables: Vec<_> = tables.filter(|(.., hooks)| !hooks.is_empty()).collect();
    if tables.is_empty() {
        return Ok(Vec::new());
    }
    find_inactive(tables).map_err(Error::Presence)
}

fn find_inactive(tables: Vec<(Family, Table, BTreeSet<Hook>)>) -> Result<Vec<String>, netlink::Error> {
    let (mut socket, mut found) = (Socket::open(NetlinkProtocol::Netfilter)?, Vec::new());
    for (family, table, hooks) in tables {
        let place = place_name(&(family.address_family(), table.as_str().to_owned()));
        if is_dormant(&mut socket, family, table)? {
            found.push(format!("{place} {DORMANT}"));
            continue;
        }
        for hook in hooks {
            let why = inactive_reason(&mut socket, family, table, hook)?;
            found.extend(why.map(|why| format!("{place} {} {why}", hook.as_str())));
        }
    }
    Ok(found)
}

/// Returns whether a table is dormant. A table that no longer exists is not.
fn is_dormant(socket: &mut Socket, family: Family, table: Table) -> Result<bool, netlink::Error> {
    let question = query_message(GET_TABLE, family.address_family(), &[(TABLE_NAME, table.as_str())]);
    let replies = find_object(socket, question)?;
    let Some(reply) = replies.iter().next() else { return Ok(false) };
    let (_, attributes) = reply.split_header::<4>()?;
    Ok(attributes.find_be32(TABLE_FLAGS)?.unwrap_or(0) & TABLE_DORMANT != 0)
}

/// Returns why the kernel does not evaluate a built-in chain as such; `None`: it does, or the chain no longer exists.
fn inactive_reason(
    socket: &mut Socket,
    family: Family,
    table: Table,
    hook: Hook,
) -> Result<Option<&'static str>, netlink::Error> {
    let names = [(CHAIN_TABLE, table.as_str()), (CHAIN_NAME, hook.as_str())];
    let replies = find_object(socket, query_message(GET_CHAIN, family.address_family(), &names))?;
    let Some(reply) = replies.iter().next() else { return Ok(None) };
    let (_, attributes) = reply.split_header::<4>()?;
    Ok(compare_base_chain(&attributes, base_chain(table, hook), false)?)
}

fn find_object(socket: &mut Socket, question: NetlinkRequest) -> Result<ReplyMessages, netlink::Error> {
    allow_missing(socket.get(question), Errno::NOENT).map(Option::unwrap_or_default)
}
