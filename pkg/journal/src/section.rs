//! Sections of the journal, and the names of sections and entries in the file.

use model::Family;
use netns::NetnsId;

/// Name of the node's own namespace in the file; others have their number.
const NODE: &str = "node";

/// Owner of a section; `None`: the node.
pub type SectionOwner = Option<NetnsId>;

/// Section of entries about one namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalSection {
    /// Kernel settings.
    Settings(SectionOwner),
    /// Built-in chains of nf_tables, by family and table, before node-level capture.
    Chains(SectionOwner),
    /// Built-in chains of nf_tables in the node's namespace, by family and table, before in-pod capture's rules for probes.
    ProbeChains,
}

/// Whether a key has the form of ours.
pub(super) fn is_ours(key: &str) -> bool {
    let name = [" probe chains", " chains"].iter().find_map(|end| key.strip_suffix(end)).unwrap_or(key);
    name == NODE || name.strip_prefix("net:[").and_then(|rest| rest.strip_suffix(']')).is_some()
}

/// Returns the section of these tables in the other capture mode.
pub(super) fn counterpart_section(section: JournalSection) -> Option<JournalSection> {
    match section {
        JournalSection::Chains(None) => Some(JournalSection::ProbeChains),
        JournalSection::ProbeChains => Some(JournalSection::Chains(None)),
        JournalSection::Chains(Some(_)) | JournalSection::Settings(_) => None,
    }
}

pub(super) fn section_key(section: JournalSection) -> String {
    let name = |whose: SectionOwner| whose.map_or_else(|| NODE.to_owned(), |id| format!("net:[{}]", id.ino));
    match section {
        JournalSection::Settings(whose) => name(whose),
        JournalSection::Chains(whose) => format!("{} chains", name(whose)),
        JournalSection::ProbeChains => format!("{NODE} probe chains"),
    }
}

/// Returns a table's name in the journal.
pub(super) fn table_entry(family: Family, table: &str) -> String {
    format!("{family} {table}")
}

pub(super) fn parse_entry(name: &str) -> Option<(Family, &str)> {
    let (family, table) = name.split_once(' ')?;
    Some((Family::BOTH.into_iter().find(|known| known.to_string() == family)?, table))
}
