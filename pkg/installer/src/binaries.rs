//! Binaries: every regular file of the source directory, in every target directory that can be written.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs,
    path::{Path, PathBuf},
};

use hostfs::{Fingerprint, Written};

use crate::{Error, Settings, verify};

/// The plugin's name, in conflists and directories.
pub(crate) const PLUGIN: &str = "istio-cni";

/// What was installed and found good, so that a pass over files that nobody touched costs a few system calls.
#[derive(Debug, Default)]
pub(crate) struct Binaries {
    /// Source and installed file, as they were when their contents were compared.
    same: BTreeMap<PathBuf, (Fingerprint, Fingerprint)>,
    /// The plugin, as it was when it ran.
    runs: BTreeMap<PathBuf, Fingerprint>,
}

/// What a pass over the binaries found.
#[derive(Debug, Default)]
pub(crate) struct Installed {
    /// Files that were missing or different.
    pub(crate) replaced: Vec<PathBuf>,
    /// Directories that were left out, and why.
    pub(crate) left_out: Vec<String>,
    /// The plugin in each target, found to run.
    pub(crate) plugins: Vec<(PathBuf, Fingerprint)>,
}

impl Binaries {
    /// Puts everything in place, and runs the plugin wherever it is new.
    pub(crate) fn install(&mut self, settings: &Settings) -> Result<Installed, Error> {
        let names = names(&settings.source)?;
        let mut installed = Installed::default();
        let mut targets = Vec::new();
        for target in &settings.targets {
            match hostfs::check_writable(target) {
                Ok(()) => targets.push(target),
                Err(error) => installed.left_out.push(error.to_string()),
            }
        }
        if targets.is_empty() {
            return Err(Error::NoTarget(installed.left_out.join("; ")));
        }
        for target in targets {
            for name in &names {
                let (source, path) = (settings.source.join(name), target.join(name));
                if self.place(&source, &path, name)? == Written::Replaced {
                    installed.replaced.push(path);
                }
            }
            let plugin = target.join(PLUGIN);
            let seen = self.run(&plugin)?;
            installed.plugins.push((plugin, seen));
        }
        Ok(installed)
    }

    /// Whether a file that was found good has been touched since.
    pub(crate) fn are_touched(&self) -> bool {
        let is_touched = |(path, (_, seen)): (&PathBuf, &(Fingerprint, Fingerprint))| !matches!(hostfs::fingerprint(path), Ok(Some(now)) if now == *seen);
        self.same.iter().any(is_touched)
    }

    fn place(&mut self, source: &Path, path: &Path, name: &OsStr) -> Result<Written, Error> {
        if let (Some(was), Some(from), Some(to)) =
            (self.same.get(path), print(source)?, hostfs::fingerprint(path)?)
            && *was == (from, to)
        {
            return Ok(Written::Unchanged);
        }
        if let (Some(directory), Some(name)) = (path.parent(), name.to_str()) {
            hostfs::remove_stale(directory, name)?;
        }
        let before = print(source)?;
        let written = hostfs::copy(source, path)?;
        if let (Some(from), Some(to)) = (before, hostfs::fingerprint(path)?) {
            self.same.insert(path.to_owned(), (from, to));
        }
        Ok(written)
    }

    fn run(&mut self, plugin: &Path) -> Result<Fingerprint, Error> {
        let gone = || Error::Broken { path: plugin.to_owned(), why: "it has vanished again".to_owned() };
        let now = hostfs::fingerprint(plugin)?.ok_or_else(gone)?;
        if self.runs.get(plugin) != Some(&now) {
            verify::plugin(plugin)?;
            self.runs.insert(plugin.to_owned(), now);
        }
        Ok(now)
    }
}

/// Of the file itself where the source directory holds a link.
fn print(source: &Path) -> Result<Option<Fingerprint>, Error> {
    let real = fs::canonicalize(source).unwrap_or_else(|_| source.to_owned());
    Ok(hostfs::fingerprint(&real)?)
}

/// What the image brings. A link counts as what it leads to.
pub(crate) fn names(source: &Path) -> Result<Vec<OsString>, Error> {
    let mut names = hostfs::list(source)?;
    names.retain(|name| fs::metadata(source.join(name)).is_ok_and(|found| found.is_file()));
    if !names.iter().any(|name| name == PLUGIN) {
        return Err(Error::NoPlugin(source.to_owned()));
    }
    Ok(names)
}

/// Whether an installed file is still what the image brings. What cannot be compared is not ours to judge.
pub(crate) fn is_copy(source: &Path, path: &Path) -> bool {
    hostfs::is_copy(source, path).unwrap_or(false)
}
