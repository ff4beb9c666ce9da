//! Original network configurations, kept so that they can be restored to the byte.
//!
//! Each is kept beside its file, under a name that no runtime reads.

use std::path::{Path, PathBuf};

use cni_types::{FileForm, Json, Libcni, is_converted_from, plugin_types, read_network, without_entry};
use hostfs::FileFingerprint;

use crate::{
    Error,
    conf::edit_error,
    network::{MAX_NETWORK, NetworkConf},
};

/// Suffix appended to the file's name.
const SUFFIX: &str = ".before-istio-cni";

/// Returns the path at which the original of `path` is kept.
pub(crate) fn original_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(SUFFIX);
    name.into()
}

/// Returns the paths of the files that the list `path` may have been converted from.
pub(crate) fn single_paths(path: &Path) -> impl Iterator<Item = PathBuf> {
    FileForm::SINGLE.iter().map(|extension| path.with_extension(extension))
}

/// Saves `original`, the content of the file `path` without our entry.
pub(crate) fn save_original(path: &Path, original: &[u8], mode: u32) -> Result<(), Error> {
    hostfs::write(&original_path(path), original, mode)?;
    Ok(())
}

/// Removes the file `from` after its conversion. A link becomes its own original: its target belongs to others.
pub(crate) fn set_aside(from: &Path) -> Result<(), Error> {
    match from.is_symlink() {
        true => Ok(hostfs::rename(from, &original_path(from))?),
        false => Ok(hostfs::remove(from).map(drop)?),
    }
}

/// Returns the content of the single configuration to which a link led that was converted to `list`, if it has changed since then,
/// and the list has not.
pub(crate) fn changed_source(directory: &Path, list: &NetworkConf) -> Option<Vec<u8>> {
    let links =
        single_paths(&list.path).map(|single| original_path(&single)).filter(|path| path.is_symlink());
    let mut sources =
        links.filter_map(|link| NetworkConf::read(directory, link.file_name()?.to_str()?).ok()?);
    sources.find(|source| has_changed_since(source, list)).map(|source| source.content)
}

fn has_changed_since(source: &NetworkConf, list: &NetworkConf) -> bool {
    let is_newer =
        source.fingerprint.zip(list.fingerprint).is_some_and(|(source, list)| !source.is_older_than(&list));
    is_newer
        && read_network(FileForm::Conf, &source.content, Libcni::V1_3).is_ok()
        && is_conversion(&list.content)
        && !is_converted_from(&list.content, &source.content)
}

/// Whether the list, without our entry, is the conversion of some single configuration.
fn is_conversion(list: &[u8]) -> bool {
    let list_json = Json::parse(list).unwrap_or(Json::Null);
    let plugin =
        list_json.get("plugins").and_then(Json::as_list).and_then(|plugins| plugins.first()?.as_object());
    let Some(mut single) = plugin.cloned() else { return false };
    single.extend(list_json.get("cniVersion").map(|version| ("cniVersion".to_owned(), version.clone())));
    is_converted_from(list, Json::Object(single).to_go_text().as_bytes())
}

/// Returns the list `list` without our entry, unless it is the conversion of `single`, the content of `from`, or of the original of
/// `from`.
pub(crate) fn foreign_list(from: &Path, single: &[u8], list: &NetworkConf) -> Option<Vec<u8>> {
    let before = read_original(from);
    let singles = [Some(single), before.as_deref()];
    if singles.into_iter().flatten().any(|single| is_converted_from(&list.content, single)) {
        return None;
    }
    match without_entry(&list.content) {
        Ok(Some(text)) if plugin_types(text.as_bytes()).is_empty() => None, // contains only our entry
        Ok(Some(text)) => Some(unchanged_original(&list.path, &text).unwrap_or_else(|| text.into_bytes())),
        Ok(None) | Err(_) => Some(list.content.clone()),
    }
}

/// Saves the foreign list that a conversion at `path` replaces. An original saved before is kept while a file exists at `path`.
pub(crate) fn save_replaced(
    path: &Path,
    foreign: Option<&[u8]>,
    mode: u32,
    replaced: Option<FileFingerprint>,
) -> Result<(), Error> {
    match (foreign, replaced) {
        (Some(foreign), _) => save_original(path, foreign, mode),
        (None, Some(_)) => Ok(()),
        (None, None) => Ok(hostfs::remove(&original_path(path)).map(drop)?),
    }
}

/// Removes our entry from a list. If the rest is unchanged since the entry was inserted, the original file is restored to the byte,
/// under its original name, unless a file exists there: that is the primary CNI plugin's newer one.
pub(crate) fn release_entry(path: &Path) -> Result<(), Error> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str()))
    else {
        return Ok(());
    };
    let Some(network) = NetworkConf::read(directory, name)? else { return forget_original(path) };
    let Some(text) = without_entry(&network.content).map_err(|cause| edit_error(path, cause))? else {
        return forget_original(path);
    };
    let mut is_converted = false;
    for single in single_paths(path) {
        let original = original_path(&single);
        // The file itself: a removal that was interrupted has restored it.
        let is_source = [&original, &single].into_iter().any(|file| {
            hostfs::read(file, MAX_NETWORK).is_ok_and(|source| is_converted_from(&network.content, &source))
        });
        // A link is restored whatever its target contains by now.
        if (is_source || original.is_symlink()) && hostfs::fingerprint(&single)?.is_none() {
            hostfs::rename(&original, &single)?;
        }
        is_converted |= is_source;
    }
    match (is_converted, unchanged_original(path, &text)) {
        (true, _) => match read_original(path) {
            Some(replaced) => drop(hostfs::write(path, &replaced, network.mode)?),
            None => drop(hostfs::remove(path)?),
        },
        (false, Some(original)) => {
            hostfs::write(path, &original, network.mode)?;
        }
        // A list without plugins is no network.
        _ if plugin_types(text.as_bytes()).is_empty() => {
            hostfs::remove(path)?;
        }
        _ => {
            hostfs::write(path, text.as_bytes(), network.mode)?;
        }
    }
    forget_original(path)
}

/// Returns the original content of the file, whose content without our entry is `text`; `None` if it is unknown or has changed.
fn unchanged_original(path: &Path, text: &str) -> Option<Vec<u8>> {
    read_original(path).filter(|original| Json::parse(original).is_ok_and(|json| json.to_go_text() == text))
}

/// Returns the original content of the file; `None` if it is unknown.
fn read_original(path: &Path) -> Option<Vec<u8>> {
    hostfs::read(&original_path(path), MAX_NETWORK).ok()
}

fn forget_original(path: &Path) -> Result<(), Error> {
    hostfs::remove(&original_path(path))?;
    for single in single_paths(path) {
        hostfs::remove(&original_path(&single))?;
    }
    Ok(())
}

/// Removes originals whose files another program has removed.
pub(crate) fn forget_all(directory: &Path, names: &[String]) -> Vec<Error> {
    let left = original_names(names);
    left.filter_map(|name| hostfs::remove(&directory.join(name)).err()).map(Error::from).collect()
}

/// Returns those of the names that are of originals.
pub(crate) fn original_names(names: &[String]) -> impl Iterator<Item = &String> {
    names.iter().filter(|name| name.ends_with(SUFFIX))
}
