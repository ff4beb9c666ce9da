//! What the journal has a page for, and how the file names pages and the entries on them.

use model::Family;
use netns::NetnsId;

/// The node's own namespace in the file; others have their number.
const NODE: &str = "node";

/// Owner of a page; `None` is the node.
pub type PageOwner = Option<NetnsId>;

/// Page of notes about one namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalPage {
    /// Kernel settings.
    Settings(PageOwner),
    /// Built-in chains of nf_tables, by family and table, before node-level capture.
    Chains(PageOwner),
    /// Built-in chains of nf_tables in the node's namespace, by family and table, before in-pod capture's rules for probes.
    ProbeChains,
}

/// Whether a key is of the form that ours have.
pub(super) fn is_ours(key: &str) -> bool {
    let name = [" probe chains", " chains"].iter().find_map(|end| key.strip_suffix(end)).unwrap_or(key);
    name == NODE || name.strip_prefix("net:[").and_then(|rest| rest.strip_suffix(']')).is_some()
}

/// The page of the same tables in the other capture mode.
pub(super) fn counterpart_page(page: JournalPage) -> Option<JournalPage> {
    match page {
        JournalPage::Chains(None) => Some(JournalPage::ProbeChains),
        JournalPage::ProbeChains => Some(JournalPage::Chains(None)),
        JournalPage::Chains(Some(_)) | JournalPage::Settings(_) => None,
    }
}

pub(super) fn page_key(page: JournalPage) -> String {
    let name = |whose: PageOwner| whose.map_or_else(|| NODE.to_owned(), |id| format!("net:[{}]", id.ino));
    match page {
        JournalPage::Settings(whose) => name(whose),
        JournalPage::Chains(whose) => format!("{} chains", name(whose)),
        JournalPage::ProbeChains => format!("{NODE} probe chains"),
    }
}

/// A table's name in the journal.
pub(super) fn table_entry(family: Family, table: &str) -> String {
    format!("{family} {table}")
}

pub(super) fn parse_entry(name: &str) -> Option<(Family, &str)> {
    let (family, table) = name.split_once(' ')?;
    Some((Family::BOTH.into_iter().find(|known| known.to_string() == family)?, table))
}
