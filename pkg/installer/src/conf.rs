//! Our entry in the runtime's network configuration: plans changes and applies them.

use std::path::{Path, PathBuf};

use cni_types::{
    ConflistEntry, EditError, EntryStatus, FileForm, Json, entry_status, is_standalone, merge_entry,
    plugin_types, without_entry,
};
use hostfs::FileFingerprint;

use crate::{
    Chaining, Error, InstallerSettings, known_writers,
    network::{self, DEFAULT_MODE, MAX_NETWORK, NetworkConf, NetworkSearch, OWNED_COPY, is_owned_copy},
    saved,
};

model::word_enum! {
    /// Cause of a change.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub(crate) enum ChangeCause {
        /// The file does not exist.
        FileMissing = "file_missing", "the file is missing",
        /// Our entry is missing.
        EntryMissing = "entry_missing", "our entry is missing: pods start without the plugin",
        /// Our entry differs from the desired one.
        EntryChanged = "entry_changed", "our entry differs from the desired one",
        /// Another plugin follows ours.
        EntryNotLast = "entry_not_last", "another plugin comes after ours",
        /// Our entry occurs more than once.
        EntryRepeated = "entry_repeated", "our entry is there more than once",
        /// Our entry is in a file that should no longer have it.
        EntryStale = "entry_stale", "our entry is in a file where it should not be any more",
        /// Our copy of the primary network differs from one made now.
        CopyOutdated = "copy_outdated", "our copy of the primary network is out of date",
    }
}

/// One change in the directory of network configurations.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ConfChange {
    /// Replace a file, if it is still as observed. `original` is its content without our entry.
    Write {
        path: PathBuf,
        text: String,
        mode: u32,
        original: Option<Vec<u8>>,
        observed: Option<FileFingerprint>,
    },
    /// Replace a single configuration by a list, if both are still as observed. `from` is the file, or a link to the file `source`,
    /// which stays; `foreign` is an existing list that is replaced.
    Convert {
        from: PathBuf,
        source: PathBuf,
        to: PathBuf,
        text: String,
        mode: u32,
        original: Vec<u8>,
        observed: Option<FileFingerprint>,
        foreign: Option<Vec<u8>>,
        replaced: Option<FileFingerprint>,
    },
    /// Remove our entry from a file.
    Release { path: PathBuf },
    /// Remove a file of ours.
    Remove { path: PathBuf },
}

impl ConfChange {
    /// Returns the file that the change writes or removes.
    pub(crate) fn target_path(&self) -> &Path {
        match self {
            ConfChange::Convert { to: path, .. }
            | ConfChange::Write { path, .. }
            | ConfChange::Release { path }
            | ConfChange::Remove { path } => path,
        }
    }

    /// Returns the change as text for the log.
    pub(crate) fn description(&self) -> String {
        match self {
            ConfChange::Write { path, .. } => format!("wrote {}", path.display()),
            ConfChange::Convert { from, to, .. } => {
                format!("replaced {} by {}", from.display(), to.display())
            }
            ConfChange::Release { path } => format!("took our entry out of {}", path.display()),
            ConfChange::Remove { path } => format!("removed {}", path.display()),
        }
    }
}

/// Changes after which a runtime calls our plugin.
#[derive(Debug)]
pub(crate) enum ConfPlan {
    /// Apply the changes; then `holder` is the file with our entry.
    Do { holder: PathBuf, changes: Vec<(ChangeCause, ConfChange)> },
    /// Wait: no network exists yet into which our entry could be chained.
    Wait(String),
}

/// Compares the directory with the desired state. `text` is the rendered template, `entry` the entry parsed from it.
pub(crate) fn plan_changes(
    settings: &InstallerSettings,
    entry: &ConflistEntry,
    text: &str,
) -> Result<ConfPlan, Error> {
    hostfs::check_linked(&settings.conf_dir)?;
    match &settings.chaining {
        Chaining::Primary { name } => plan_primary(settings, name.as_deref(), entry),
        Chaining::Own { primary } => plan_own(settings, primary.as_deref(), entry),
        Chaining::Standalone { name } => {
            plan_own_file(settings, name, standalone_text(entry, text), DEFAULT_MODE)
        }
    }
}

