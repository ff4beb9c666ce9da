//! Tables and built-in chains of nf_tables that the kernel does not evaluate, or evaluates otherwise, although they have
//! rules of ours.

use std::collections::BTreeMap;

use model::Family;
use netlink::{Errno, MessageFlags, NetlinkProtocol, NetlinkRequest, ReplyMessages, Socket};
use nftables::uapi::{
    CHAIN_NAME, CHAIN_TABLE, GET_CHAIN, GET_TABLE, TABLE_DORMANT, TABLE_FLAGS, TABLE_NAME, base_chain,
    nfgenmsg_header,
};
use rules::{ChainSet, Hook, SavedTables, Table};

use crate::{
    Backend, Error, Firewall, ObservedTables,
    foreign::{DORMANT, compare_base_chain},
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
    let mut socket = None;
    let mut found = Vec::new();
    for (family, tables) in observed {
        for (table, saved) in &tables.tables {
            let hooks = owner.hooks_in(saved);
            if hooks.is_empty() {
                continue;
            }
            let socket = match &mut socket {
                Some(socket) => socket,
                None => {
                    let opened = Socket::open(NetlinkProtocol::Netfilter).map_err(Error::Presence)?;
                    socket.insert(opened)
                }
            };
            if is_dormant(socket, *family, *table).map_err(Error::Presence)? {
                found.push(describe_place(*family, *table, None, DORMANT));
                continue;
            }
            for hook in hooks {
                let why = inactive_reason(socket, *family, *table, hook).map_err(Error::Presence)?;
                found.extend(why.map(|why| describe_place(*family, *table, Some(hook), why)));
            }
        }
    }
    Ok(found)
}

fn describe_place(family: Family, table: Table, hook: Option<Hook>, why: &str) -> String {
    let family = if family == Family::V4 { "ip" } else { "ip6" };
    let hook = hook.map_or_else(String::new, |hook| format!(" {}", hook.as_str()));
    format!("nf_tables {family} {}{hook} {why}", table.as_str())
}

/// Returns whether a table is dormant. A table that no longer exists is not.
fn is_dormant(socket: &mut Socket, family: Family, table: Table) -> Result<bool, netlink::Error> {
    let mut question = NetlinkRequest::new(GET_TABLE, MessageFlags::NONE, &nfgenmsg_header(family));
    question.put_str(TABLE_NAME, table.as_str());
    let replies = find_object(socket, question)?;
    let Some(reply) = replies.iter().next() else { return Ok(false) };
    let (_, attributes) = reply.split_header::<4>()?;
    let flags = attributes.find(TABLE_FLAGS).map(|flags| flags.read_be32()).transpose()?;
    Ok(flags.unwrap_or(0) & TABLE_DORMANT != 0)
}

/// Returns why the kernel does not evaluate a built-in chain as such; `None`: it does, or the chain no longer exists.
fn inactive_reason(
    socket: &mut Socket,
    family: Family,
    table: Table,
    hook: Hook,
) -> Result<Option<&'static str>, netlink::Error> {
    let mut question = NetlinkRequest::new(GET_CHAIN, MessageFlags::NONE, &nfgenmsg_header(family));
    question.put_str(CHAIN_TABLE, table.as_str()).put_str(CHAIN_NAME, hook.as_str());
    let replies = find_object(socket, question)?;
    let Some(reply) = replies.iter().next() else { return Ok(None) };
    let (_, attributes) = reply.split_header::<4>()?;
    Ok(compare_base_chain(&attributes, base_chain(table, hook), false)?)
}

fn find_object(socket: &mut Socket, question: NetlinkRequest) -> Result<ReplyMessages, netlink::Error> {
    match socket.get(question) {
        Err(error) if error.errno() == Some(Errno::NOENT) => Ok(ReplyMessages::default()),
        replies => replies,
    }
}
