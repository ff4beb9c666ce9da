//! Which network namespaces have a name in a directory?

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::{Error, Netns, NetnsId};

impl Netns {
    /// Opens every netns that a process seen in `proc` is in, but for those of its process 1 and of the caller: where the
    /// directory in which they are bound is not mounted, but the node's processes are. It wants CAP_SYS_PTRACE; processes
    /// that it may not look at, and such that end meanwhile, are left out. Each once, and open at the end.
    ///
    /// # Errors
    ///
    /// [`Error::List`], and [`Error::Open`] for the caller's own.
    pub fn list_of_processes(proc: &Path) -> Result<Vec<(PathBuf, Self)>, Error> {
        let mut seen = BTreeSet::from([Self::current()?.id()]);
        seen.extend(identity(&proc.join("1/ns/net")));
        let mut found = Vec::new();
        for process in entries(proc)? {
            let name = process.file_name().unwrap_or_default().as_encoded_bytes();
            if !name.iter().all(u8::is_ascii_digit) {
                continue;
            }
            let path = process.join("ns/net");
            // A look costs less than to open it, and most processes share theirs with others.
            if !identity(&path).is_some_and(|id| seen.insert(id)) {
                continue;
            }
            if let Ok(netns) = Self::open(&path) {
                found.push((path, netns));
            }
        }
        Ok(found)
    }

    /// Opens every netns that is bound in a directory such as `/var/run/netns`, ordered by path. What is there and is
    /// no netns is left out: plain files (names whose mount is gone, or not visible from here), and what went away
    /// meanwhile. A directory that does not exist holds none.
    ///
    /// Each is open at the end, and takes a file descriptor. Two paths may lead to the same one ([`Netns::id`]).
    ///
    /// # Errors
    ///
    /// [`Error::List`]; [`Error::Denied`] and [`Error::Open`] for an entry that may be a netns.
    pub fn list(directory: &Path) -> Result<Vec<(PathBuf, Self)>, Error> {
        let mut found = Vec::new();
        for path in entries(directory)? {
            match Self::open(&path) {
                Ok(netns) => found.push((path, netns)),
                Err(Error::Missing { .. } | Error::NotNetns { .. }) => {}
                Err(other) => return Err(other),
            }
        }
        Ok(found)
    }
}

fn entries(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(|error| Error::listing(directory, error))?,
    };
    let paths: Result<Vec<_>, _> = entries.map(|entry| entry.map(|entry| entry.path())).collect();
    let mut paths = paths.map_err(|error| Error::listing(directory, error))?;
    paths.sort();
    Ok(paths)
}

fn identity(path: &Path) -> Option<NetnsId> {
    let found = fs::metadata(path).ok()?;
    Some(NetnsId { dev: found.dev(), ino: found.ino() })
}
