//! Backends that have tables in the calling thread's network namespace, queried without creating any.

use std::collections::BTreeSet;

use model::Family;
use netlink::{Errno, ListBounds, NetlinkProtocol, Socket};
use nftables::{
    native::has_table_prefix,
    uapi::{GET_TABLE, INET, TABLE_NAME, query_message},
};

use rules::{Table, native::table_name};

use crate::{Backend, Error, backend::native_prefixes};

/// The families in which a backend has at least one table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BackendPresence {
    pub(crate) nft: Vec<Family>,
    pub(crate) legacy: Vec<Family>,
    /// Whether native tables of ours exist.
    pub(crate) native: bool,
    /// Whether the kernel has nf_tables.
    pub(crate) has_nf_tables: bool,
}

impl BackendPresence {
    /// Returns the families of one backend.
    pub(crate) fn backend_families(&self, backend: Backend) -> &[Family] {
        match backend {
            Backend::Nft => &self.nft,
            Backend::Legacy => &self.legacy,
            Backend::Native => &[],
        }
    }

    /// Returns whether a backend has any table; of native ones, only ours count.
    pub(crate) fn has_tables(&self, backend: Backend) -> bool {
        match backend {
            Backend::Native => self.native,
            _ => !self.backend_families(backend).is_empty(),
        }
    }

    /// Queries the kernel. A kernel without nf_tables has no tables of them.
    pub(crate) fn observe_netns() -> Result<BackendPresence, Error> {
        let mut legacy = Vec::new();
        for family in Family::BOTH {
            if !iptables_legacy::table_names(family)?.is_empty() {
                legacy.push(family);
            }
        }
        let tables = all_nft_tables()?;
        let has_nf_tables = tables.is_some();
        let has = |number: u8| tables.iter().flatten().any(|(of, _)| *of == number);
        let nft = Family::BOTH.into_iter().filter(|family| has(family.address_family())).collect();
        let native = tables.iter().flatten().any(|(of, name)| *of == INET && is_native(name));
        Ok(BackendPresence { nft, legacy, native, has_nf_tables })
    }
}

/// Returns whether the error means that the kernel has no nf_tables. Any other error leaves the tables unknown:
/// treating it as "none" would add every jump twice.
pub(crate) fn has_no_nf_tables(error: &netlink::Error) -> bool {
    let unknown = |errno: Errno| [Errno::INVAL, Errno::OPNOTSUPP, Errno::PROTONOSUPPORT].contains(&errno);
    match error {
        netlink::Error::Kernel { errno, .. } => unknown(*errno),
        netlink::Error::Io { source, .. } => source
            .raw_os_error()
            .and_then(|number| u16::try_from(number).ok())
            .is_some_and(|number| unknown(Errno(number))),
        _ => false,
    }
}

/// Treats a kernel without nf_tables as one without objects.
pub(crate) fn or_empty<T: Default>(found: Result<T, netlink::Error>) -> Result<T, Error> {
    match found {
        Err(error) if has_no_nf_tables(&error) => Ok(T::default()),
        found => found.map_err(Error::Presence),
    }
}

/// Returns all tables of nf_tables, by family and name; `None` if the kernel has no nf_tables.
pub(crate) fn all_nft_tables() -> Result<Option<BTreeSet<(u8, String)>>, Error> {
    or_empty(list_tables().map(Some))
}

/// Lists the tables. If there are more than are read in a pod, assumes tables of each family of iptables, and native
/// ones of ours.
fn list_tables() -> Result<BTreeSet<(u8, String)>, netlink::Error> {
    let mut found = BTreeSet::new();
    let socket = Socket::open(NetlinkProtocol::Netfilter)?.with_bounds(ListBounds::POD);
    let (replies, rest) = socket.dump_head(&query_message(GET_TABLE, 0, &[]), ListBounds::POD.bytes)?;
    if rest.is_none() {
        found.extend(Family::BOTH.map(|family| (family.address_family(), String::new())));
        found.extend(native_prefixes().map(|prefix| (INET, table_name(prefix, Table::Nat))));
    }
    for reply in replies.iter() {
        let ([number, ..], attributes) = reply.split_header::<4>()?;
        let name = attributes.find(TABLE_NAME).ok_or(netlink::Malformed("table without a name"))?;
        let _ = found.insert((*number, name.read_name().to_owned()));
    }
    Ok(found)
}

/// Returns whether this is the name of a native table of ours.
pub(crate) fn is_native(name: &str) -> bool {
    native_prefixes().any(|prefix| has_table_prefix(prefix, name))
}

/// Returns the generation of the nf_tables rules of the calling thread's namespace, which can only be compared for
/// equality; `None` if the kernel has no nf_tables.
pub(crate) fn rules_generation() -> Result<Option<u32>, Error> {
    match nftables::read_generation() {
        Ok(number) => Ok(Some(number)),
        Err(nftables::Error::Read(error)) if has_no_nf_tables(&error) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn only_a_kernel_that_does_not_know_nf_tables_counts_as_one_without() {
        let kernel = |errno| netlink::Error::Kernel { errno, message: None };
        let io = |number| netlink::Error::Io { step: "open", source: io::Error::from_raw_os_error(number) };
        for none in [kernel(Errno::INVAL), kernel(Errno::OPNOTSUPP), io(93)] {
            assert!(has_no_nf_tables(&none), "{none}");
        }
        let other = [kernel(Errno::PERM), kernel(Errno::BUSY), io(24), netlink::Error::Interrupted(8)];
        for unknown in other {
            assert!(!has_no_nf_tables(&unknown), "{unknown}");
        }
    }
}
