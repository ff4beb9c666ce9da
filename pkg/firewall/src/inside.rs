//! Operations in a pod's namespace.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io,
    os::{
        fd::AsRawFd as _,
        unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
};

use iptables_legacy::private_mounts;
use netns::{MountSandbox, Netns};
use rustix::fs::{MemfdFlags, memfd_create};

use crate::{Error, FirewallOptions, XtablesLock, may_use_legacy};

/// The namespace's own file, as the lock for a tool that is in a pod's user namespace and can open no files of the
/// node's root. At an ADD the pod has no process yet that could hold it; later, one that does so keeps only its own
/// pod's rules from being repaired.
const NETNS_FILE: &str = "/proc/thread-self/ns/net";
/// Number of lock files for all pods: none has to be cleaned up, and two pods rarely share one.
const LOCKS: u64 = 256;

/// Runs `act` in a pod's namespace, with options for a pod: its own lock for the legacy tables, limits for reading, and
/// no name lookups over the network. If the private mounts for these cannot be made, continues without them and returns
/// the reason as the second value.
///
/// # Errors
/// The namespace cannot be entered, or `act` failed.
pub fn run_inside<T: Send, E: From<Error> + From<netns::Error> + Send>(
    netns: &Netns,
    options: &FirewallOptions,
    act: impl Fn(&FirewallOptions) -> Result<T, E> + Send + Sync,
) -> Result<(T, Option<String>), E> {
    let limited = FirewallOptions { is_pod: true, ..options.clone() };
    let (mounts, lock) = match netns.run_in(|| attempt_without_mounts(netns, &limited, &act))?? {
        SandboxAttempt::Done(done) => return Ok((done, None)),
        SandboxAttempt::Needs(mounts, lock) => (mounts, lock),
    };
    let options =
        FirewallOptions { lock: lock.as_ref().map_or(XtablesLock::Host, PodLock::xtables_lock), ..limited };
    match netns.run_in_sandbox(&mounts, || act(&options)) {
        Err(error @ netns::Error::Sandbox { .. }) => {
            Ok((netns.run_in(|| act(&options))??, Some(error.to_string())))
        }
        done => Ok((done??, None)),
    }
}

/// Runs `act` in the calling thread's namespace, unless its tools need private mounts.
fn attempt_without_mounts<T, E: From<Error>>(
    netns: &Netns,
    limited: &FirewallOptions,
    act: impl Fn(&FirewallOptions) -> Result<T, E>,
) -> Result<SandboxAttempt<T>, E> {
    let legacy = may_use_legacy(limited)?;
    if !legacy && limited.uses_engine() {
        return act(limited).map(SandboxAttempt::Done); // no tool that would need a mount
    }
    let lock = legacy.then(|| PodLock::for_netns(netns, limited)).transpose();
    let lock = lock.map_err(|source| Error::Lock { source })?;
    let options = FirewallOptions {
        lock: lock.as_ref().map_or(XtablesLock::Host, PodLock::xtables_lock),
        ..limited.clone()
    };
    let bound = legacy && lock.as_ref().is_none_or(PodLock::can_be_bound);
    match private_mounts(&options.lock, bound) {
        Some(mounts) => Ok(SandboxAttempt::Needs(mounts, lock)),
        None => act(&options).map(SandboxAttempt::Done),
    }
}

enum SandboxAttempt<T> {
    Done(T),
    Needs(MountSandbox, Option<PodLock>),
}

/// A pod's lock for its legacy tables. A process of the pod could lock any file that it can open, for instance that of
/// its namespace, and hold the lock forever; so the lock is a file in a directory of root's.
struct PodLock {
    path: PathBuf,
    /// A file of this process alone, if there is no such directory. Lives as long as this.
    _own: Option<File>,
}

impl PodLock {
    fn for_netns(netns: &Netns, options: &FirewallOptions) -> io::Result<PodLock> {
        if options.user_namespace.is_some() {
            return Ok(PodLock { path: NETNS_FILE.into(), _own: None });
        }
        let directory = options.lock_directory.as_deref();
        let shared = directory.map(|directory| shared_lock_file(directory, netns.id().ino));
        if let Some(Ok(path)) = shared {
            return Ok(PodLock { path, _own: None });
        }
        let own = File::from(memfd_create("lock", MemfdFlags::CLOEXEC)?);
        let path = format!("/proc/{}/fd/{}", std::process::id(), own.as_raw_fd());
        Ok(PodLock { path: path.into(), _own: Some(own) })
    }

    /// Returns whether the lock file can be mounted: the kernel mounts no file that only a descriptor names. Tools
    /// before 1.8.6, which have no option for the path, then wait for the host's lock.
    fn can_be_bound(&self) -> bool {
        self._own.is_none()
    }

    fn xtables_lock(&self) -> XtablesLock {
        XtablesLock::Private(self.path.clone())
    }
}

/// Returns a file in that directory, which is created.
fn shared_lock_file(directory: &Path, number: u64) -> io::Result<PathBuf> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    if !fs::symlink_metadata(directory)?.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    let path = directory.join((number % LOCKS).to_string());
    OpenOptions::new().append(true).create(true).mode(0o600).open(&path)?;
    Ok(path)
}
