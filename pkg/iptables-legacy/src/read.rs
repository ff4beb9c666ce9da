//! Reading of the tables of the kernel's ip_tables, which has no generation for them.

mod chains;
mod decode;
mod entries;

use std::{
    fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io,
    mem::{offset_of, size_of},
    path::Path,
};

use model::Family;
use netlink::OptionSocket;

use nftables::XtablesDecoder;
use rules::{ChainSet, SavedTables, SavedTablesBuilder, Table};

use crate::Error;
use entries::EntryLayout;

pub use chains::LegacyRule;

/// `IPT_SO_GET_INFO` and `IPT_SO_GET_ENTRIES`, the same numbers for IPv6 (kernel:
/// `include/uapi/linux/netfilter_ipv4/ip_tables.h`).
const GET_INFO: i32 = 64;
const GET_ENTRIES: i32 = 65;
/// Length of a table's name with its trailing NUL (`XT_TABLE_MAXNAMELEN`).
const NAME: usize = 32;
/// Maximum number of attempts: a table may be replaced between the queries for its size and its content.
const ATTEMPTS: u32 = 4;
/// Maximum size of a pod's table, in bytes; a rule has some 300.
pub const LONGEST: usize = 16 << 20;
/// Maximum size of a node's table, in bytes.
pub const LONGEST_OF_NODE: usize = 256 << 20;

/// `struct ipt_getinfo`.
#[repr(C)]
struct TableInfo {
    name: [u8; NAME],
    valid_hooks: u32,
    hook_entry: [u32; 5],
    underflow: [u32; 5],
    num_entries: u32,
    size: u32,
}

/// `struct ipt_get_entries`, before the entries, which are aligned for a 64-bit counter.
#[repr(C)]
struct EntriesHeader {
    name: [u8; NAME],
    size: u32,
    entries: [u64; 0],
}

/// Returns a hash of all rules of the legacy tables in the calling thread's namespace, without their counters, which
/// can only be compared for equality; `None` if there are no such tables. A table longer than `longest` is an error.
///
/// # Errors
/// The kernel could not be queried, its answer is malformed, or a table is longer.
pub fn tables_fingerprint(longest: usize) -> Result<Option<u64>, Error> {
    let (mut hasher, mut is_any) = (DefaultHasher::new(), false);
    for family in Family::BOTH {
        each_table(family, longest, |table, content| {
            is_any = true;
            (family, table, content).hash(&mut hasher);
            Ok(())
        })?;
    }
    Ok(is_any.then(|| hasher.finish()))
}

/// Reads the legacy tables of a family in the calling thread's namespace that iptables uses, as far as they concern
/// these owners (see [`SavedTables::parse_for`]).
///
/// # Errors
/// As [`tables_fingerprint`].
pub fn read_listing(family: Family, owners: &[ChainSet], longest: usize) -> Result<SavedTables, Error> {
    let (mut builder, mut decoder) = (SavedTablesBuilder::new(owners), XtablesDecoder::default());
    let layout = EntryLayout::for_family(family);
    let chains = read_each(family, longest, |name, rule| {
        let Some(table) = Table::from_name(name) else { return };
        builder.add_table(table);
        let decoded = || decode::decode_rule(family, &layout, rule, &mut decoder);
        builder.add_rule(table, rule.chain, |is_owned| rule.target_chain.is_some_and(is_owned), decoded);
    })?;
    decoder.check_queries().map_err(|source| Error::LegacySocket { family, source })?;
    for (name, chains) in chains {
        let Some(table) = Table::from_name(&name) else { continue };
        builder.add_table(table);
        chains.iter().for_each(|chain| builder.add_chain(table, chain));
    }
    Ok(builder.build())
}

