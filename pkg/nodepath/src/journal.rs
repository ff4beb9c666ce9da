//! How kernel settings were before we changed them, so that an uninstallation can put them back.

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

/// Settings of namespaces, in a file.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    entries: Entries,
}

/// Whose settings: none is the node.
pub(crate) type Whose = Option<NetnsId>;

impl Journal {
    /// Reads it; one that is missing or unreadable is empty, because nothing in it is worth stopping for.
    pub(crate) fn open(path: &Path) -> Journal {
        let text = hostfs::read(path, MAX).unwrap_or_default();
        let entries = serde_json::from_slice(&text).unwrap_or_default();
        Journal { path: path.to_owned(), entries }
    }

    pub(crate) fn entries(&self, whose: Whose) -> BTreeMap<String, String> {
        self.entries.get(&key(whose)).cloned().unwrap_or_default()
    }

    /// Notes an old value, unless an older one is noted: the first is what was there before us.
    pub(crate) fn note(&mut self, whose: Whose, name: &str, old: &str) -> Result<(), Error> {
        let entries = self.entries.entry(key(whose)).or_default();
        if entries.contains_key(name) {
            return Ok(());
        }
        entries.insert(name.to_owned(), old.to_owned());
        self.save()
    }

    pub(crate) fn forget(&mut self, whose: Whose, name: &str) -> Result<(), Error> {
        let key = key(whose);
        let Some(entries) = self.entries.get_mut(&key) else { return Ok(()) };
        entries.remove(name);
        if entries.is_empty() {
            self.entries.remove(&key);
        }
        self.save()
    }

    /// Forgets the namespaces that are not among these: they have ended, and their numbers will be others'.
    pub(crate) fn keep_only(&mut self, whose: &[NetnsId]) -> Result<(), Error> {
        let before = self.entries.len();
        let kept: Vec<String> = whose.iter().map(|id| key(Some(*id))).collect();
        self.entries.retain(|key, _| key == NODE || kept.contains(key));
        if self.entries.len() == before { Ok(()) } else { self.save() }
    }

    fn save(&self) -> Result<(), Error> {
        if self.entries.is_empty() {
            return hostfs::remove(&self.path).map(drop).map_err(Error::Journal);
        }
        let text = serde_json::to_vec(&self.entries).unwrap_or_default(); // maps of strings always print
        hostfs::write(&self.path, &text, 0o600).map(drop).map_err(Error::Journal)
    }
}

fn key(whose: Whose) -> String {
    whose.map_or_else(|| NODE.to_owned(), |id| format!("net:[{}]", id.ino))
}
