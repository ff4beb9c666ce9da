//! Uninstallation of the plugin.

use std::{collections::BTreeSet, fs, path::PathBuf};

use tracing::{info, warn};

use crate::{
    Error, InstallerSettings,
    binaries::PLUGIN,
    conf::{self, ConfChange},
    known_writers, kubeconfig, network, saved,
};

/// Removes entry, binaries and kubeconfig, in this order, so that at no time an entry exists whose binary or credential is missing:
/// if an entry cannot be removed, both stay. The plugin also stays where it is called for pods that were started with it, whatever
/// their network is by now. Continues after a failure where that is safe.
pub(crate) fn clean_up(settings: &InstallerSettings) -> Vec<Error> {
    let errors = remove_entries(settings);
    if !errors.is_empty() {
        return errors;
    }
    let caller = late_caller(settings);
    if let Some(caller) = caller {
        for target in settings.targets.iter().filter(|target| fs::exists(target).unwrap_or(true)) {
            let path = target.join(PLUGIN);
            info!(target: "install", path = %path.display(), caller, "kept: it is called for pods that started with it");
        }
    }
    let files = installed_binaries(settings, caller).into_iter().chain(kubeconfig_paths(settings));
    files.filter_map(|path| hostfs::remove(&path).err()).map(Error::from).collect()
}

/// Lists every file that an uninstallation with these settings would remove, or take our entry out of, one line for each, and the
/// files of which that cannot be determined. Changes nothing.
pub fn list_removals(settings: &InstallerSettings) -> (Vec<String>, Vec<Error>) {
    let names = match configuration_names(settings) {
        Ok(names) => names,
        Err(error) => return (Vec::new(), vec![error]),
    };
    let (changes, mut errors) = plan_releases(settings, &names);
    errors.retain(|error| !has_no_entry(error));
    let originals = saved::original_names(&names).map(|name| settings.conf_dir.join(name));
    let mut lines: Vec<String> = changes.iter().map(describe_removal).collect();
    lines.extend(existing_files("original", originals));
    lines.extend(existing_files("plugin", installed_binaries(settings, late_caller(settings))));
    lines.extend(existing_files("kubeconfig", kubeconfig_paths(settings)));
    (lines, errors)
}

fn describe_removal(change: &ConfChange) -> String {
    let path = change.target_path().display();
    match change {
        ConfChange::Remove { .. } => format!("network {path}: all of it is ours"),
        _ => format!("entry {path}: our entry is in it"),
    }
}

fn existing_files(kind: &str, paths: impl IntoIterator<Item = PathBuf>) -> impl Iterator<Item = String> {
    let there = paths.into_iter().filter(|path| fs::symlink_metadata(path).is_ok());
    there.map(move |path| format!("{kind} {}", path.display()))
}

/// Returns the paths of all kubeconfigs of ours: under the present name, former ones, and any other.
fn kubeconfig_paths(settings: &InstallerSettings) -> BTreeSet<PathBuf> {
    let named = [&settings.kubeconfig_path].into_iter().chain(&settings.former_kubeconfigs).cloned();
    named.chain(kubeconfig::find_kubeconfigs(&settings.conf_dir)).collect()
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
    let names = match configuration_names(settings) {
        Ok(names) => names,
        Err(error) => return vec![error],
    };
    let (changes, errors) = plan_releases(settings, &names);
    let (skipped, mut errors): (Vec<Error>, Vec<Error>) = errors.into_iter().partition(has_no_entry);
    for error in skipped {
        warn!(target: "install", %error, "skipped: it has no entry of ours");
    }
    errors.extend(changes.iter().filter_map(|change| conf::apply(change).err()));
    if !errors.is_empty() {
        return errors; // a later attempt may restore the rest
    }
    saved::forget_all(&settings.conf_dir, &names)
}

/// Returns the file names in the directory of network configurations; none if it does not exist.
fn configuration_names(settings: &InstallerSettings) -> Result<Vec<String>, Error> {
    match network::file_names(&settings.conf_dir) {
        Err(_) if !fs::exists(&settings.conf_dir).unwrap_or(true) => Ok(Vec::new()),
        names => names,
    }
}

/// Returns the changes after which no file has an entry of ours, and why files cannot be judged.
pub(crate) fn plan_releases(settings: &InstallerSettings, names: &[String]) -> (Vec<ConfChange>, Vec<Error>) {
    let (mut changes, mut errors) = (Vec::new(), Vec::new());
    for name in names {
        match conf::plan_release(settings, name) {
            Ok(change) => changes.extend(change),
            Err(error) => errors.push(error),
        }
    }
    (changes, errors)
}

/// Whether a file that cannot be judged has no entry of ours, because none is written into such a one: it is too large, or a link
/// out of the directory, for which the kernel reports no error.
fn has_no_entry(error: &Error) -> bool {
    matches!(error, Error::File(error) if error.io_error().raw_os_error().is_none())
}

/// Returns the paths of our binaries: the plugin, unless it has a late caller, and those others that still equal the image's.
fn installed_binaries(settings: &InstallerSettings, late_caller: Option<&str>) -> Vec<PathBuf> {
    let names = hostfs::list(&settings.source).unwrap_or_default();
    let others = names.iter().filter(|name| *name != PLUGIN);
    let others = others.flat_map(|name| settings.targets.iter().map(move |target| (name, target.join(name))));
    let copies = others.filter(|(name, path)| hostfs::is_copy(&settings.source.join(name), path));
    let plugins = settings.targets.iter().filter(|_| late_caller.is_none()).map(|target| target.join(PLUGIN));
    copies.map(|(_, path)| path).chain(plugins).collect()
}