pub(crate) fn find_network(settings: &InstallerSettings, name: Option<&str>) -> Result<NetworkSearch, Error> {
    match name {
        Some(name) => network::find_named(&settings.conf_dir, name, &settings.own_name),
        None => network::find_default(&settings.conf_dir, &settings.own_name),
    }
}

/// Returns why pods may not get the network named by `CNI_CONF_NAME`, whose file is `holder`, or our copy of it; `None`: no conflict
/// was found.
pub(crate) fn default_conflict(settings: &InstallerSettings, holder: &Path) -> Option<String> {
    let copy = match &settings.chaining {
        Chaining::Primary { name: Some(_) } => None,
        Chaining::Own { primary: Some(_) } => Some(settings.conf_dir.join(&settings.own_name)),
        _ => return None,
    };
    let taken = copy.as_deref().unwrap_or(holder);
    network::describe_other_default(&settings.conf_dir, taken, &settings.own_name)
}

fn plan_primary(
    settings: &InstallerSettings,
    name: Option<&str>,
    entry: &ConflistEntry,
) -> Result<ConfPlan, Error> {
    let network = match find_network(settings, name)? {
        Ok(network) => network,
        Err(why) => return Ok(ConfPlan::Wait(why)),
    };
    let edit = |cause| edit_error(&network.path, cause);
    let mut changes = Vec::new();
    let mut holder = network.path.clone();
    let renewed = saved::changed_source(&settings.conf_dir, &network);
    let renewed = renewed.and_then(|source| merge_entry(&source, entry).ok());
    let cause = match renewed {
        Some(_) => Some(ChangeCause::CopyOutdated),
        None => change_cause(entry_status(&network.content, entry).map_err(edit)?),
    };
    if let Some(cause) = cause {
        let text = renewed.map_or_else(|| merge_entry(&network.content, entry), Ok).map_err(edit)?;
        let (mode, original, observed) = (network.mode, network.content.clone(), network.fingerprint);
        if network.is_single() {
            let (from, source) = (settings.conf_dir.join(&network.name), network.path.clone());
            holder = from.with_extension("conflist");
            let (foreign, replaced) = observe_replaced(&from, &network, &holder)?;
            let to = holder.clone();
            changes.push((
                cause,
                ConfChange::Convert { from, source, to, text, mode, original, observed, foreign, replaced },
            ));
        } else {
            let original = (cause == ChangeCause::EntryMissing).then_some(original);
            changes.push((cause, ConfChange::Write { path: holder.clone(), text, mode, original, observed }));
        }
    }
    changes.extend(stale_entry_changes(settings, &network.name, &holder)?);
    Ok(ConfPlan::Do { holder, changes })
}

/// Returns the list `to` that the conversion of `single`, in the file or link `from`, replaces, without our entry, if another
/// program made it; and its fingerprint.
fn observe_replaced(
    from: &Path,
    single: &NetworkConf,
    to: &Path,
) -> Result<(Option<Vec<u8>>, Option<FileFingerprint>), Error> {
    let (Some(directory), Some(name)) = (to.parent(), to.file_name().and_then(|name| name.to_str())) else {
        return Ok((None, None));
    };
    Ok(match NetworkConf::read_own(directory, name)? {
        Ok(list) => (saved::foreign_list(from, &single.content, &list), list.fingerprint),
        Err(replaced) => (None, replaced),
    })
}

fn change_cause(standing: EntryStatus) -> Option<ChangeCause> {
    match standing {
        EntryStatus::Current => None,
        EntryStatus::Absent => Some(ChangeCause::EntryMissing),
        EntryStatus::Differs => Some(ChangeCause::EntryChanged),
        EntryStatus::NotLast => Some(ChangeCause::EntryNotLast),
        EntryStatus::Repeated => Some(ChangeCause::EntryRepeated),
    }
}

