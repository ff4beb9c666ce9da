//! Original network configurations, kept so that they can be restored to the byte.
//!
//! Each is kept beside its file, under a name that no runtime reads.

use std::path::{Path, PathBuf};

use cni_types::{FileForm, Json, is_converted_from, plugin_types, without_entry};
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

/// Returns the list `list` without our entry, unless it is the conversion of `single` or of the original of `single`.
pub(crate) fn foreign_list(single: &NetworkConf, list: &NetworkConf) -> Option<Vec<u8>> {
    let before = read_original(&single.path);
    let singles = [Some(&single.content), before.as_ref()];
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
/// under its original name.
pub(crate) fn release_entry(path: &Path) -> Result<(), Error> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str()))
    else {
        return Ok(());
    };
    let Some(network) = NetworkConf::read(directory, name)? else { return forget_original(path) };
    let Some(text) = without_entry(&network.content).map_err(|cause| edit_error(path, cause))? else {
        return forget_original(path);
    };
    let converted = single_paths(path).find_map(|single| {
        let original =
            read_original(&single).filter(|original| is_converted_from(&network.content, original));
        original.map(|original| (single, original))
    });
    match (converted, unchanged_original(path, &text)) {
        (Some((single, original)), _) => {
            hostfs::write(&single, &original, network.mode)?;
            match read_original(path) {
                Some(replaced) => drop(hostfs::write(path, &replaced, network.mode)?),
                None => drop(hostfs::remove(path)?),
            }
        }
        (_, Some(original)) => {
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
    let left = names.iter().filter(|name| name.ends_with(SUFFIX));
    left.filter_map(|name| hostfs::remove(&directory.join(name)).err()).map(Error::from).collect()
}
