//! Temporary files that a killed installer, ours or Istio's, left in the directory of network configurations.

use std::path::Path;

use tracing::{info, warn};

use crate::{InstallerSettings, saved};

/// Removes temporaries of the files that we write, and no others. A failure is ignored: they do no harm.
pub(crate) fn remove_temporaries(settings: &InstallerSettings, holder: &Path) {
    let inside = |name: &str| settings.conf_dir.join(name);
    let written = [holder.to_owned(), settings.kubeconfig_path.clone(), inside(&settings.own_name)];
    let originals = saved::single_paths(holder).chain([holder.to_owned()]);
    let files = originals.flat_map(|file| [saved::original_path(&file), file]).chain(written);
    for file in files {
        let (Some(directory), Some(name)) = (file.parent(), file.file_name().and_then(|name| name.to_str()))
        else {
            continue;
        };
        match hostfs::remove_stale(directory, name) {
            Ok(gone) => {
                gone.iter().for_each(|path| info!(target: "install", path = %path.display(), "removed"));
            }
            Err(error) => warn!(target: "install", %error, "cannot remove leftovers"),
        }
    }
}
