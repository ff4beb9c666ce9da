//! Journal of the node's state before us: previous kernel settings, and the built-in chains of nf_tables that existed before our
//! rules, so that an uninstallation restores both.
//!
//! Every change reads the file again, so that node-level capture and in-pod capture can share it during a migration. Only the agent
//! that holds the node's lock may use it.

mod section;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use firewall::BuiltIn;
use model::Family;
use netns::NetnsId;
use serde_json::{Value, json};

use section::{counterpart_section, is_ours, parse_entry, section_key, table_entry};

pub use section::{JournalSection, SectionOwner};

/// Maximum size of a journal, in bytes; a larger file is none.
const MAX: usize = 1 << 20;
/// Serialises changes in this process.
static CHANGES: Mutex<()> = Mutex::new(());

/// Reason why a value could not be recorded or restored.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file could not be read or written.
    #[error("cannot keep the journal of kernel settings and built-in chains: {0}")]
    File(#[source] hostfs::Error),
    /// The kernel refused.
    #[error(transparent)]
    BuiltIn(#[from] firewall::Error),
}

/// Old values by name, by namespace.
type JournalEntries = BTreeMap<String, BTreeMap<String, String>>;

/// Content of the journal's file.
#[derive(Debug, Clone, Default, PartialEq)]
struct JournalContents {
    entries: JournalEntries,
    /// Entries of another version, unknown to us, kept for that version.
    foreign: BTreeMap<String, Value>,
    /// Whether the file could not be parsed.
    unread: bool,
}

/// Journal in a file.
#[derive(Debug, Clone)]
pub struct Journal {
    path: PathBuf,
}

/// Content of a journal at one moment.
#[derive(Debug, Clone)]
pub struct JournalSnapshot(JournalEntries);

impl JournalSnapshot {
    /// Returns the entries of a section, by name.
    pub fn section_entries(&self, section: JournalSection) -> BTreeMap<String, String> {
        self.0.get(&section_key(section)).cloned().unwrap_or_default()
    }
}

impl Journal {
    /// Returns the journal in our file, which exists while it has entries.
    pub fn for_file(path: &Path) -> Journal {
        Journal { path: path.to_owned() }
    }

    /// Returns all entries at this moment, for several queries after one read of the file.
    pub fn read_snapshot(&self) -> JournalSnapshot {
        JournalSnapshot(self.read_contents().unwrap_or_default().entries)
    }

    /// Records old values by name, except where an older one is recorded: the first is the value before us.
    ///
    /// # Errors
    /// The file cannot be read or written; nothing is recorded then.
    pub fn note_values(
        &self,
        section: JournalSection,
        old: impl Iterator<Item = (String, String)>,
    ) -> Result<(), Error> {
        self.update_entries(|entries| {
            let new: Vec<_> = old
                .filter(|(name, _)| {
                    entries.get(&section_key(section)).is_none_or(|noted| !noted.contains_key(name))
                })
                .collect();
            if !new.is_empty() {
                entries.entry(section_key(section)).or_default().extend(new);
            }
        })
    }

    /// Removes the entry with this name.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn forget_value(&self, section: JournalSection, name: &str) -> Result<(), Error> {
        self.update_entries(|entries| {
            if let Some(noted) = entries.get_mut(&section_key(section)) {
                noted.remove(name);
            }
        })
    }

    /// Removes the namespaces that are not among these: they have ended, and their numbers will be reused. The node's is kept.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn keep_only(&self, whose: &[NetnsId]) -> Result<(), Error> {
        let kept: Vec<String> = std::iter::once(None)
            .chain(whose.iter().copied().map(Some))
            .flat_map(|whose| [JournalSection::Settings(whose), JournalSection::Chains(whose)])
            .chain([JournalSection::ProbeChains])
            .map(section_key)
            .collect();
        self.update_entries(|entries| entries.retain(|key, _| kept.contains(key) || !is_ours(key)))
    }

    /// Records which built-in chains the calling thread's namespace has in these tables, unless recorded before. Entries of the
    /// node's other capture mode apply as well: its chains are ours, too.
    ///
    /// # Errors
    /// The kernel's query fails, or the file cannot be read or written.
    pub fn note_chains(&self, section: JournalSection, tables: &[(Family, &str)]) -> Result<(), Error> {
        let all = JournalSnapshot(self.read_contents()?.entries);
        let (noted, earlier) = (
            all.section_entries(section),
            counterpart_section(section).map(|other| all.section_entries(other)).unwrap_or_default(),
        );
        let mut noticed = Vec::new();
        for (family, table) in tables {
            let name = table_entry(*family, table);
            if noted.contains_key(&name) {
                continue;
            }
            let before = match earlier.get(&name) {
                Some(before) => before.clone(),
                None => BuiltIn::read_table(*family, table)?.to_string(),
            };
            noticed.push((name, before));
        }
        if noticed.is_empty() { Ok(()) } else { self.note_values(section, noticed.into_iter()) }
    }

    /// Removes unused built-in chains that were created since they were recorded, and the entries. To be called in the section's
    /// namespace.
    ///
    /// # Errors
    /// The kernel refuses, or the file cannot be read or written.
    pub fn remove_chains(&self, section: JournalSection) -> Result<(), Error> {
        for (name, before) in JournalSnapshot(self.read_contents()?.entries).section_entries(section) {
            if let Some((family, table)) = parse_entry(&name) {
                BuiltIn::parse(&before).restore_chains(family, table)?;
            }
            self.forget_value(section, &name)?;
        }
        Ok(())
    }

    /// Reads the file. A missing or malformed one is empty, because its content does not justify a failure. A malformed one,
    /// which a newer version may have written before a downgrade, is kept.
    ///
    /// # Errors
    /// The kernel refuses, as without file descriptors: the old values in the file must not be replaced by present ones.
    fn read_contents(&self) -> Result<JournalContents, Error> {
        let text = match hostfs::read(&self.path, MAX) {
            Err(error) if error.io_error().raw_os_error().is_some() && !error.is_missing() => {
                return Err(Error::File(error));
            }
            read => read.unwrap_or_default(),
        };
        let all: Option<BTreeMap<String, Value>> = serde_json::from_slice(&text).ok();
        let mut contents =
            JournalContents { unread: all.is_none() && !text.is_empty(), ..JournalContents::default() };
        for (key, value) in all.unwrap_or_default() {
            match serde_json::from_value(value.clone()) {
                Ok(noted) => drop(contents.entries.insert(key, noted)),
                Err(_) => drop(contents.foreign.insert(key, value)),
            }
        }
        Ok(contents)
    }

    fn update_entries(&self, change: impl FnOnce(&mut JournalEntries)) -> Result<(), Error> {
        let _lock = CHANGES.lock().unwrap_or_else(PoisonError::into_inner); // the file is always complete
        let JournalContents { entries: before, foreign, unread } = self.read_contents()?;
        let mut entries = before.clone();
        change(&mut entries);
        entries.retain(|_, noted| !noted.is_empty());
        if entries == before {
            return Ok(());
        }
        if unread {
            hostfs::rename(&self.path, &self.path.with_extension("unread")).map_err(Error::File)?;
        }
        if entries.is_empty() && foreign.is_empty() {
            let _ = hostfs::remove(&self.path).map_err(Error::File)?;
            return Ok(());
        }
        let ours = entries.into_iter().map(|(key, noted)| (key, json!(noted)));
        let all: BTreeMap<String, Value> = foreign.into_iter().chain(ours).collect();
        let text = serde_json::to_vec(&all).unwrap_or_default(); // maps with string keys always serialise
        let _ = hostfs::write(&self.path, &text, 0o600).map_err(Error::File)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: JournalSection = JournalSection::Settings(None);

    fn directory(name: &str) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("journal-{name}-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        directory
    }

    #[test]
    fn what_a_newer_version_noted_stays() {
        let directory = directory("newer");
        let path = directory.join("settings");
        std::fs::write(&path, r#"{"node":{"a":"1"},"net:[5]":{"b":"2"},"version":9,"links":{"c":{"mtu":1500}},"net:[5] sets":{"d":"3"}}"#)
            .unwrap();
        let read = || serde_json::from_slice::<Value>(&std::fs::read(&path).unwrap()).unwrap();
        let journal = Journal::for_file(&path);
        journal.keep_only(&[]).unwrap();
        let newer = json!({"version": 9, "links": {"c": {"mtu": 1500}}, "net:[5] sets": {"d": "3"}});
        let mut with_ours = newer.clone();
        with_ours["node"] = json!({"a": "1"});
        assert_eq!(read(), with_ours, "only the namespace that has ended is forgotten");
        journal.forget_value(NODES, "a").unwrap();
        assert_eq!(read(), newer);
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_file_that_cannot_be_read_is_kept_beside_ours() {
        let directory = directory("unread");
        let path = directory.join("settings.json");
        std::fs::write(&path, "[9]").unwrap();
        let journal = Journal::for_file(&path);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "[9]", "reading changes nothing");
        journal.note_values(NODES, [("a".to_owned(), "1".to_owned())].into_iter()).unwrap();
        assert_eq!(std::fs::read_to_string(path.with_extension("unread")).unwrap(), "[9]");
        assert_eq!(
            Journal::for_file(&path).read_snapshot().section_entries(NODES),
            BTreeMap::from([("a".to_owned(), "1".to_owned())])
        );
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn the_oldest_value_stays_and_what_could_not_be_written_is_not_remembered() {
        let name = format!("journal-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        let path = directory.join("settings");
        let note = |journal: &Journal, values: &[(&str, &str)]| {
            journal
                .note_values(NODES, values.iter().map(|(name, old)| ((*name).to_owned(), (*old).to_owned())))
        };
        let journal = Journal::for_file(&path);
        for _ in 0..2 {
            let refused = note(&journal, &[("a", "1")]);
            assert!(matches!(refused, Err(Error::File(_))), "{refused:?}");
        }
        assert!(journal.read_snapshot().section_entries(NODES).is_empty());
        std::fs::create_dir(&directory).unwrap();
        note(&journal, &[("a", "1"), ("b", "2")]).unwrap();
        note(&journal, &[("b", "3"), ("c", "4")]).unwrap();
        let wanted =
            [("a", "1"), ("b", "2"), ("c", "4")].map(|(name, old)| (name.to_owned(), old.to_owned()));
        assert_eq!(Journal::for_file(&path).read_snapshot().section_entries(NODES), wanted.into());
        for name in ["a", "b", "c"] {
            assert!(path.exists(), "{name} is noted");
            journal.forget_value(NODES, name).unwrap();
        }
        assert!(!path.exists());
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn old_values_that_the_kernel_does_not_let_us_read_are_not_taken_for_none() {
        let directory = directory("unreadable");
        let path = directory.join("settings");
        let journal = Journal::for_file(&path);
        assert_eq!(journal.read_contents().unwrap(), JournalContents::default(), "no file");
        std::os::unix::fs::symlink(&path, &path).unwrap();
        assert!(matches!(journal.read_contents(), Err(Error::File(_))), "a link to itself");
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert_eq!(journal.read_contents().unwrap(), JournalContents::default(), "no file of ours");
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn namespaces_that_ended_are_forgotten_and_the_node_is_not() {
        let path = std::env::temp_dir().join(format!("journal-kept-{}", std::process::id()));
        let journal = Journal::for_file(&path);
        let pod = |ino| Some(NetnsId { dev: 4, ino });
        let sections = [
            NODES,
            JournalSection::ProbeChains,
            JournalSection::Chains(None),
            JournalSection::Chains(pod(7)),
            JournalSection::Settings(pod(8)),
        ];
        for section in sections {
            journal.note_values(section, std::iter::once(("a".to_owned(), "1".to_owned()))).unwrap();
        }
        journal.keep_only(&[NetnsId { dev: 4, ino: 7 }]).unwrap();
        let is_kept = |one: &JournalSection| !journal.read_snapshot().section_entries(*one).is_empty();
        let kept: Vec<_> = sections.into_iter().filter(is_kept).collect();
        assert_eq!(kept, sections[..4]);
        std::fs::remove_file(path).unwrap();
    }
}
