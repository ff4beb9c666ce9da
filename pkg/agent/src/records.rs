//! Index of the plugin's records of ADDs, which reads each record of the directory once, and again only after a change.
//!
//! The directory is bounded: failures share [`agent_protocol::FAILURE_PLACES`] files, and a success is bounded in bytes and removed by its
//! container's DEL. [`RecordIndex::prune`] removes files that a lost DEL, a killed plugin or an earlier version left.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fs::{self, DirEntry},
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use agent_protocol::{FORMER_FAILED, MAX_FAILURE, MAX_RECORD, MAX_SUCCESS, PodRecord, STAGED};
use enrolment::SidecarRedirect;
use hostfs::FileFingerprint;
use rustix::fs::StatVfsMountFlags;

/// Time after which no runtime retries a pod whose ADD failed.
const FORGOTTEN: Duration = Duration::from_secs(24 * 3600);
/// Time after which a staged record counts as abandoned, because no plugin takes that long to rename it: its process was killed.
const ABANDONED: Duration = Duration::from_secs(60);
/// Maximum number of records, more than any node has pods. The newest are used; older ones are removed, unless their pod is alive.
const MOST: usize = 2000;

/// Records of a directory, as last read.
#[derive(Debug)]
pub struct RecordIndex {
    directory: PathBuf,
    files: Mutex<BTreeMap<OsString, IndexedFile>>,
}

/// Content of a file with this fingerprint.
#[derive(Clone, Debug)]
struct IndexedFile {
    fingerprint: FileFingerprint,
    /// Whether any later change is detected by the fingerprint.
    is_conclusive: bool,
    /// The record; `None`: no record, or one that this version cannot read.
    record: Option<Arc<PodRecord>>,
}

impl RecordIndex {
    /// Returns an index of this directory, which need not exist. Reads nothing yet.
    pub fn new(directory: PathBuf) -> RecordIndex {
        RecordIndex { directory, files: Mutex::default() }
    }

    /// Returns the directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the current records of the newest files, at most 2,000. Reads those that are new or have changed since the last
    /// call; unreadable ones are omitted, and failures older than a day. Blocks.
    pub fn read_records(&self) -> Vec<Arc<PodRecord>> {
        self.update_index().into_values().filter_map(|file| file.record).collect()
    }

    fn update_index(&self) -> BTreeMap<OsString, IndexedFile> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let mut before = std::mem::take(&mut *files);
        let now = SystemTime::now();
        for file in newest_files(
            list_files(&self.directory).filter(|file| file.is_record() && !file.is_stale(now)),
            drop,
        ) {
            let known = before.remove(&file.name).filter(|known| known.is_conclusive);
            let indexed = known.filter(|known| known.fingerprint == file.fingerprint).unwrap_or_else(|| {
                let loaded = load_record(&self.directory.join(&file.name));
                // One that could not be read is tried again: the cause may be outside of the file.
                let is_conclusive = loaded.is_ok() && file.fingerprint.is_conclusive(now);
                let record = loaded.unwrap_or_default().map(Arc::new);
                IndexedFile { fingerprint: file.fingerprint, is_conclusive, record }
            });
            files.insert(file.name, indexed);
        }
        files.clone()
    }

    /// Removes failures older than a day and those of the previous version, files of killed plugins, records of pods whose network
    /// namespace was removed, and files in excess of 2,000, the oldest first, unless their namespace exists. `netns_directory`:
    /// directory to which the container runtime binds network namespaces. Blocks.
    pub fn prune(&self, netns_directory: &Path) {
        let now = SystemTime::now();
        for file in list_files(&self.directory).filter(|file| file.is_stale(now)) {
            drop(fs::remove_file(self.directory.join(&file.name))); // the next pass retries
        }
        let judge = |name, record: Option<&PodRecord>| judge_file(name, record, netns_directory);
        let files = self.update_index().into_iter();
        let mut judged: Vec<_> = files.map(|(name, file)| judge(name, file.record.as_deref())).collect();
        newest_files(list_files(&self.directory).filter(ListedFile::is_record), |file| {
            let record = load_record(&self.directory.join(&file.name)).unwrap_or_default();
            judged.push(JudgedFile { is_excess: true, ..judge(file.name, record.as_ref()) });
        });
        // A missing namespace counts as removed only if others of its directory are visible here: this may be another directory.
        let alive = judged.iter().filter(|file| file.state == NetnsState::Alive);
        let shared: BTreeSet<_> = alive.filter_map(|file| file.directory.as_deref()).collect();
        for file in &judged {
            let is_shared = file.directory.as_deref().is_some_and(|directory| shared.contains(directory));
            let is_useless = match file.state {
                NetnsState::Alive => false,
                NetnsState::Gone => is_shared || file.is_excess,
                NetnsState::Unknown => file.is_excess,
            };
            if is_useless {
                drop(fs::remove_file(self.directory.join(&file.name))); // the next pass retries
            }
        }
    }

    /// Checks that the plugin can record ADDs.
    ///
    /// # Errors
    /// The file system is read-only, or has no space or no inodes left.
    pub fn check_space(&self) -> Result<(), String> {
        // The directory is missing until the first record.
        let parent = self.directory.parent().unwrap_or(Path::new("/"));
        let stat = rustix::fs::statvfs(&self.directory).or_else(|_| rustix::fs::statvfs(parent));
        let place = self.directory.display();
        let stat = stat.map_err(|error| format!("{place} cannot be examined: {}", io::Error::from(error)))?;
        let free = stat.f_bfree.saturating_mul(stat.f_frsize);
        let why = if stat.f_flag.contains(StatVfsMountFlags::RDONLY) {
            "its file system is read-only"
        } else if usize::try_from(free).is_ok_and(|free| free < MAX_FAILURE) {
            "its file system is full"
        } else if stat.f_files > 0 && stat.f_ffree == 0 {
            "its file system has no inodes left"
        } else {
            return Ok(());
        };
        Err(format!("the plugin cannot record ADDs in {place}: {why}"))
    }
}

