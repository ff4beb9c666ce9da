//! Read-only inspection of the installation, for the state document.

use std::path::{Path, PathBuf};

use cni_types::without_entry;
use report::InstalledFile;

use crate::{
    Chaining, Error, InstallerSettings, binaries, cleanup,
    conf::{self, ConfPlan},
    entry::EntryCache,
    known_writers, network,
    pass::is_good,
};

/// Returns every file of ours on the node, and whether it matches the desired state: binaries, kubeconfig, our entry in a network
/// configuration. Reads each of them. `template_known`: false if the template may come from the cluster and was not fetched; then
/// any entry of ours matches.
pub fn inspect_installation(settings: &InstallerSettings, template_known: bool) -> Vec<InstalledFile> {
    let mut files = inspect_plugins(settings);
    files.extend(inspect_kubeconfig(settings));
    files.push(if template_known { inspect_entry(settings) } else { any_entry(settings) });
    files
}

/// Finds the network into which our entry is to be chained, and describes whether it is; the inner error: why there is none.
/// `None`: our plugin is called by its own network.
///
/// # Errors
/// The directory of network configurations cannot be read.
pub fn inspect_network(settings: &InstallerSettings) -> Result<Option<Result<String, String>>, Error> {
    let name = match &settings.chaining {
        Chaining::Primary { name } => name,
        Chaining::Own { primary } => primary,
        Chaining::Standalone { .. } => return Ok(None),
    };
    let network = conf::find_network(settings, name.as_deref())?;
    Ok(Some(network.and_then(|network| {
        let has_entry = matches!(without_entry(&network.content), Ok(Some(_)));
        let entry = if has_entry { "our entry is in it" } else { "our entry is not in it" };
        match conf::default_conflict(settings, &network.path) {
            Some(conflict) => Err(conflict),
            None => Ok(format!("{}; {entry}", network.path.display())),
        }
    })))
}

fn any_entry(settings: &InstallerSettings) -> InstalledFile {
    let mut names = network::file_names(&settings.conf_dir).unwrap_or_default();
    names.retain(|name| !name.ends_with(known_writers::SET_ASIDE));
    let (with_entry, _) = cleanup::plan_releases(settings, &names);
    match with_entry.first() {
        Some(found) => {
            let detail =
                "there is an entry of ours; whether it is the one of the ConfigMap only an agent knows";
            installed_file("entry", found.target_path(), Ok(detail.to_owned()))
        }
        None => installed_file(
            "entry",
            &settings.conf_dir,
            Err("our entry is missing: pods start without the plugin".to_owned()),
        ),
    }
}

fn installed_file(kind: &str, path: &Path, found: Result<String, String>) -> InstalledFile {
    let ok = found.is_ok();
    let detail = found.unwrap_or_else(|why| why);
    InstalledFile { kind: kind.to_owned(), path: path.display().to_string(), correct: ok, message: detail }
}

fn inspect_plugins(settings: &InstallerSettings) -> Vec<InstalledFile> {
    let names = match binaries::source_file_names(&settings.source) {
        Ok(names) => names,
        Err(error) => return vec![installed_file("plugin", &settings.source, Err(error.to_string()))],
    };
    // An incomplete directory that cannot be written is skipped while another one remains.
    let is_complete = |target: &PathBuf| {
        names.iter().all(|name| hostfs::is_copy(&settings.source.join(name), &target.join(name)))
    };
    let is_used = |target: &&PathBuf| hostfs::check_writable(target).is_ok() || is_complete(target);
    let targets: Vec<_> = settings.targets.iter().filter(is_used).collect();
    if targets.is_empty() {
        let all: Vec<String> = settings.targets.iter().map(|target| target.display().to_string()).collect();
        let why = Err("no directory for plugins can be written".to_owned());
        return vec![installed_file("plugin", Path::new(&all.join(", ")), why)];
    }
    let pairs = targets.into_iter().flat_map(|target| names.iter().map(move |name| (target, name)));
    pairs
        .map(|(target, name)| {
            let path = target.join(name);
            let found = match (path.exists(), hostfs::is_copy(&settings.source.join(name), &path)) {
                (false, _) => {
                    Err("it is missing: container runtimes cannot start pods that need it".to_owned())
                }
                (true, false) => Err("it differs from the one in the image".to_owned()),
                (true, true) => Ok("as in the image".to_owned()),
            };
            installed_file("plugin", &path, found)
        })
        .collect()
}

fn inspect_kubeconfig(settings: &InstallerSettings) -> Option<InstalledFile> {
    let desired = settings.kubeconfig.as_ref()?;
    let path = &settings.kubeconfig_path;
    let found = match desired.render() {
        Err(error) => Err(error.to_string()),
        Ok(_) if !path.exists() => Err("it is missing".to_owned()),
        Ok((text, _)) if !is_good(path, &text, desired.mode) => {
            Err("it is stale: its token, its authority or its mode is not the service account's of today"
                .to_owned())
        }
        Ok(_) => Ok(format!("with the service account's token of today, mode {:04o}", desired.mode)),
    };
    Some(installed_file("kubeconfig", path, found))
}

fn inspect_entry(settings: &InstallerSettings) -> InstalledFile {
    match plan_conf(settings) {
        Err(error) => installed_file("entry", &settings.conf_dir, Err(error.to_string())),
        Ok(ConfPlan::Wait(why)) => installed_file("entry", &settings.conf_dir, Err(why)),
        Ok(ConfPlan::Do { holder, changes }) if changes.is_empty() => {
            installed_file("entry", &holder, Ok("our entry is in place".to_owned()))
        }
        Ok(ConfPlan::Do { holder, changes }) => {
            let causes: Vec<&str> = changes.iter().map(|(cause, _)| cause.message()).collect();
            installed_file("entry", &holder, Err(causes.join("; ")))
        }
    }
}

fn plan_conf(settings: &InstallerSettings) -> Result<ConfPlan, Error> {
    let mut entries = EntryCache::default();
    entries.reload_template(settings)?;
    let current = entries.current.ok_or(Error::NoTemplate)?;
    conf::plan_changes(settings, &current.entry, &current.text)
}
