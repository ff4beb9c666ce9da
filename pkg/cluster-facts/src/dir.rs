//! Facts from a directory of manifests: for a laptop, a lab, or a kubelet without API server.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io,
    path::{Path, PathBuf},
    slice,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use enrolment::Fact;
use hostfs::{DirectoryWatcher, FileFingerprint, Waker};
use model::{Namespace, Pod, PodName};
use retry::LastError;
use tracing::{info, warn};

use crate::document::{self, ManifestObjects};

/// Maximum size of a file, larger than any manifest, even of many pods.
const MAX_FILE: usize = 16 * 1024 * 1024;
/// Interval of scans without any event: not every file system reports changes.
const REGULAR: Duration = Duration::from_secs(10);

/// A running source, which ends with its thread when dropped.
#[derive(Debug)]
pub struct ManifestFollower {
    stopped: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl Drop for ManifestFollower {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Release);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// Sends the facts in the manifests of a directory, from its own thread: lists of all pods of this node and of all namespaces at
/// first, and changes whenever a file changes.
///
/// Files are `*.json`, `*.yaml` and `*.yml`, with any number of documents: Pods, Namespaces, and Lists of them; other kinds are
/// ignored. A pod belongs to this node if its `spec.nodeName` matches or is missing. An object without a UID gets one derived from
/// its namespace and name, so that it is stable. Of two pods with one name the one in the last file (by name) is used.
///
/// A file that cannot be parsed is logged once, and its last content is kept; so is that of the whole directory if it is missing.
/// Until the directory exists, nothing is sent. `send` must not block.
///
/// # Errors
/// The kernel refuses an eventfd, or a thread.
pub fn follow_dir(
    path: &Path,
    node: &str,
    send: impl Fn(Fact) + Send + 'static,
) -> io::Result<ManifestFollower> {
    let mut watcher = DirectoryWatcher::new().map_err(io::Error::other)?;
    let (waker, stopped) = (watcher.waker(), Arc::new(AtomicBool::new(false)));
    let mut manifests = ManifestDirectory::new(path, node);
    let stop = Arc::clone(&stopped);
    let run = move || manifests.send_changes(&mut watcher, &stop, send);
    let thread = thread::Builder::new().name("facts".to_owned()).spawn(run)?;
    Ok(ManifestFollower { stopped, waker, thread: Some(thread) })
}

/// Returns a pod of this node and its namespace from the current manifests in a directory, which a follower may not have reported
/// yet. An invalid manifest has no objects here; its follower logs that. `None` if no manifest has the pod.
///
/// # Errors
/// The directory cannot be listed.
pub fn find_in_dir(
    path: &Path,
    node: &str,
    name: &PodName,
) -> Result<Option<(Pod, Option<Namespace>)>, hostfs::Error> {
    let mut manifests = ManifestDirectory::new(path, node);
    for name in hostfs::list(path)?.into_iter().filter(|name| document::is_manifest(Path::new(name))) {
        let file = path.join(&name);
        let content = hostfs::read(&file, MAX_FILE).map_err(|error| error.to_string());
        if let Ok(objects) = content.and_then(|content| document::parse_manifest(&file, &content)) {
            manifests.files.insert(name, ManifestFile { objects, ..ManifestFile::default() });
        }
    }
    let objects = || manifests.files.values().rev().map(|file| &file.objects);
    let mut pods = objects().flat_map(|objects| objects.pods.iter().rev());
    let Some(pod) = pods.find(|pod| pod.name() == *name && manifests.is_here(pod)) else { return Ok(None) };
    let mut namespaces = objects().flat_map(|objects| objects.namespaces.iter().rev());
    let namespace = namespaces.find(|namespace| namespace.metadata.name == name.namespace);
    Ok(Some((pod.clone(), namespace.cloned())))
}

/// State of the directory of manifests.
struct ManifestDirectory {
    path: PathBuf,
    node: String,
    files: BTreeMap<OsString, ManifestFile>,
    last: LastError,
    was_reported: bool,
}

/// A manifest file.
#[derive(Default)]
struct ManifestFile {
    /// Fingerprint when it was last read, if a later change would be detected.
    conclusive: Option<FileFingerprint>,
    /// Hash of its content, valid or not.
    hash: Option<u64>,
    /// Objects of its last valid content.
    objects: ManifestObjects,
    last: LastError,
}

impl ManifestDirectory {
    fn new(path: &Path, node: &str) -> Self {
        let (path, node) = (path.to_owned(), node.to_owned());
        Self { path, node, files: BTreeMap::new(), last: LastError::default(), was_reported: false }
    }

    /// Sends changes, at first and after each event, until `stop` is set.
    fn send_changes(&mut self, watcher: &mut DirectoryWatcher, stop: &AtomicBool, send: impl Fn(Fact)) {
        while !stop.load(Ordering::Acquire) {
            watcher.set_directories(slice::from_ref(&self.path)); // before scanning, so that no change is missed
            for fact in self.scan_files() {
                send(fact);
            }
            if watcher.wait_for_change(REGULAR).is_err() {
                thread::sleep(Duration::from_secs(1)); // out of memory
            }
        }
    }

