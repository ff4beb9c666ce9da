//! Uninstallation of the plugin.

use std::{fs, path::Path};

use cni_types::{FileForm, check_standalone, without_entry};
use tracing::{info, warn};

use crate::{
    Chaining, Error, InstallerSettings,
    binaries::{self, PLUGIN},
    known_writers, kubeconfig,
    network::{self, NetworkConf, is_owned_copy},
    saved,
};

/// Removes entry, binaries and kubeconfig, in this order, so that at no time an entry exists whose binary or credential is missing:
/// if an entry cannot be removed, both stay. The plugin also stays where it is called for pods that were started with it, whatever
/// their network is by now. Continues after a failure where that is safe.
pub(crate) fn clean_up(settings: &InstallerSettings) -> Vec<Error> {
    let mut errors = remove_entries(settings);
    let entries_left = !errors.is_empty();
    if !entries_left {
        let caller = late_caller(settings);
        errors.extend(settings.targets.iter().flat_map(|target| remove_binaries(settings, target, caller)));
        let kubeconfigs = std::iter::once(&settings.kubeconfig_path).chain(&settings.former_kubeconfigs);
        let kubeconfigs = kubeconfigs.cloned().chain(kubeconfig::find_kubeconfigs(&settings.conf_dir));
        errors.extend(kubeconfigs.filter_map(|path| hostfs::remove(&path).err()).map(Error::from));
    }
    errors
}

/// Returns the caller of the plugin for pods that were started with it, after our entry was removed; `None`: no caller is known.
///
/// Multus stores the networks of a pod at its ADD, and calls DEL for these when the pod ends.
fn late_caller(settings: &InstallerSettings) -> Option<&'static str> {
    if settings.keeps_plugin {
        return Some("container runtime");
    }
    known_writers::has_multus(&settings.conf_dir).then_some("Multus")
}

fn remove_entries(settings: &InstallerSettings) -> Vec<Error> {
    let names = match network::file_names(&settings.conf_dir) {
        Ok(names) => names,
        Err(_) if !fs::exists(&settings.conf_dir).unwrap_or(true) => return Vec::new(),
        Err(error) => return vec![error],
    };
    let errors: Vec<_> = names.iter().filter_map(|name| release_entry(settings, name).err()).collect();
    if !errors.is_empty() {
        return errors; // a later attempt may restore the rest
    }
    saved::forget_all(&settings.conf_dir, &names)
}

fn release_entry(settings: &InstallerSettings, name: &str) -> Result<(), Error> {
    let is_named = match &settings.chaining {
        Chaining::Primary { name: named } => named.as_deref() == Some(name),
        Chaining::Standalone { name: named } => named == name,
        Chaining::Own { .. } => false,
    };
    let form = FileForm::from_file_name(name);
    if form.is_none() && !is_named {
        return Ok(());
    }
    let network = match NetworkConf::read(&settings.conf_dir, name) {
        Ok(Some(network)) => network,
        Ok(None) => return Ok(()),
        // Not the kernel's: no file, too large, or a link out of the directory. Into none of these an entry is written.
        Err(Error::File(error)) if error.io_error().raw_os_error().is_none() => {
            if !error.is_no_file() {
                warn!(target: "install", %error, "skipped: it has no entry of ours");
            }
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    // The settings may be unknown: a reboot empties the directory with those of the last agent.
    let is_alone =
        form == Some(FileForm::Conf) || matches!(settings.chaining, Chaining::Standalone { .. }) && is_named;
    if is_alone && check_standalone(&network.content).is_ok() {
        hostfs::remove(&network.path)?;
        return Ok(());
    }
    match without_entry(&network.content) {
        // A foreign file: its content is not ours to remove.
        Err(_) | Ok(None) => Ok(()),
        Ok(Some(_)) if name == settings.own_name || is_owned_copy(&network.content) => {
            hostfs::remove(&network.path)?;
            Ok(())
        }
        Ok(Some(_)) => saved::release_entry(&network.path),
    }
}

/// Removes our binaries from one directory: the plugin, and those others that still equal the image's.
fn remove_binaries(settings: &InstallerSettings, target: &Path, late_caller: Option<&str>) -> Vec<Error> {
    let names = hostfs::list(&settings.source).unwrap_or_default();
    let mut errors = Vec::new();
    for name in names.iter().filter(|name| *name != PLUGIN) {
        let path = target.join(name);
        if binaries::is_copy(&settings.source.join(name), &path) {
            errors.extend(hostfs::remove(&path).err());
        }
    }
    let plugin = target.join(PLUGIN);
    match (fs::exists(target), late_caller) {
        (Ok(false), _) => {}
        (Ok(true) | Err(_), Some(caller)) => {
            info!(target: "install", path = %plugin.display(), caller, "kept: it is called for pods that started with it");
        }
        (Ok(true) | Err(_), None) => errors.extend(hostfs::remove(&plugin).err()),
    }
    errors.into_iter().map(Error::from).collect()
}
