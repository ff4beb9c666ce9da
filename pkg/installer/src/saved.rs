//! Network configurations as they were before us, so that they can be restored to the byte.
//!
//! They lie beside the file, under a name that no runtime reads.

use std::path::{Path, PathBuf};

use cni_types::{FileForm, Json, is_conversion_of, plugin_types, without_entry};

use crate::{
    Error,
    conf::edit_error,
    network::{MAX_NETWORK, NetworkConf},
};

/// Follows the name of the file.
const SUFFIX: &str = ".before-istio-cni";

/// Where the original of `path` is kept.
pub(crate) fn original_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(SUFFIX);
    name.into()
}

/// Returns the paths of the files that the list `path` may have been converted from.
pub(crate) fn single_paths(path: &Path) -> impl Iterator<Item = PathBuf> {
    FileForm::SINGLE.iter().map(|extension| path.with_extension(extension))
}

/// Keeps `original`, the content of the file `path` without us.
pub(crate) fn save_original(path: &Path, original: &[u8], mode: u32) -> Result<(), Error> {
    hostfs::write(&original_path(path), original, mode)?;
    Ok(())
}

/// Takes our entry out of a list. If nobody has changed the rest of it since we put the entry in, the file becomes
/// what it was to the byte, under the name that it had.
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
        let original = read_original(&single).filter(|original| is_conversion_of(&network.content, original));
        original.map(|original| (single, original))
    });
    match (converted, read_original(path)) {
        (Some((single, original)), _) => {
            hostfs::write(&single, &original, network.mode)?;
            hostfs::remove(path)?;
        }
        (_, Some(original)) if Json::parse(&original).is_ok_and(|json| json.to_go_text() == text) => {
            hostfs::write(path, &original, network.mode)?;
        }
        // A list of nothing is no network.
        _ if plugin_types(text.as_bytes()).is_empty() => {
            hostfs::remove(path)?;
        }
        _ => {
            hostfs::write(path, text.as_bytes(), network.mode)?;
        }
    }
    forget_original(path)
}

/// Returns the original content of the file; `None` if that is not known.
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

/// Removes what is left of files that others have removed.
pub(crate) fn forget_all(directory: &Path, names: &[String]) -> Vec<Error> {
    let left = names.iter().filter(|name| name.ends_with(SUFFIX));
    left.filter_map(|name| hostfs::remove(&directory.join(name)).err()).map(Error::from).collect()
}