/// Passes on the rules of all legacy tables of a family in the calling thread's namespace, a pod's, each with its
/// table.
///
/// # Errors
/// As [`tables_fingerprint`].
pub fn read_rules(family: Family, note: impl FnMut(&str, &LegacyRule<'_>)) -> Result<(), Error> {
    read_each(family, LONGEST, note).map(drop)
}

/// Passes on the rules of all legacy tables of a family, each with its table. Returns the names of the tables and of
/// their chains.
fn read_each(
    family: Family,
    longest: usize,
    mut note: impl FnMut(&str, &LegacyRule<'_>),
) -> Result<Vec<(String, Vec<String>)>, Error> {
    let (mut found, layout) = (Vec::new(), EntryLayout::for_family(family));
    each_table(family, longest, |table, content| {
        let (info, answer) = content.split_at_checked(size_of::<TableInfo>()).unwrap_or_default();
        let entries = answer.get(offset_of!(EntriesHeader, entries)..).unwrap_or_default();
        let chains = chains::read_chains(info, entries, &layout, |rule| note(table, rule))?;
        found.push((table.to_owned(), chains));
        Ok(())
    })?;
    Ok(found)
}

/// Passes on the name and content of each legacy table of a family. The error of `visit` describes what is malformed.
fn each_table(
    family: Family,
    longest: usize,
    mut visit: impl FnMut(&str, &[u8]) -> Result<(), &'static str>,
) -> Result<(), Error> {
    let names = table_names(family)?;
    if names.is_empty() {
        return Ok(());
    }
    let socket =
        OptionSocket::open(family == Family::V6).map_err(|source| Error::LegacySocket { family, source })?;
    for table in names {
        let content = read_table(&socket, family, &table, longest);
        let visited = content.and_then(|content| visit(&table, &content).map_err(malformed));
        visited.map_err(|source| Error::LegacyTable { family, table, source })?;
    }
    Ok(())
}

/// Parses the rules of a table from the results of both queries, each with its chain and text as in a save. Clears the
/// counters in the second result.
pub(crate) fn parse_table(
    family: Family,
    info: &[u8],
    entries: &mut [u8],
) -> Result<Vec<(String, String)>, &'static str> {
    let (layout, mut decoder) = (EntryLayout::for_family(family), XtablesDecoder::default());
    entries::clear_counters(entries, &layout)?;
    let mut rules = Vec::new();
    chains::read_chains(info, entries, &layout, |rule| {
        let saved = decode::decode_rule(family, &layout, rule, &mut decoder);
        rules.push((saved.chain, saved.text));
    })?;
    Ok(rules)
}

/// Returns the names of the legacy tables of a family that exist in the calling thread's namespace. The kernel lists
/// them only if ip_tables is loaded, and a table only if it was used.
///
/// # Errors
/// [`Error::Read`]: the kernel's list could not be read.
pub fn table_names(family: Family) -> Result<Vec<String>, Error> {
    let path = Path::new(match family {
        Family::V4 => "/proc/thread-self/net/ip_tables_names",
        Family::V6 => "/proc/thread-self/net/ip6_tables_names",
    });
    match fs::read_to_string(path) {
        Ok(names) => Ok(names.split_whitespace().map(str::to_owned).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(source) => Err(Error::Read { path: path.to_owned(), source }),
    }
}

fn malformed(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Returns a table's entry points and rules, with cleared counters.
fn read_table(socket: &OptionSocket, family: Family, table: &str, longest: usize) -> io::Result<Vec<u8>> {
    let mut attempt = 1;
    loop {
        match read_once(socket, family, table, longest) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && attempt < ATTEMPTS => attempt += 1,
            other => return other,
        }
    }
}

fn read_once(socket: &OptionSocket, family: Family, table: &str, longest: usize) -> io::Result<Vec<u8>> {
    let mut info = named_buffer(table, size_of::<TableInfo>())?;
    socket.read_option(GET_INFO, &mut info)?;
    let size = chains::read_u32(&info, offset_of!(TableInfo, size)).map_err(malformed)?;
    let length = usize::try_from(size).ok().filter(|length| *length <= longest);
    let length = length.ok_or_else(|| malformed("it is longer than the limit"))?;
    let mut content = named_buffer(table, offset_of!(EntriesHeader, entries) + length)?;
    if let Some(asked) = content.get_mut(offset_of!(EntriesHeader, size)..).and_then(<[u8]>::first_chunk_mut)
    {
        *asked = size.to_ne_bytes();
    }
    socket.read_option(GET_ENTRIES, &mut content)?;
    let entries = content.get_mut(offset_of!(EntriesHeader, entries)..).unwrap_or_default();
    entries::clear_counters(entries, &EntryLayout::for_family(family)).map_err(malformed)?;
    info.append(&mut content);
    Ok(info)
}

/// Returns a zeroed structure of this length that begins with the name of a table.
fn named_buffer(table: &str, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    let place = bytes.get_mut(..table.len()).filter(|_| table.len() < NAME);
    place.ok_or_else(|| malformed("its name is too long"))?.copy_from_slice(table.as_bytes());
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_as_long_as_the_kernels() {
        assert_eq!(size_of::<TableInfo>(), 84);
        assert_eq!(offset_of!(TableInfo, size), 80);
        assert_eq!(offset_of!(EntriesHeader, entries), 36_usize.next_multiple_of(align_of::<u64>()));
    }

    #[test]
    fn a_name_that_the_kernel_cannot_have_is_refused() {
        assert_eq!(named_buffer("nat", 40).ok().unwrap()[..5], *b"nat\0\0");
        for (name, length) in [("x".repeat(32), 84), ("mangle".to_owned(), 3)] {
            assert!(named_buffer(&name, length).is_err());
        }
    }
}
