//! Which file a runtime takes its network from.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use cni_types::{FileForm, Libcni, check_standalone, read_network};
use hostfs::FileFingerprint;
use rustix::fs::Mode;

use crate::Error;

/// The greatest network configuration that is read, in bytes. Real ones have a few kilobytes, and a runtime hands
/// all of it to every plugin at every call.
pub(crate) const MAX_NETWORK: usize = 1024 * 1024;

/// One network configuration.
#[derive(Debug)]
pub(crate) struct NetworkConf {
    /// The file's name in the directory.
    pub(crate) name: String,
    /// Where it really is.
    pub(crate) path: PathBuf,
    /// What is in it.
    pub(crate) content: Vec<u8>,
    /// Its permission bits.
    pub(crate) mode: u32,
    /// The file as it was before it was read: still the same means still the same content.
    pub(crate) seen: Option<FileFingerprint>,
}

impl NetworkConf {
    /// Reads a file of the directory; none when it is not there.
    ///
    /// # Errors
    /// It is there and cannot be read: then nobody knows whether the runtime can.
    pub(crate) fn read(directory: &Path, name: &str) -> Result<Option<NetworkConf>, Error> {
        if fs::symlink_metadata(directory.join(name))
            .is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
        {
            return Ok(None);
        }
        let path = hostfs::resolve(directory, name.as_ref())?;
        let seen = hostfs::fingerprint(&path)?;
        let content = match hostfs::read(&path, MAX_NETWORK) {
            Ok(content) => content,
            Err(error) if error.is_missing() => return Ok(None), // gone in between
            Err(error) => return Err(error.into()),
        };
        let mode = fs::metadata(&path).map_or(DEFAULT_MODE, |found| found.permissions().mode());
        let mode = Mode::from_raw_mode(mode).bits();
        Ok(Some(NetworkConf { name: name.to_owned(), path, content, mode, seen }))
    }

    /// A single configuration, by its name, which is to become a list.
    pub(crate) fn is_single(&self) -> bool {
        FileForm::of(&self.name) == Some(FileForm::Conf)
    }
}

/// Of files that were not there before.
pub(crate) const DEFAULT_MODE: u32 = 0o644;

/// What a search for a network found.
#[derive(Debug)]
pub(crate) enum NetworkSearch {
    /// This one.
    Found(NetworkConf),
    /// None, and why.
    None(String),
}

/// The network that kubelet and runtimes take: the first file, by name, that is one. `skip` is looked over.
pub(crate) fn first(directory: &Path, skip: &str) -> Result<NetworkSearch, Error> {
    let mut refused = Vec::new();
    for name in names(directory)? {
        let Some(form) = FileForm::of(&name).filter(|_| name != skip) else { continue };
        let Some(network) = NetworkConf::read(directory, &name)? else { continue };
        match read_network(form, &network.content, Libcni::V1_1) {
            // A network of our plugin alone is a leftover of standalone mode, and nothing to be chained to.
            Ok(_) if form == FileForm::Conf && check_standalone(&network.content).is_ok() => {}
            Ok(_) => return Ok(NetworkSearch::Found(network)),
            Err(unusable) => refused.push(format!("{name}: {unusable}")),
        }
    }
    let mut why = format!("no network configuration in {} yet", directory.display());
    if !refused.is_empty() {
        why = format!("{why}; not usable: {}", refused.join("; "));
    }
    Ok(NetworkSearch::None(why))
}

/// The network of that name, or of the name that it has as the other kind of file.
pub(crate) fn named(directory: &Path, name: &str) -> Result<NetworkSearch, Error> {
    let other = match FileForm::of(name) {
        Some(FileForm::Conf) => Some(format!("{name}list")),
        Some(FileForm::Conflist) => name.strip_suffix("list").map(ToOwned::to_owned),
        None => None,
    };
    for name in [Some(name.to_owned()), other].into_iter().flatten() {
        if let Some(network) = NetworkConf::read(directory, &name)? {
            return Ok(NetworkSearch::Found(network));
        }
    }
    Ok(NetworkSearch::None(format!("{} is not there yet", directory.join(name).display())))
}

/// Names of the files of a directory, as runtimes sort them. A name that is not UTF-8 is nobody's.
pub(crate) fn names(directory: &Path) -> Result<Vec<String>, Error> {
    Ok(hostfs::list(directory)?.into_iter().filter_map(|name| name.into_string().ok()).collect())
}