/// Returns the changes to files other than `name`, which is or becomes `holder`, that still have our entry: another file sorts
/// first now, or the daemon ran in another mode before.
fn stale_entry_changes(
    settings: &InstallerSettings,
    name: &str,
    holder: &Path,
) -> Result<Vec<(ChangeCause, ConfChange)>, Error> {
    let mut names = network::file_names(&settings.conf_dir)?;
    names.retain(|other| other != name && FileForm::from_file_name(other).is_some());
    // A file that cannot be read or edited is not the runtime's network either, and must not block the installation.
    let changes = names.iter().filter_map(|other| plan_release(settings, other).ok()?);
    // A link to the holder, and the list that a single configuration is about to become, stay.
    let changes = changes.filter(|change| change.target_path() != holder);
    Ok(changes.map(|change| (ChangeCause::EntryStale, change)).collect())
}

/// Returns the change after which a file has no entry of ours; `None`: it has none.
///
/// # Errors
/// The file exists and cannot be read.
pub(crate) fn plan_release(settings: &InstallerSettings, name: &str) -> Result<Option<ConfChange>, Error> {
    let name_before = name.strip_suffix(known_writers::SET_ASIDE).unwrap_or(name);
    let Some(form) = FileForm::from_file_name(name_before) else { return Ok(None) };
    let NetworkConf { path, content, .. } = match NetworkConf::read(&settings.conf_dir, name) {
        Ok(Some(network)) => network,
        Ok(None) => return Ok(None),
        Err(Error::File(error)) if error.is_no_file() => return Ok(None),
        Err(error) => return Err(error),
    };
    let is_alone = form == FileForm::Conf && is_standalone(&content);
    let has_entry = matches!(without_entry(&content), Ok(Some(_)));
    let is_own = name == settings.own_name || is_owned_copy(name, &content);
    Ok(match (is_alone || has_entry && is_own, has_entry) {
        (true, _) => Some(ConfChange::Remove { path }),
        (false, true) => Some(ConfChange::Release { path }),
        (false, false) => None,
    })
}

fn plan_own(
    settings: &InstallerSettings,
    name: Option<&str>,
    entry: &ConflistEntry,
) -> Result<ConfPlan, Error> {
    let primary = match find_network(settings, name)? {
        Ok(network) => network,
        Err(why) => return Ok(ConfPlan::Wait(why)),
    };
    if settings.own_name >= primary.name {
        return Err(Error::Order { own: settings.own_name.clone(), primary: primary.name });
    }
    let edit = |cause| edit_error(&primary.path, cause);
    let clean = without_entry(&primary.content).map_err(edit)?;
    let base = clean.map_or_else(|| primary.content.clone(), String::into_bytes);
    let entry = entry.clone().with_default(OWNED_COPY, Json::Bool(true));
    let text = merge_entry(&base, &entry).map_err(edit)?;
    plan_own_file(settings, &settings.own_name, text, primary.mode)
}

/// Compares a file that is ours alone with its desired text. `mode`: of a new file, unless one is configured.
fn plan_own_file(
    settings: &InstallerSettings,
    name: &str,
    text: String,
    mode: u32,
) -> Result<ConfPlan, Error> {
    let is_mode = |file: &NetworkConf| settings.own_mode.is_none_or(|mode| file.mode == mode);
    let is_alone = matches!(settings.chaining, Chaining::Standalone { .. });
    let (form, extension, outdated) = match is_alone {
        true => (FileForm::Conf, "conf", ChangeCause::EntryChanged),
        false => (FileForm::Conflist, "conflist", ChangeCause::CopyOutdated),
    };
    let (cause, path, observed) = match NetworkConf::read_own(&settings.conf_dir, name)? {
        Ok(found) if found.content == text.as_bytes() && is_mode(&found) => (None, found.path, None),
        Ok(found) => {
            if is_alone {
                check_foreign_plugins(&found)?;
            }
            (Some(outdated), found.path, found.fingerprint)
        }
        Err(observed) => {
            if is_alone {
                check_linked_network(settings, name)?;
            }
            (Some(ChangeCause::FileMissing), settings.conf_dir.join(name), observed)
        }
    };
    if FileForm::from_file_name(name) != Some(form) {
        return Err(Error::Extension(name.to_owned(), extension));
    }
    let mode = settings.own_mode.unwrap_or(mode);
    let change = ConfChange::Write { path: path.clone(), text, mode, original: None, observed };
    let mut changes: Vec<_> = cause.map(|cause| (cause, change)).into_iter().collect();
    changes.extend(stale_entry_changes(settings, name, &path)?); // last, so that an entry exists at any time
    Ok(ConfPlan::Do { holder: path, changes })
}

