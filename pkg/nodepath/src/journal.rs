//! How kernel settings were before we changed them, so that an uninstallation can put them back.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use crate::Error;

/// A journal is small; a larger file is none.
const MAX: usize = 1 << 20;

/// Settings by name, in a file.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    entries: BTreeMap<String, String>,
}

impl Journal {
    /// Reads it; one that is missing or unreadable is empty, because nothing in it is worth stopping for.
    pub(crate) fn open(path: &Path) -> Journal {
        let text = hostfs::read(path, MAX).unwrap_or_default();
        let entries = serde_json::from_slice(&text).unwrap_or_default();
        Journal { path: path.to_owned(), entries }
    }

    pub(crate) fn entries(&self) -> &BTreeMap<String, String> {
        &self.entries
    }

    /// Notes an old value, unless an older one is noted: the first is what was there before us.
    pub(crate) fn note(&mut self, name: &str, old: &str) -> Result<(), Error> {
        if self.entries.contains_key(name) {
            return Ok(());
        }
        self.entries.insert(name.to_owned(), old.to_owned());
        self.save()
    }

    pub(crate) fn forget(&mut self, name: &str) -> Result<(), Error> {
        match self.entries.remove(name) {
            Some(_) => self.save(),
            None => Ok(()),
        }
    }

    fn save(&self) -> Result<(), Error> {
        if self.entries.is_empty() {
            return hostfs::remove(&self.path).map(drop).map_err(Error::Journal);
        }
        let text = serde_json::to_vec(&self.entries).unwrap_or_default(); // a map of strings always prints
        hostfs::write(&self.path, &text, 0o600).map(drop).map_err(Error::Journal)
    }
}
