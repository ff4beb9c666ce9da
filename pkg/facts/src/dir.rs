//! Facts from a directory of manifests: for a laptop, a lab, a kubelet without API server.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use hostfs::{DirectoryWatcher, FileFingerprint, Waker};
use planner::Fact;
use retry::LastError;
use tracing::{info, warn};

use crate::document::{self, ManifestObjects};

/// Larger than any manifest, of many pods too.
const MAX_FILE: usize = 16 * 1024 * 1024;
/// Without any event the directory is looked at so often: not every file system tells of changes.
const REGULAR: Duration = Duration::from_secs(10);

/// A source that runs; it ends, with its thread, when this is dropped.
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

/// Tells the facts that the manifests in a directory are, from a thread of its own: lists of all pods of this node and
/// of all namespaces at first, and again whenever a file was changed.
///
/// Files are `*.json`, `*.yaml` and `*.yml`, with any number of documents: Pods, Namespaces, and Lists of them; other
/// kinds are passed over. A pod is of this node if its `spec.nodeName` says so, or nothing. An object without UID has one
/// made of its namespace and name, so that it is the same one each time. Of two pods with one name the one in the last
/// file (by name) counts.
///
/// A file that cannot be read is logged once, and counts as it was last; so does the whole directory when it is
/// missing. Until there is one, nothing is told. `tell` must not block.
///
/// # Errors
/// The kernel gives us no eventfd, or no thread.
pub fn follow_dir(
    path: &Path,
    node: &str,
    tell: impl Fn(Fact) + Send + 'static,
) -> io::Result<ManifestFollower> {
    let mut watcher = DirectoryWatcher::new().map_err(io::Error::other)?;
    let (waker, stopped) = (watcher.waker(), Arc::new(AtomicBool::new(false)));
    let mut manifests = ManifestDirectory::new(path, node);
    let paths = [path.to_owned()];
    let stop = Arc::clone(&stopped);
    let run = move || {
        while !stop.load(Ordering::Acquire) {
            watcher.watch(&paths); // before looking, so that no change falls in between
            for fact in manifests.look() {
                tell(fact);
            }
            if watcher.wait(REGULAR).is_err() {
                thread::sleep(Duration::from_secs(1)); // for want of memory
            }
        }
    };
    let thread = thread::Builder::new().name("facts".to_owned()).spawn(run)?;
    Ok(ManifestFollower { stopped, waker, thread: Some(thread) })
}

/// What is known of the directory.
struct ManifestDirectory {
    path: PathBuf,
    node: String,
    files: BTreeMap<OsString, ManifestFile>,
    last: LastError,
    told: bool,
}

/// One file.
#[derive(Default)]
struct ManifestFile {
    /// Of the file when it was last read, if a later touch would show in it.
    settled: Option<FileFingerprint>,
    /// Of its bytes, good or not.
    hash: Option<u64>,
    /// When it was good last.
    objects: ManifestObjects,
    last: LastError,
}

impl ManifestDirectory {
    fn new(path: &Path, node: &str) -> Self {
        let (path, node) = (path.to_owned(), node.to_owned());
        Self { path, node, files: BTreeMap::new(), last: LastError::default(), told: false }
    }

    /// Looks at every file. All that is known, if that is not what was told last.
    fn look(&mut self) -> Vec<Fact> {
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
        let mut changed = self.files.len() != before || !self.told;
        for name in names.into_iter().filter(|name| document::is_manifest(Path::new(name))) {
            let path = self.path.join(&name);
            changed |= self.files.entry(name).or_default().look(&path);
        }
        self.told = true;
        if changed { self.facts() } else { Vec::new() }
    }

    /// Namespaces first: a pod is judged by its namespace.
    fn facts(&self) -> Vec<Fact> {
        let objects = || self.files.values().map(|file| &file.objects);
        let here = |node: &str| node.is_empty() || node == self.node;
        let pods = objects().flat_map(|objects| &objects.pods);
        let pods = pods.filter(|pod| here(&pod.spec.node_name)).cloned().collect();
        let namespaces = objects().flat_map(|objects| &objects.namespaces).cloned().collect();
        vec![Fact::Namespaces(namespaces), Fact::Pods(pods)]
    }
}

impl ManifestFile {
    /// Reads the file, if it was touched; true if what it says is new.
    fn look(&mut self, path: &Path) -> bool {
        // What cannot be looked at is read, which says why it cannot.
        let settled = hostfs::settled_fingerprint(path);
        if settled.is_some() && settled == self.settled {
            return false;
        }
        let is_new = self.read(path);
        // A file that could not be read is tried again: the cause need not be in the file.
        self.settled = settled.filter(|_| self.hash.is_some());
        is_new
    }

    fn read(&mut self, path: &Path) -> bool {
        let content = match hostfs::read(path, MAX_FILE) {
            Ok(content) => content,
            Err(error) if error.is_missing() => return false, // since it was listed; that is told next
            Err(error) => {
                self.hash = None;
                if self.last.replace(&error) {
                    warn!(target: "ambient", %error, "cannot read the manifest; keeping its last content");
                }
                return false;
            }
        };
        let now = Some(hash(&content));
        if std::mem::replace(&mut self.hash, now) == now {
            return false;
        }
        match document::read(path, &content) {
            Ok(objects) => {
                if self.last.clear() {
                    info!(target: "ambient", path = %path.display(), "manifest read again");
                }
                let is_new = objects != self.objects;
                self.objects = objects;
                is_new
            }
            Err(why) => {
                if self.last.replace(&why) {
                    warn!(target: "ambient", path = %path.display(), error = %why, "invalid manifest; keeping its last content");
                }
                false
            }
        }
    }
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}
