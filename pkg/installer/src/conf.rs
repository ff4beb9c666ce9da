//! Our entry in the runtime's configuration: what is to be changed, and the change.

use std::path::{Path, PathBuf};

use cni_types::{EditError, Entry, FileForm, Standing, check_standalone, merged, standing, without_entry};

use crate::{
    Chaining, Error, Settings,
    network::{self, DEFAULT_MODE, Network, Search},
    saved,
};

/// Why a file is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cause {
    /// The file is not there.
    FileMissing,
    /// Our entry is not in it.
    EntryMissing,
    /// Our entry is not as it should be.
    EntryChanged,
    /// Another plugin comes after ours.
    EntryNotLast,
    /// Our entry is there more than once.
    EntryRepeated,
    /// Our entry is in a file where it should not be any more.
    EntryStale,
    /// Our copy of the primary network is not what that would give now.
    CopyOutdated,
}

impl Cause {
    /// For metrics.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Cause::FileMissing => "file_missing",
            Cause::EntryMissing => "entry_missing",
            Cause::EntryChanged => "entry_changed",
            Cause::EntryNotLast => "entry_not_last",
            Cause::EntryRepeated => "entry_repeated",
            Cause::EntryStale => "entry_stale",
            Cause::CopyOutdated => "copy_outdated",
        }
    }
}

/// One change of the directory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Replace a file. `original` is what it was without us.
    Write { path: PathBuf, text: String, mode: u32, original: Option<Vec<u8>> },
    /// Replace a single configuration by a list.
    Convert { from: PathBuf, to: PathBuf, text: String, mode: u32, original: Vec<u8> },
    /// Take our entry out of a file.
    Release { path: PathBuf },
    /// Remove a file of ours.
    Remove { path: PathBuf },
}

impl Change {
    /// For the log.
    pub(crate) fn words(&self) -> String {
        match self {
            Change::Write { path, .. } => format!("wrote {}", path.display()),
            Change::Convert { from, to, .. } => format!("replaced {} by {}", from.display(), to.display()),
            Change::Release { path } => format!("took our entry out of {}", path.display()),
            Change::Remove { path } => format!("removed {}", path.display()),
        }
    }
}

/// What is to be done so that a runtime calls us.
#[derive(Debug)]
pub(crate) enum Plan {
    /// When these are done, `holder` is the file with our entry.
    Do { holder: PathBuf, changes: Vec<(Cause, Change)> },
    /// There is no network yet to be part of.
    Wait(String),
}

/// Looks at the directory. `text` is the rendered template, `entry` what was read from it.
pub(crate) fn plan(settings: &Settings, entry: &Entry, text: &str) -> Result<Plan, Error> {
    match &settings.chaining {
        Chaining::Primary { name } => primary(settings, name.as_deref(), entry),
        Chaining::Own { primary } => own(settings, primary.as_deref(), entry),
        Chaining::Standalone { name } => standalone(settings, name, text),
    }
}

fn search(settings: &Settings, name: Option<&str>) -> Result<Search, Error> {
    match name {
        Some(name) => network::named(&settings.conf_dir, name),
        None => network::first(&settings.conf_dir, &settings.own_name),
    }
}

fn primary(settings: &Settings, name: Option<&str>, entry: &Entry) -> Result<Plan, Error> {
    let network = match search(settings, name)? {
        Search::Found(network) => network,
        Search::None(why) => return Ok(Plan::Wait(why)),
    };
    let edit = |cause| edit(&network.path, cause);
    let mut changes = Vec::new();
    let mut holder = network.path.clone();
    if let Some(cause) = amiss(standing(&network.content, entry).map_err(edit)?) {
        let text = merged(&network.content, entry).map_err(edit)?.text;
        let (mode, original) = (network.mode, network.content.clone());
        if network.is_single() {
            holder = list_of(&network.path);
            let (from, to) = (network.path.clone(), holder.clone());
            changes.push((cause, Change::Convert { from, to, text, mode, original }));
        } else {
            let original = (cause == Cause::EntryMissing).then_some(original);
            changes.push((cause, Change::Write { path: holder.clone(), text, mode, original }));
        }
    }
    if name.is_none() {
        changes.extend(stale(settings, &network)?);
    }
    Ok(Plan::Do { holder, changes })
}

fn amiss(standing: Standing) -> Option<Cause> {
    match standing {
        Standing::Current => None,
        Standing::Absent => Some(Cause::EntryMissing),
        Standing::Differs => Some(Cause::EntryChanged),
        Standing::NotLast => Some(Cause::EntryNotLast),
        Standing::Repeated => Some(Cause::EntryRepeated),
    }
}

