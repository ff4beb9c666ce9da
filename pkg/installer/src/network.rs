//! Selection of the file from which a runtime takes its network.

use std::{
    ffi::OsString,
    fs, iter, mem,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use cni_types::{
    ConflistEntry, EditError, FileForm, Json, Libcni, UnusableConf, check_directory_plugin, is_auxiliary,
    is_standalone, plugin_types, read_network, unknown_version,
};
use hostfs::FileFingerprint;
use rustix::fs::Mode;

use crate::{Error, conf::edit_error};

/// Maximum size of a network configuration, in bytes. Real ones have a few kilobytes, and a runtime passes all of it to every
/// plugin at every call.
pub(crate) const MAX_NETWORK: usize = 1024 * 1024;

/// Member of our entry in the file of [`Chaining::Own`](crate::Chaining::Own), by which any agent recognises that copy, whatever its
/// name.
pub(crate) const OWNED_COPY: &str = "istio_owned_cni_config";

/// Name of that copy by default. Istio's agent marks its copy by the name alone, and its charts cannot change it: their variable is
/// not the one that it reads.
const DEFAULT_COPY: &str = "02-istio-cni.conflist";

/// Whether the file is a copy of a primary network that an agent made, ours or Istio's.
pub(crate) fn is_owned_copy(name: &str, content: &[u8]) -> bool {
    let document = Json::parse(content).unwrap_or(Json::Null);
    let plugins = document.get("plugins").and_then(Json::as_list).unwrap_or_default();
    let mut entries = plugins
        .iter()
        .filter(|plugin| plugin.get("type").and_then(Json::as_str) == Some(ConflistEntry::TYPE));
    entries.any(|entry| name == DEFAULT_COPY || entry.get(OWNED_COPY) == Some(&Json::Bool(true)))
}

/// A network configuration.
#[derive(Debug)]
pub(crate) struct NetworkConf {
    /// File name in the directory.
    pub(crate) name: String,
    /// Path with symlinks resolved.
    pub(crate) path: PathBuf,
    /// Content of the file.
    pub(crate) content: Vec<u8>,
    /// Permission bits of the file.
    pub(crate) mode: u32,
    /// Fingerprint taken before the file was read: as long as it is equal, so is the content.
    pub(crate) fingerprint: Option<FileFingerprint>,
}

impl NetworkConf {
    /// Reads a file of the directory; `None` if it does not exist.
    ///
    /// # Errors
    /// The file exists and cannot be read: then it is unknown whether the runtime can.
    pub(crate) fn read(directory: &Path, name: &str) -> Result<Option<NetworkConf>, Error> {
        if fs::symlink_metadata(directory.join(name))
            .is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
        {
            return Ok(None);
        }
        let path = hostfs::resolve(directory, name.as_ref())?;
        let fingerprint = hostfs::fingerprint(&path)?;
        let content = match hostfs::read(&path, MAX_NETWORK) {
            Ok(content) => content,
            Err(error) if error.is_missing() => return Ok(None), // removed meanwhile
            Err(error) => return Err(error.into()),
        };
        let mode = fs::metadata(&path).map_or(DEFAULT_MODE, |found| found.permissions().mode());
        let mode = Mode::from_raw_mode(mode).bits();
        Ok(Some(NetworkConf { name: name.to_owned(), path, content, mode, fingerprint }))
    }

    /// Reads a file that is ours alone; `Err`: the fingerprint of what our file replaces, such as a symlink, if anything.
    pub(crate) fn read_own(
        directory: &Path,
        name: &str,
    ) -> Result<Result<NetworkConf, Option<FileFingerprint>>, Error> {
        let path = directory.join(name);
        let found = if path.is_symlink() { None } else { NetworkConf::read(directory, name)? };
        found.map_or_else(|| Ok(Err(hostfs::fingerprint(&path)?)), |found| Ok(Ok(found)))
    }

    /// Whether the name is that of a single configuration, which has to be converted to a list.
    pub(crate) fn is_single(&self) -> bool {
        FileForm::from_file_name(&self.name) == Some(FileForm::Conf)
    }

    /// Returns the files whose plugins a runtime with that version of libcni appends to this network's, or why it does not load the
    /// network.
    ///
    /// # Errors
    /// The files cannot be determined.
    pub(crate) fn load(&self, directory: &Path, libcni: Libcni) -> Result<Appended, Error> {
        let form = FileForm::from_file_name(&self.name).unwrap_or(FileForm::Conflist);
        let file = match read_network(form, &self.content, libcni) {
            Ok(file) => file,
            Err(UnusableConf::Json(error)) if error.is_too_deep() => {
                return Err(edit_error(&self.path, EditError::Json(error)));
            }
            Err(unusable) => return Ok(Err(unusable)),
        };
        let Some(name) = file.plugin_directory else { return Ok(Ok(Vec::new())) };
        match directory_plugins(directory, &name)? {
            Ok(appended) if file.plugins == 0 && appended.is_empty() => {
                Ok(Err(UnusableConf::Missing { path: "plugins".to_owned() }))
            }
            appended => Ok(appended),
        }
    }
}

/// Files of a network's plugin directory, or why libcni does not load the network.
type Appended = Result<Vec<PathBuf>, UnusableConf>;

/// Mode of files that did not exist before.
pub(crate) const DEFAULT_MODE: u32 = 0o644;

/// Result of a search for a network; the error: no network into which our entry can be chained, with the reason.
pub(crate) type NetworkSearch = Result<NetworkConf, String>;

/// Finds the network that runtimes use: the first file, by name, that they load. `skip` is ignored. (containerd ends its search at
/// a file that it cannot load, and then starts no pod.)
///
/// The runtime's version of libcni is unknown. If the choice depends on it, no network is returned.
pub(crate) fn find_default(directory: &Path, skip: &str) -> Result<NetworkSearch, Error> {
    let Choices { accepted, refused } = collect_choices(directory, skip)?;
    let refused = refused.join("; ");
    let mut accepted = accepted.into_iter();
    Ok(Err(match (accepted.next(), accepted.next()) {
        (Some((network, _)), None) => return check_chainable(directory, network),
        (Some((network, newer)), Some((next, older))) => format!(
            "the runtime's network depends on its version: {} with {newer}, {} with {older}; {refused}",
            network.path.display(),
            next.path.display()
        ),
        (None, _) if refused.is_empty() => {
            format!("no network configuration in {} yet", directory.display())
        }
        (None, _) => {
            format!("no network configuration in {} yet; not usable: {refused}", directory.display())
        }
    }))
}

/// Networks chosen by the versions of libcni, in the order of the files.
#[derive(Default)]
struct Choices {
    /// Each network with the newest version that chooses it.
    accepted: Vec<(NetworkConf, Libcni)>,
    /// Files that some version does not load, and why.
    refused: Vec<String>,
}

fn collect_choices(directory: &Path, skip: &str) -> Result<Choices, Error> {
    let mut choices = Choices::default();
    let mut searching = Libcni::ALL.to_vec();
    for name in hostfs::list(directory)? {
        if name == skip || searching.is_empty() || FileForm::from_file_name(&name.to_string_lossy()).is_none()
        {
            continue;
        }
        let name = utf8_name(directory, name)?;
        let network = match NetworkConf::read(directory, &name) {
            Ok(Some(network)) => network,
            Ok(None) => continue, // removed meanwhile
            Err(Error::File(error)) if error.is_no_file() => {
                choices.refused.push(error.to_string());
                continue;
            }
            Err(error) => return Err(error),
        };
        // A network of our plugin alone is a leftover of standalone mode, into which nothing can be chained; a copy is none of its own.
        let is_alone = network.is_single() && is_standalone(&network.content);
        if is_alone || is_owned_copy(&network.name, &network.content) {
            continue;
        }
        let (mut accepted, mut refused) = (None, None);
        for libcni in mem::take(&mut searching) {
            match network.load(directory, libcni)? {
                Ok(_) => accepted = Some(libcni),
                Err(unusable) => {
                    refused = Some(unusable);
                    searching.push(libcni);
                }
            }
        }
        choices.refused.extend(refused.map(|why| format!("{name}: {why}")));
        choices.accepted.extend(accepted.map(|libcni| (network, libcni)));
    }
    Ok(choices)
}

/// Finds the network in the file of this name, or of the name with the other suffix (list or single). `skip` as in
/// [`find_default`].
pub(crate) fn find_named(directory: &Path, name: &str, skip: &str) -> Result<NetworkSearch, Error> {
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    let others: &[&str] = match FileForm::from_file_name(name) {
        Some(FileForm::Conf) => &["conflist"],
        Some(FileForm::Conflist) => &FileForm::SINGLE,
        None => return Err(Error::Extension(name.to_owned(), "conflist")),
    };
    let others = others.iter().map(|extension| format!("{stem}.{extension}"));
    let mut found: Vec<NetworkConf> = Vec::new();
    for file in iter::once(name.to_owned()).chain(others) {
        match NetworkConf::read(directory, &file) {
            Err(Error::File(error)) if error.is_no_file() && !found.is_empty() => {}
            network => found.extend(network?),
        }
    }
    // The primary CNI plugin has rewritten its single file since it was converted to the list, and runtimes prefer it.
    let is_newer = |twin: &NetworkConf| {
        twin.is_single()
            && twin.name.as_str() < name
            && !is_standalone(&twin.content)
            && twin.load(directory, Libcni::V1_3).is_ok_and(|appended| appended.is_ok())
    };
    let at = found.iter().position(is_newer).unwrap_or(0);
    if at < found.len() {
        return check_chainable(directory, found.swap_remove(at));
    }
    let missing = format!("{} is not there yet", directory.join(name).display());
    Ok(Err(match find_default(directory, skip) {
        Ok(Ok(other)) => {
            format!("{missing}; the runtime takes {}: is CNI_CONF_NAME right?", other.path.display())
        }
        _ => missing,
    }))
}

/// Describes the network that runtimes use by default, if it is known and not the one of the file `taken`. That of the file `copy`
/// is our copy of another network, so that one whose file sorts after it is not used.
pub(crate) fn describe_other_default(directory: &Path, taken: &Path, copy: &str) -> Option<String> {
    let Ok(Ok(other)) = find_default(directory, copy) else { return None };
    let is_used = taken.file_name().is_none_or(|name| name != copy) || other.name.as_str() < copy;
    (is_used && other.path != taken).then(|| {
        format!(
            "the default network is {}: pods start without the plugin unless the runtime is configured for \
             {} (CRI-O's cni_default_network)",
            other.path.display(),
            taken.display()
        )
    })
}

/// Accepts a network that connects pods, ends with the last plugin of its file, and has a CNI version that our plugin supports.
fn check_chainable(directory: &Path, network: NetworkConf) -> Result<NetworkSearch, Error> {
    if is_owned_copy(&network.name, &network.content) {
        return Ok(Err(format!(
            "{} is an agent's copy of the primary network, not that network itself",
            network.path.display()
        )));
    }
    if let Some(appended) = network.load(directory, Libcni::V1_3)?.unwrap_or_default().first() {
        return Ok(Err(format!(
            "{} takes plugins from a directory, too ({}), where ours cannot be chained: list all of them in `plugins`, and set \
             `loadOnlyInlinedPlugins`",
            network.path.display(),
            appended.display()
        )));
    }
    if let Some(unknown) = unknown_version(&network.content) {
        return Ok(Err(format!("cannot be part of {}: {unknown}", network.path.display())));
    }
    let mut foreign = plugin_types(&network.content);
    foreign.retain(|kind| kind != ConflistEntry::TYPE);
    if !foreign.is_empty() && foreign.iter().all(|kind| is_auxiliary(kind)) {
        return Ok(Err(format!(
            "{} gives pods no network: its only plugins are {}",
            network.path.display(),
            foreign.join(", ")
        )));
    }
    Ok(Ok(network))
}

/// Returns the plugin files that libcni 1.3 loads from the directory named after the network, which may be missing.
fn directory_plugins(directory: &Path, network: &str) -> Result<Appended, Error> {
    let unusable = |error: hostfs::Error| Ok(Err(UnusableConf::PluginDirectory(error.to_string())));
    let plugins = match network {
        // The directory of network configurations itself.
        "" | "." => directory.to_owned(),
        // No runtime starts a pod in a network with such a name.
        name if name == ".." || name.contains('/') => return Ok(Ok(Vec::new())),
        name => match hostfs::resolve(directory, name.as_ref()) {
            Ok(path) => path,
            Err(error) if error.is_no_file() => return Ok(Ok(Vec::new())),
            Err(error) => return Err(error.into()),
        },
    };
    let names = match hostfs::list(&plugins) {
        Ok(names) => names,
        Err(error) if error.is_missing() => return Ok(Ok(Vec::new())),
        Err(error) if plugins.is_file() => return unusable(error),
        Err(error) => return Err(error.into()),
    };
    let mut found = Vec::new();
    for name in names.into_iter().filter(|name| name.to_string_lossy().ends_with(".conf")) {
        match NetworkConf::read(&plugins, &utf8_name(&plugins, name)?) {
            Ok(Some(plugin)) => match check_directory_plugin(&plugin.content) {
                Ok(()) => found.push(plugin.path),
                Err(unusable) => return Ok(Err(unusable)),
            },
            Ok(None) => {} // removed meanwhile
            Err(Error::File(error)) if error.is_no_file() => return unusable(error),
            Err(error) => return Err(error),
        }
    }
    Ok(Ok(found))
}

fn utf8_name(directory: &Path, name: OsString) -> Result<String, Error> {
    name.into_string().map_err(|name| Error::Name(directory.join(name)))
}

/// Returns the file names of a directory in the runtimes' order. Names that are not UTF-8 are ignored.
pub(crate) fn file_names(directory: &Path) -> Result<Vec<String>, Error> {
    Ok(hostfs::list(directory)?.into_iter().filter_map(|name| name.into_string().ok()).collect())
}

/// Returns the plugins that each network of the directory calls, in the order of the file names. Unreadable files are skipped.
pub(crate) fn plugin_chains(directory: &Path) -> Vec<Vec<String>> {
    let names = file_names(directory).unwrap_or_default();
    let read = |name: &String| NetworkConf::read(directory, name).ok().flatten();
    names.iter().filter_map(read).map(|network| plugin_types(&network.content)).collect()
}

#[cfg(test)]
mod tests;