    /// Scans every file. Returns the changes since the last scan: single pods, or everything.
    fn scan_files(&mut self) -> Vec<Fact> {
        let names = match hostfs::list(&self.path) {
            Ok(names) => names,
            Err(error) => {
                if self.last.replace(&error) {
                    warn!(target: "ambient", %error, "cannot read the directory of manifests; keeping the pods as they were");
                }
                return Vec::new();
            }
        };
        if self.last.clear() {
            info!(target: "ambient", path = %self.path.display(), "directory of manifests read again");
        }
        let before = self.files.len();
        self.files.retain(|name, _| names.contains(name));
        let are_fewer = self.files.len() != before;
        let mut replaced = Vec::new();
        for name in names.into_iter().filter(|name| document::is_manifest(Path::new(name))) {
            let file = self.files.entry(name.clone()).or_default();
            replaced.extend(file.read_if_changed(&self.path.join(&name)).map(|before| (name, before)));
        }
        if are_fewer || !std::mem::replace(&mut self.was_reported, true) {
            return self.all_facts();
        }
        self.pod_facts(&replaced).unwrap_or_else(|| self.all_facts())
    }

    /// Returns the facts about single pods derived from changed files; `replaced` has their earlier content. `None` if a change
    /// concerns more than single pods.
    fn pod_facts<'a>(&'a self, replaced: &'a [(OsString, ManifestObjects)]) -> Option<Vec<Fact>> {
        let mut facts = Vec::new();
        for (file, before) in replaced {
            let now = &self.files.get(file)?.objects;
            let here = |objects: &'a ManifestObjects| objects.pods.iter().filter(|pod| self.is_here(pod));
            let names: BTreeSet<PodName> = here(now).map(Pod::name).collect();
            let others = self.files.iter().filter(|(other, _)| *other != file);
            let mut others = others.flat_map(|(_, other)| &other.objects.pods);
            let are_alone = !others.any(|pod| names.contains(&pod.name()));
            let is_nothing_gone = here(before).all(|pod| names.contains(&pod.name()));
            if before.namespaces != now.namespaces || !are_alone || !is_nothing_gone {
                return None;
            }
            let new = here(now).filter(|pod| !before.pods.contains(pod));
            facts.extend(new.map(|pod| Fact::Pod(Box::new(pod.clone()))));
        }
        Some(facts)
    }

    fn is_here(&self, pod: &Pod) -> bool {
        pod.spec.node_name.is_empty() || pod.spec.node_name == self.node
    }

    /// Returns all facts, namespaces first: decisions on pods depend on them.
    fn all_facts(&self) -> Vec<Fact> {
        let objects = || self.files.values().map(|file| &file.objects);
        let pods = objects().flat_map(|objects| &objects.pods);
        let pods = pods.filter(|pod| self.is_here(pod)).cloned().collect();
        let namespaces = objects().flat_map(|objects| &objects.namespaces).cloned().collect();
        vec![Fact::Namespaces(namespaces), Fact::Pods(pods)]
    }
}

impl ManifestFile {
    /// Reads the file if it was touched; returns its previous objects if they have changed.
    fn read_if_changed(&mut self, path: &Path) -> Option<ManifestObjects> {
        // A file without a fingerprint is read, which yields the error.
        let conclusive = hostfs::conclusive_fingerprint(path);
        if conclusive.is_some() && conclusive == self.conclusive {
            return None;
        }
        let before = self.read_manifest(path);
        // A file that could not be read is retried: the cause may be outside of the file.
        self.conclusive = conclusive.filter(|_| self.hash.is_some());
        before
    }

    fn read_manifest(&mut self, path: &Path) -> Option<ManifestObjects> {
        let content = match hostfs::read(path, MAX_FILE) {
            Ok(content) => content,
            Err(error) if error.is_missing() => return None, // removed since it was listed; reported by the next scan
            Err(error) => {
                self.hash = None;
                if self.last.replace(&error) {
                    warn!(target: "ambient", %error, "cannot read the manifest; keeping its last content");
                }
                return None;
            }
        };
        let now = Some(hash(&content));
        if std::mem::replace(&mut self.hash, now) == now {
            return None;
        }
        match document::parse_manifest(path, &content) {
            Ok(objects) => {
                if self.last.clear() {
                    info!(target: "ambient", path = %path.display(), "manifest read again");
                }
                let before = std::mem::replace(&mut self.objects, objects);
                (before != self.objects).then_some(before)
            }
            Err(why) => {
                if self.last.replace(&why) {
                    warn!(target: "ambient", path = %path.display(), error = %why, "invalid manifest; keeping its last content");
                }
                None
            }
        }
    }
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}