/// Files that runtimes do not take any more and that still have our entry, because another sorts first now, or because our
/// own network was switched off.
fn stale(settings: &Settings, current: &Network) -> Result<Vec<(Cause, Change)>, Error> {
    let mut changes = Vec::new();
    for name in network::names(&settings.conf_dir)? {
        let Some(form) = FileForm::of(&name).filter(|_| name != current.name) else { continue };
        // What cannot be read or edited is not the runtime's network either; it shall not keep us from installing.
        let Ok(Some(other)) = Network::read(&settings.conf_dir, &name) else { continue };
        // The list that a single configuration of the same name is about to become.
        let is_replaced = current.is_single() && other.path == list_of(&current.path);
        let is_alone = form == FileForm::Conf && check_standalone(&other.content).is_ok();
        let has_entry = !is_replaced && matches!(without_entry(&other.content), Ok(Some(_)));
        let path = other.path;
        let change = match has_entry && name != settings.own_name {
            true => Change::Release { path },
            false if has_entry || is_alone => Change::Remove { path },
            false => continue,
        };
        changes.push((Cause::EntryStale, change));
    }
    Ok(changes)
}

fn own(settings: &Settings, name: Option<&str>, entry: &Entry) -> Result<Plan, Error> {
    let primary = match search(settings, name)? {
        Search::Found(network) => network,
        Search::None(why) => return Ok(Plan::Wait(why)),
    };
    if settings.own_name >= primary.name {
        return Err(Error::Order { own: settings.own_name.clone(), primary: primary.name });
    }
    let edit = |cause| edit(&primary.path, cause);
    let mut changes = Vec::new();
    let clean = without_entry(&primary.content).map_err(edit)?;
    if clean.is_some() {
        changes.push((Cause::EntryStale, Change::Release { path: primary.path.clone() }));
    }
    let base = clean.map_or_else(|| primary.content.clone(), String::into_bytes);
    let text = merged(&base, entry).map_err(edit)?.text;
    let copy = Network::read(&settings.conf_dir, &settings.own_name)?;
    let (cause, path) = match copy {
        Some(copy) if copy.content == text.as_bytes() => (None, copy.path),
        Some(copy) => (Some(Cause::CopyOutdated), copy.path),
        None => (Some(Cause::FileMissing), settings.conf_dir.join(&settings.own_name)),
    };
    if let Some(cause) = cause {
        let change = Change::Write { path: path.clone(), text, mode: primary.mode, original: None };
        changes.insert(0, (cause, change)); // first, so that there is no moment without an entry
    }
    Ok(Plan::Do { holder: path, changes })
}

fn standalone(settings: &Settings, name: &str, text: &str) -> Result<Plan, Error> {
    check_standalone(text.as_bytes()).map_err(|unusable| Error::Standalone(unusable.to_string()))?;
    let (cause, path) = match Network::read(&settings.conf_dir, name)? {
        Some(found) if found.content == text.as_bytes() => (None, found.path),
        Some(found) => (Some(Cause::EntryChanged), found.path),
        None => (Some(Cause::FileMissing), settings.conf_dir.join(name)),
    };
    let change =
        Change::Write { path: path.clone(), text: text.to_owned(), mode: DEFAULT_MODE, original: None };
    Ok(Plan::Do { holder: path, changes: cause.map(|cause| (cause, change)).into_iter().collect() })
}

/// `10-x.conf` becomes `10-x.conflist`.
fn list_of(path: &Path) -> PathBuf {
    path.with_extension("conflist")
}

pub(crate) fn edit(path: &Path, cause: EditError) -> Error {
    Error::Edit { path: path.to_owned(), cause }
}

/// Carries a change out. Every step leaves complete files, and an entry whose file runtimes take first.
pub(crate) fn apply(change: &Change) -> Result<(), Error> {
    match change {
        Change::Write { path, text, mode, original } => {
            if let Some(original) = original {
                saved::keep(path, original, *mode)?;
            }
            hostfs::write(path, text.as_bytes(), *mode)?;
        }
        Change::Convert { from, to, text, mode, original } => {
            saved::keep(from, original, *mode)?;
            hostfs::write(to, text.as_bytes(), *mode)?;
            hostfs::remove(from)?;
        }
        Change::Release { path } => saved::release(path)?,
        Change::Remove { path } => {
            hostfs::remove(path)?;
        }
    }
    Ok(())
}
