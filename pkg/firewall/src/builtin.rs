//! Built-in chains of iptables. In nf_tables they are ordinary chains: iptables creates each, and its table, when a
//! rule first needs it, and neither is removed with the rule. Removing rules therefore leaves them behind, unless their
//! earlier state is known.

use std::fmt;

use model::Family;
use netlink::{Errno, Malformed, NetlinkProtocol, NetlinkRequest, ReceivedMessage, Socket};
use nftables::uapi::{
    CHAIN_HOOK, CHAIN_NAME, CHAIN_POLICY, CHAIN_TABLE, CHAIN_USE, DELETE_CHAIN, DELETE_TABLE, GET_CHAIN,
    GET_TABLE, ONLY_EMPTY, TABLE_NAME, TABLE_USE, object_message, query_message,
};
use rules::Hook;

use crate::{Error, presence::has_no_nf_tables};

/// `NF_ACCEPT`.
const ACCEPT: u32 = 1;
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
        for name in Hook::ALL.map(Hook::as_str) {
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
        let names = Hook::ALL.map(Hook::as_str);
        for name in names.into_iter().filter(|name| !self.chains.iter().any(|there| there == name)) {
            if tables.find_chain(table, name)?.is_some_and(|chain| chain.is_unused()) {
                let names = [(CHAIN_TABLE, table), (CHAIN_NAME, name)];
                delete_unused(object_message(DELETE_CHAIN, ONLY_EMPTY, tables.family, &names))?;
            }
        }
        if !self.exists && tables.count_users(table)? == Some(0) {
            delete_unused(object_message(DELETE_TABLE, ONLY_EMPTY, tables.family, &[(TABLE_NAME, table)]))?;
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
        Ok(ChainInfo {
            has_hook: attributes.find(CHAIN_HOOK).is_some(),
            policy: attributes.find_be32(CHAIN_POLICY)?,
            users: attributes.find_be32(CHAIN_USE)?.unwrap_or_default(),
        })
    }

    pub(crate) fn is_unused(&self) -> bool {
        self.has_hook && self.policy == Some(ACCEPT) && self.users == 0
    }
}

/// Access to nf_tables of a namespace.
struct BuiltInTables {
    socket: Socket,
    family: u8,
}

impl BuiltInTables {
    fn open(family: Family) -> Result<BuiltInTables, Error> {
        let socket = Socket::open(NetlinkProtocol::Netfilter).map_err(Error::BuiltIn)?;
        Ok(BuiltInTables { socket, family: family.address_family() })
    }

    fn find_chain(&mut self, table: &str, name: &str) -> Result<Option<ChainInfo>, Error> {
        let names = [(CHAIN_TABLE, table), (CHAIN_NAME, name)];
        self.query_kernel(query_message(GET_CHAIN, self.family, &names), ChainInfo::parse_chain)
    }

    /// Returns the number of objects in a table, if it exists.
    fn count_users(&mut self, table: &str) -> Result<Option<u32>, Error> {
        self.query_kernel(query_message(GET_TABLE, self.family, &[(TABLE_NAME, table)]), |reply| {
            let (_, attributes) = reply.split_header::<4>()?;
            Ok(attributes.find_be32(TABLE_USE)?.unwrap_or_default())
        })
    }

    fn query_kernel<T>(
        &mut self,
        question: NetlinkRequest,
        read: impl Fn(&ReceivedMessage<'_>) -> Result<T, Malformed>,
    ) -> Result<Option<T>, Error> {
        let replies = match self.socket.get(question) {
            Ok(replies) => replies,
            Err(error) if error.errno() == Some(Errno::NOENT) || has_no_nf_tables(&error) => return Ok(None),
            Err(source) => return Err(Error::BuiltIn(source)),
        };
        let found = replies.iter().next().map(|reply| read(&reply)).transpose();
        found.map_err(|malformed| Error::BuiltIn(malformed.into()))
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
