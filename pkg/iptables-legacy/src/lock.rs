//! Lock of the legacy tables. The nft backend needs none.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

/// Lock file of every iptables of the host.
pub(crate) const HOST_LOCK: &str = "/run/xtables.lock";
/// Environment variable that overrides the lock file in iptables 1.8.6 and later.
pub const LOCK_VARIABLE: &str = "XTABLES_LOCKFILE";

/// The lock that a change of legacy tables takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum XtablesLock {
    /// The host's lock, for changes of the node's own namespace.
    Host,
    /// This file instead: a pod's namespace shares no tables with the host, so a change must not hold the host's lock,
    /// nor wait for it. No process of the pod may be able to open the file, because it could hold the lock.
    Private(PathBuf),
}

impl XtablesLock {
    /// Returns the lock file.
    pub fn path(&self) -> &Path {
        match self {
            XtablesLock::Host => Path::new(HOST_LOCK),
            XtablesLock::Private(path) => path,
        }
    }

    /// Returns the processes that hold the lock, as far as `/proc` shows them.
    pub fn describe_holders(&self) -> String {
        let unknown = "an unknown process".to_owned();
        let Ok(inode) = fs::metadata(self.path()).map(|meta| meta.ino()) else { return unknown };
        let Ok(locks) = fs::read_to_string("/proc/locks") else { return unknown };
        let holders: Vec<String> = holder_pids(&locks, inode).map(process_name).collect();
        if holders.is_empty() { unknown } else { holders.join(", ") }
    }
}

fn process_name(pid: &str) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    format!("process {pid} ({})", name.trim())
}

/// Returns the process IDs in `/proc/locks` that hold (not wait for) a lock on `inode`:
/// `1: FLOCK  ADVISORY  WRITE 1234 00:17:5678 0 EOF`.
fn holder_pids(locks: &str, inode: u64) -> impl Iterator<Item = &str> {
    let suffix = format!(":{inode}");
    locks.lines().filter_map(move |line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        match fields.as_slice() {
            [_, kind, _, _, pid, file, ..] if *kind != "->" && file.ends_with(&suffix) => Some(*pid),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_is_found_and_the_waiter_is_not() {
        let locks = "1: FLOCK  ADVISORY  WRITE 711 00:17:1234 0 EOF\n\
                     1: -> FLOCK  ADVISORY  WRITE 712 00:17:1234 0 EOF\n\
                     2: POSIX  ADVISORY  WRITE 713 00:17:11234 0 EOF\n";
        assert_eq!(holder_pids(locks, 1234).collect::<Vec<_>>(), ["711"]);
    }
}