/// Checks whether a link may be replaced by a network of our own.
fn check_linked_network(settings: &InstallerSettings, name: &str) -> Result<(), Error> {
    match NetworkConf::read(&settings.conf_dir, name) {
        Ok(found) => found.as_ref().map_or(Ok(()), check_foreign_plugins),
        Err(Error::File(error)) if error.is_no_file() => Ok(()),
        Err(error) => Err(error),
    }
}

/// Checks whether a file may be replaced by a network of our own: it calls no plugin but ours.
fn check_foreign_plugins(file: &NetworkConf) -> Result<(), Error> {
    let mut plugins = plugin_types(&file.content);
    plugins.retain(|plugin| plugin != ConflistEntry::TYPE);
    match plugins.is_empty() {
        true => Ok(()),
        false => Err(Error::ForeignNetwork { path: file.path.clone(), plugins: plugins.join(", ") }),
    }
}

/// Returns the template as it is, unless settings add members to the entry or remove some: then the entry, with the version of the
/// template.
fn standalone_text(entry: &ConflistEntry, text: &str) -> String {
    if ConflistEntry::parse(text).is_ok_and(|written| written == *entry) {
        return text.to_owned();
    }
    let template = Json::parse(text.as_bytes()).ok();
    let template = template.iter().filter_map(Json::as_object).flatten();
    let version = template.filter(|(key, _)| key.eq_ignore_ascii_case("cniVersion"));
    let members = version.chain(entry.as_json().as_object().into_iter().flatten());
    let members = members.map(|(key, value)| (key.clone(), value.clone()));
    Json::Object(members.collect()).to_go_text()
}

pub(crate) fn edit_error(path: &Path, cause: EditError) -> Error {
    Error::Edit { path: path.to_owned(), cause }
}

/// Applies a change. Each step leaves complete files, and an entry in the file that runtimes prefer. A file that changed since it
/// was observed is left to the next pass.
pub(crate) fn apply(change: &ConfChange) -> Result<(), Error> {
    if let ConfChange::Write { path, text, .. } | ConfChange::Convert { to: path, text, .. } = change
        && text.len() > MAX_NETWORK
    {
        return Err(Error::TooLarge(path.clone()));
    }
    match change {
        ConfChange::Write { path, text, mode, original, observed } => {
            if let Some(original) = original {
                saved::save_original(path, original, *mode)?;
            }
            if is_unchanged(path, *observed)? {
                hostfs::write(path, text.as_bytes(), *mode)?;
            }
        }
        ConfChange::Convert { from, source, to, text, mode, original, observed, foreign, replaced } => {
            saved::save_replaced(to, foreign.as_deref(), *mode, *replaced)?;
            if from == source {
                saved::save_original(from, original, *mode)?;
            }
            if !is_unchanged(to, *replaced)? {
                return Ok(());
            }
            if is_same_source(from, source, *observed)? {
                hostfs::write(to, text.as_bytes(), *mode)?;
            }
            if is_same_source(from, source, *observed)? {
                saved::set_aside(from)?;
            }
        }
        ConfChange::Release { path } => saved::release_entry(path)?,
        ConfChange::Remove { path } => {
            hostfs::remove(path)?;
        }
    }
    Ok(())
}

/// Whether `from` still leads to the file `source`, which is as observed.
fn is_same_source(from: &Path, source: &Path, observed: Option<FileFingerprint>) -> Result<bool, Error> {
    let (Some(directory), Some(name)) = (from.parent(), from.file_name()) else { return Ok(false) };
    Ok(hostfs::resolve(directory, name).is_ok_and(|path| path == source) && is_unchanged(source, observed)?)
}

fn is_unchanged(path: &Path, observed: Option<FileFingerprint>) -> Result<bool, Error> {
    Ok(hostfs::fingerprint(path)? == observed)
}

#[cfg(test)]
mod tests;
