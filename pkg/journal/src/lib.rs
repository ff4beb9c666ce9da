//! How kernel settings were before we changed them, and which built-in chains there were before our rules came, so that an
//! uninstallation can put all back.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use netns::NetnsId;

use crate::Error;

/// A journal is small; a larger file is none.
const MAX: usize = 1 << 20;
/// The node's own namespace in the file; others have their number.
const NODE: &str = "node";

/// Old values by name, by namespace.
type Entries = BTreeMap<String, BTreeMap<String, String>>;

/// What is noted, in a file.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    entries: Entries,
}

/// Whose: none is the node.
pub(crate) type Whose = Option<NetnsId>;

/// What is noted about one namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Page {
    /// Kernel settings.
    Settings(Whose),
    /// Built-in chains of nf_tables, by family and table.
    Chains(Whose),
}

impl Journal {
    /// Reads it; one that is missing or unreadable is empty, because nothing in it is worth stopping for.
    pub(crate) fn open(path: &Path) -> Journal {
        let text = hostfs::read(path, MAX).unwrap_or_default();
        let entries = serde_json::from_slice(&text).unwrap_or_default();
        Journal { path: path.to_owned(), entries }
    }

    pub(crate) fn entries(&self, page: Page) -> BTreeMap<String, String> {
        self.entries.get(&key(page)).cloned().unwrap_or_default()
    }

    pub(crate) fn has(&self, page: Page) -> bool {
        self.entries.contains_key(&key(page))
    }

    /// Notes old values by name, except where an older one is noted: the first is what was there before us.
    pub(crate) fn note(
        &mut self,
        page: Page,
        old: impl Iterator<Item = (String, String)>,
    ) -> Result<(), Error> {
        let noted = self.entries.get(&key(page));
        let new = |(name, _): &(String, String)| noted.is_none_or(|noted| !noted.contains_key(name));
        let new: Vec<_> = old.filter(new).collect();
        if new.is_empty() {
            return Ok(());
        }
        let mut entries = self.entries.clone();
        entries.entry(key(page)).or_default().extend(new);
        self.save(entries)
    }

    pub(crate) fn forget(&mut self, page: Page, name: &str) -> Result<(), Error> {
        let mut entries = self.entries.clone();
        let Some(noted) = entries.get_mut(&key(page)) else { return Ok(()) };
        noted.remove(name);
        entries.retain(|_, noted| !noted.is_empty());
        self.save(entries)
    }

    /// Forgets the namespaces that are not among these: they have ended, and their numbers will be others'.
    pub(crate) fn keep_only(&mut self, whose: &[NetnsId]) -> Result<(), Error> {
        let kept: Vec<String> = std::iter::once(None)
            .chain(whose.iter().copied().map(Some))
            .flat_map(|whose| [Page::Settings(whose), Page::Chains(whose)].map(key))
            .collect();
        let mut entries = self.entries.clone();
        entries.retain(|key, _| kept.contains(key));
        if entries.len() == self.entries.len() { Ok(()) } else { self.save(entries) }
    }

    /// What could not be written is not remembered either: the next attempt writes it.
    fn save(&mut self, entries: Entries) -> Result<(), Error> {
        if entries.is_empty() {
            hostfs::remove(&self.path).map_err(Error::Journal)?;
        } else {
            let text = serde_json::to_vec(&entries).unwrap_or_default(); // maps of strings always print
            hostfs::write(&self.path, &text, 0o600).map_err(Error::Journal)?;
        }
        self.entries = entries;
        Ok(())
    }
}

fn key(page: Page) -> String {
    let name = |whose: Whose| whose.map_or_else(|| NODE.to_owned(), |id| format!("net:[{}]", id.ino));
    match page {
        Page::Settings(whose) => name(whose),
        Page::Chains(whose) => format!("{} chains", name(whose)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: Page = Page::Settings(None);

    #[test]
    fn the_oldest_value_stays_and_what_could_not_be_written_is_not_remembered() {
        let name = format!("journal-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        let path = directory.join("settings");
        let note = |journal: &mut Journal, values: &[(&str, &str)]| {
            journal.note(NODES, values.iter().map(|(name, old)| ((*name).to_owned(), (*old).to_owned())))
        };
        let mut journal = Journal::open(&path);
        for _ in 0..2 {
            let refused = note(&mut journal, &[("a", "1")]);
            assert!(matches!(refused, Err(Error::Journal(_))), "{refused:?}");
        }
        assert!(journal.entries(NODES).is_empty());
        std::fs::create_dir(&directory).unwrap();
        note(&mut journal, &[("a", "1"), ("b", "2")]).unwrap();
        note(&mut journal, &[("b", "3"), ("c", "4")]).unwrap();
        let wanted =
            [("a", "1"), ("b", "2"), ("c", "4")].map(|(name, old)| (name.to_owned(), old.to_owned()));
        assert_eq!(Journal::open(&path).entries(NODES), wanted.into());
        for name in ["a", "b", "c"] {
            assert!(path.exists(), "{name} is noted");
            journal.forget(NODES, name).unwrap();
        }
        assert!(!path.exists());
        std::fs::remove_dir_all(directory).unwrap();
    }
}