/// A file of the directory.
#[derive(Debug)]
struct ListedFile {
    name: OsString,
    kind: FileKind,
    modified: SystemTime,
    fingerprint: FileFingerprint,
}

/// Kind of a file, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileKind {
    /// Record of a success, or a file of another version, which is left alone.
    Record,
    /// Record of a failure.
    Failure,
    /// Record of a failure by the previous version, which did not bound their number.
    Former,
    /// Staged file.
    Staged,
}

impl ListedFile {
    fn from_entry(entry: &DirEntry) -> Option<ListedFile> {
        let metadata = entry.metadata().ok().filter(fs::Metadata::is_file)?;
        let name = entry.file_name();
        let text = name.to_string_lossy();
        let kind = if text.starts_with(STAGED) {
            FileKind::Staged
        } else if agent_protocol::is_failure_place(&text) {
            FileKind::Failure
        } else if text.starts_with(FORMER_FAILED) {
            FileKind::Former
        } else {
            FileKind::Record
        };
        let fingerprint = FileFingerprint::from_metadata(&metadata);
        Some(ListedFile { kind, modified: metadata.modified().ok()?, fingerprint, name })
    }

    fn is_record(&self) -> bool {
        matches!(self.kind, FileKind::Record | FileKind::Failure)
    }

    /// Whether the file is obsolete. By the wall clock, the only one that continues across reboots: a file with a time in the
    /// future counts as new.
    fn is_stale(&self, now: SystemTime) -> bool {
        let age = now.duration_since(self.modified).unwrap_or_default();
        match self.kind {
            FileKind::Record => false,
            FileKind::Failure => age > FORGOTTEN,
            FileKind::Former => true,
            FileKind::Staged => age > ABANDONED,
        }
    }
}

fn list_files(directory: &Path) -> impl Iterator<Item = ListedFile> {
    let entries = fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok);
    entries.filter_map(|entry| ListedFile::from_entry(&entry))
}

/// Returns the newest [`MOST`] files, and passes the others to `excess`.
fn newest_files(
    files: impl Iterator<Item = ListedFile>,
    mut excess: impl FnMut(ListedFile),
) -> Vec<ListedFile> {
    let mut kept: Vec<ListedFile> = Vec::new();
    for file in files {
        kept.push(file);
        if kept.len() >= 2 * MOST {
            drain_older(&mut kept).for_each(&mut excess);
        }
    }
    drain_older(&mut kept).for_each(excess);
    kept
}

/// Removes all but the newest [`MOST`].
fn drain_older(files: &mut Vec<ListedFile>) -> impl Iterator<Item = ListedFile> {
    files.sort_by_key(|file| std::cmp::Reverse(file.modified));
    files.drain(MOST.min(files.len())..)
}

/// Reads a record; `None`: this version cannot decode it.
fn load_record(path: &Path) -> Result<Option<PodRecord>, hostfs::Error> {
    Ok(decode_record(&hostfs::read(path, MAX_RECORD)?))
}

/// Decodes a record. One of the previous version, which did not bound it, is truncated to the current limits.
fn decode_record(text: &[u8]) -> Option<PodRecord> {
    let mut record = PodRecord::decode(text).ok()?;
    let bound = if record.error.is_some() { MAX_FAILURE } else { MAX_SUCCESS };
    if text.len() <= bound {
        return Some(record);
    }
    record.pod = record.pod.filter(|_| record.decision == SidecarRedirect::CODE);
    if let Some(pod) = &mut record.pod {
        enrolment::facts::trim_to_sidecar(pod);
    }
    PodRecord::decode(&record.encode().ok()?).ok()
}

/// A record, with the state of the network namespace of its ADD.
#[derive(Debug)]
struct JudgedFile {
    name: OsString,
    /// Directory of the namespace, on the node.
    directory: Option<PathBuf>,
    state: NetnsState,
    /// Whether there are enough newer ones.
    is_excess: bool,
}

/// State of the network namespace of an ADD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NetnsState {
    Alive,
    /// The recorded path does not exist, or is another namespace.
    Gone,
    /// The namespace was not recorded, or its path is no namespace here.
    Unknown,
}

/// Determines the state of a record's namespace. `record`: `None` if it cannot be read.
fn judge_file(name: OsString, record: Option<&PodRecord>, netns_directory: &Path) -> JudgedFile {
    let directory = record.and_then(|record| Path::new(&record.netns).parent()).map(Path::to_owned);
    let state = record.map_or(NetnsState::Unknown, |record| netns_state(record, netns_directory));
    JudgedFile { name, directory, state, is_excess: false }
}

fn netns_state(record: &PodRecord, netns_directory: &Path) -> NetnsState {
    let (Some(then), Some(name)) = (record.netns_file, Path::new(&record.netns).file_name()) else {
        return NetnsState::Unknown;
    };
    match fs::metadata(netns_directory.join(name)) {
        Ok(now) if (now.dev(), now.ino()) == (then.dev, then.ino) => NetnsState::Alive,
        Ok(now) if now.dev() == then.dev => NetnsState::Gone,
        Err(error) if error.kind() == io::ErrorKind::NotFound => NetnsState::Gone,
        _ => NetnsState::Unknown,
    }
}

#[cfg(test)]
mod tests;
