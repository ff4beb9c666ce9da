//! Built-in chains of iptables. In nf_tables they are ordinary chains: iptables creates each, and its table, when a
//! rule first needs it, and neither is removed with the rule. Removing rules therefore leaves them behind, unless their
//! earlier state is known.

use std::fmt;

use model::Family;
use netlink::{Errno, Malformed, MessageFlags, NetlinkProtocol, NetlinkRequest, ReceivedMessage, Socket};
use nftables::uapi::{
    CHAIN_HOOK, CHAIN_NAME, CHAIN_POLICY, CHAIN_TABLE, CHAIN_USE, DELETE_CHAIN, DELETE_TABLE, GET_CHAIN,
    GET_TABLE, ONLY_EMPTY, TABLE_NAME, TABLE_USE,
};

use crate::{Error, presence::has_no_nf_tables};

/// `NF_ACCEPT`.
const ACCEPT: u32 = 1;
/// Names of all built-in chains, in any table.
const NAMES: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];
/// Text for a table that does not exist.
const NONE: &str = "-";

/// State of one table of iptables-nft, without its rules.
///
/// Its text form is the names of its built-in chains, or `-` if the table does not exist.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BuiltIn {
    exists: bool,
    chains: Vec<String>,
}

impl BuiltIn {
    /// Reads a table of the calling thread's namespace by its iptables name, without creating it.
    ///
    /// # Errors
    /// The kernel cannot be queried.
    pub fn read_table(family: Family, table: &str) -> Result<BuiltIn, Error> {
        let mut tables = BuiltInTables::open(family)?;
        let mut chains = Vec::new();
        for name in NAMES {
            if tables.find_chain(table, name)?.is_some_and(|chain| chain.has_hook) {
                chains.push(name.to_owned());
            }
        }
        Ok(BuiltIn { exists: tables.count_users(table)?.is_some(), chains })
    }

    /// Parses the text form of [`fmt::Display`].
    pub fn parse(text: &str) -> BuiltIn {
        let chains = text.split_whitespace().filter(|word| *word != NONE).map(str::to_owned).collect();
        BuiltIn { exists: text != NONE, chains }
    }

    /// Deletes chains and the table that were created since this state was read, if they are empty: no rule, and no
    /// other policy than that of a new chain.
    ///
    /// # Errors
    /// The kernel refuses, for another reason than that the object is in use.
    pub fn restore_chains(&self, family: Family, table: &str) -> Result<(), Error> {
        let mut tables = BuiltInTables::open(family)?;
        for name in NAMES.into_iter().filter(|name| !self.chains.iter().any(|there| there == name)) {
            if tables.find_chain(table, name)?.is_some_and(|chain| chain.is_unused()) {
                tables.delete_chain(table, name)?;
            }
        }
        if !self.exists && tables.count_users(table)? == Some(0) {
            tables.delete_table(table)?;
        }
        Ok(())
    }
}

impl fmt::Display for BuiltIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.exists { "" } else { NONE })?;
        f.write_str(&self.chains.join(" "))
    }
}

/// Properties of a chain, as the kernel reports them.
#[derive(Debug)]
pub(crate) struct ChainInfo {
    has_hook: bool,
    policy: Option<u32>,
    users: u32,
}

impl ChainInfo {
    pub(crate) fn parse_chain(message: &ReceivedMessage<'_>) -> Result<ChainInfo, Malformed> {
        let (_, attributes) = message.split_header::<4>()?;
        let number = |kind| attributes.find(kind).map(|found| found.read_be32()).transpose();
        Ok(ChainInfo {
            has_hook: attributes.find(CHAIN_HOOK).is_some(),
            policy: number(CHAIN_POLICY)?,
            users: number(CHAIN_USE)?.unwrap_or_default(),
        })
    }

    pub(crate) fn is_unused(&self) -> bool {
        self.has_hook && self.policy == Some(ACCEPT) && self.users == 0
    }
}

/// Access to nf_tables of a namespace.
struct BuiltInTables {
    socket: Socket,
    header: [u8; 4],
}

impl BuiltInTables {
    fn open(family: Family) -> Result<BuiltInTables, Error> {
        // struct nfgenmsg: family (NFPROTO_IPV4, NFPROTO_IPV6), version 0, resource 0
        let header = [if family == Family::V6 { 10 } else { 2 }, 0, 0, 0];
        Ok(BuiltInTables {
            socket: Socket::open(NetlinkProtocol::Netfilter).map_err(Error::BuiltIn)?,
            header,
        })
    }

    fn find_chain(&mut self, table: &str, name: &str) -> Result<Option<ChainInfo>, Error> {
        let mut question = NetlinkRequest::new(GET_CHAIN, MessageFlags::NONE, &self.header);
        question.put_str(CHAIN_TABLE, table).put_str(CHAIN_NAME, name);
        self.query_kernel(question, |reply| Ok(ChainInfo::parse_chain(reply)?))
    }

    /// Returns the number of objects in a table, if it exists.
    fn count_users(&mut self, table: &str) -> Result<Option<u32>, Error> {
        let mut question = NetlinkRequest::new(GET_TABLE, MessageFlags::NONE, &self.header);
        question.put_str(TABLE_NAME, table);
        self.query_kernel(question, |reply| {
            let (_, attributes) = reply.split_header::<4>()?;
            Ok(attributes.find(TABLE_USE).map(|found| found.read_be32()).transpose()?.unwrap_or_default())
        })
    }

    fn query_kernel<T>(
        &mut self,
        question: NetlinkRequest,
        read: impl Fn(&ReceivedMessage<'_>) -> Result<T, netlink::Error>,
    ) -> Result<Option<T>, Error> {
        let replies = match self.socket.get(question) {
            Ok(replies) => replies,
            Err(error) if error.errno() == Some(Errno::NOENT) || has_no_nf_tables(&error) => return Ok(None),
            Err(source) => return Err(Error::BuiltIn(source)),
        };
        replies.iter().next().map(|reply| read(&reply)).transpose().map_err(Error::BuiltIn)
    }

    fn delete_chain(&self, table: &str, name: &str) -> Result<(), Error> {
        let mut change = NetlinkRequest::new(DELETE_CHAIN, ONLY_EMPTY, &self.header);
        change.put_str(CHAIN_TABLE, table).put_str(CHAIN_NAME, name);
        delete_unused(change)
    }

    fn delete_table(&self, table: &str) -> Result<(), Error> {
        let mut change = NetlinkRequest::new(DELETE_TABLE, ONLY_EMPTY, &self.header);
        change.put_str(TABLE_NAME, table);
        delete_unused(change)
    }
}

/// Deletes a chain or a table, unless another component has used or removed it since it was read.
fn delete_unused(change: NetlinkRequest) -> Result<(), Error> {
    match nftables::commit(vec![change]) {
        Err(error) if matches!(error.errno(), Some(Errno::BUSY | Errno::NOENT)) => Ok(()),
        Err(nftables::Error::Commit(source)) => Err(Error::BuiltIn(source)),
        done => Ok(done?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_text_tells_no_table_from_one_without_chains() {
        let with = |exists, chains: &[&str]| BuiltIn {
            exists,
            chains: chains.iter().map(|name| (*name).to_owned()).collect(),
        };
        for (seen, text) in [
            (with(false, &[]), "-"),
            (with(true, &[]), ""),
            (with(true, &["PREROUTING", "OUTPUT"]), "PREROUTING OUTPUT"),
        ] {
            assert_eq!(seen.to_string(), text);
            assert_eq!(BuiltIn::parse(text), seen);
        }
    }
}
