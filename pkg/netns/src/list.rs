//! Network namespaces that are bound in a directory.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::{Error, Netns, error::kernel_error};

impl Netns {
    /// Opens every netns that is bound in a directory such as `/var/run/netns`, ordered by path. Other entries are
    /// omitted: plain files (names whose mount was removed, or is not visible from here), and files that were removed
    /// meanwhile. A directory that does not exist has none.
    ///
    /// Each of them stays open, and uses a file descriptor. Two paths may refer to the same one ([`Netns::id`]).
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`]; [`Error::Denied`] for an entry that may be a netns.
    pub fn list_directory(directory: &Path) -> Result<Vec<(PathBuf, Self)>, Error> {
        let mut found = Vec::new();
        for path in directory_entries(directory)? {
            match Self::open(&path) {
                Ok(netns) => found.push((path, netns)),
                Err(Error::Missing { .. } | Error::NotNetns { .. }) => {}
                Err(other) => return Err(other),
            }
        }
        Ok(found)
    }
}

fn directory_entries(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let failed =
        |error| kernel_error(format_args!("list the network namespaces in {}", directory.display()), error);
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(failed)?,
    };
    let paths: Result<Vec<_>, _> = entries.map(|entry| entry.map(|entry| entry.path())).collect();
    let mut paths = paths.map_err(failed)?;
    paths.sort();
    Ok(paths)
}
