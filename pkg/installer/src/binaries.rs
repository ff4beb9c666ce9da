//! Binaries: every regular file of the source directory, copied to every writable target directory.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

use hostfs::{FileFingerprint, WriteOutcome};

use crate::{Error, InstallerSettings, verify};

/// Plugin name, in conflists and directories.
pub(crate) const PLUGIN: &str = "istio-cni";

/// One attempt to write and one to verify. Further ones are left to the next pass.
const TRIES: u32 = 2;

/// Record of the files that were installed and verified, so that a pass over untouched files costs a few system calls.
#[derive(Debug, Default)]
pub(crate) struct BinaryInstaller {
    /// Fingerprints of source and installed file when their contents were found equal.
    same: BTreeMap<PathBuf, (FileFingerprint, FileFingerprint)>,
    /// Fingerprint of the plugin when it was executed successfully.
    runs: BTreeMap<PathBuf, FileFingerprint>,
}

/// Result of a pass over the binaries.
#[derive(Debug, Default)]
pub(crate) struct InstalledBinaries {
    /// Files that were missing or different.
    pub(crate) replaced: Vec<PathBuf>,
    /// Directories that were skipped, and why.
    pub(crate) left_out: Vec<String>,
    /// Verified files; the plugin among them has been executed.
    pub(crate) good: Vec<(PathBuf, FileFingerprint)>,
    /// Files that another process changed during the pass.
    pub(crate) unsettled: Vec<PathBuf>,
}

impl BinaryInstaller {
    /// Installs all files, and executes the plugin wherever it is new.
    pub(crate) fn install(&mut self, settings: &InstallerSettings) -> Result<InstalledBinaries, Error> {
        let names = source_file_names(&settings.source)?;
        self.verify_plugin(&settings.source.join(PLUGIN))?; // a plugin that does not run must not replace one that does
        let mut installed = InstalledBinaries::default();
        for target in &settings.targets {
            if let Err(error) = self.install_into(target, &settings.source, &names, &mut installed) {
                // A directory that already has all files need not be writable.
                match hostfs::check_writable(target) {
                    Ok(()) => return Err(error),
                    Err(why) => installed.left_out.push(why.to_string()),
                }
            }
        }
        if installed.left_out.len() == settings.targets.len() {
            return Err(Error::NoTarget(installed.left_out.join("; ")));
        }
        Ok(installed)
    }

    fn install_into(
        &mut self,
        target: &Path,
        source: &Path,
        names: &[OsString],
        installed: &mut InstalledBinaries,
    ) -> Result<(), Error> {
        for name in names {
            let path = target.join(name);
            if self.copy_if_changed(&source.join(name), &path)? == WriteOutcome::Replaced {
                installed.replaced.push(path.clone());
            }
            match self.same.get(&path) {
                Some((_, fingerprints)) => installed.good.push((path, *fingerprints)),
                None => installed.unsettled.push(path),
            }
        }
        self.verify_plugin(&target.join(PLUGIN))
    }

    /// Whether a runtime finds a working plugin, be it another version than the image's: at least one directory has it, and no
    /// writable directory lacks it.
    pub(crate) fn has_working_plugin(&mut self, settings: &InstallerSettings) -> bool {
        let works = |target: &&PathBuf| self.verify_plugin(&target.join(PLUGIN)).is_ok();
        let (working, lacking): (Vec<_>, Vec<_>) = settings.targets.iter().partition(works);
        !working.is_empty() && lacking.iter().all(|target| hostfs::check_writable(target).is_err())
    }

    /// Whether a verified file has been touched since.
    pub(crate) fn are_touched(&self) -> bool {
        self.same.iter().any(|(path, (_, installed))| !installed.is_current(path))
    }

    fn copy_if_changed(&mut self, source: &Path, path: &Path) -> Result<WriteOutcome, Error> {
        if let (Some(was), Some(from), Some(to)) =
            (self.same.get(path), source_fingerprint(source)?, hostfs::fingerprint(path)?)
            && *was == (from, to)
        {
            return Ok(WriteOutcome::Unchanged);
        }
        self.same.remove(path);
        let mut written = WriteOutcome::Unchanged;
        for _ in 0..TRIES {
            // Taken before the comparison, so that a later change is detected.
            let fingerprints = (source_fingerprint(source)?, hostfs::fingerprint(path)?);
            if hostfs::copy(source, path)? == WriteOutcome::Replaced {
                written = WriteOutcome::Replaced;
                continue;
            }
            if let (Some(from), Some(to)) = fingerprints {
                self.same.insert(path.to_owned(), (from, to));
            }
            break;
        }
        Ok(written)
    }

    fn verify_plugin(&mut self, plugin: &Path) -> Result<(), Error> {
        let gone = || Error::Broken { path: plugin.to_owned(), why: "it has vanished again".to_owned() };
        let now = hostfs::fingerprint(plugin)?.ok_or_else(gone)?;
        if self.runs.get(plugin) != Some(&now) {
            verify::check_plugin(plugin)?;
            self.runs.insert(plugin.to_owned(), now);
        }
        Ok(())
    }
}

/// Returns the fingerprint of the link's target if the source directory has a link.
fn source_fingerprint(source: &Path) -> Result<Option<FileFingerprint>, Error> {
    let real = fs::canonicalize(source).unwrap_or_else(|_| source.to_owned());
    Ok(hostfs::fingerprint(&real)?)
}

/// Returns the names of the image's files. A link counts as its target.
pub(crate) fn source_file_names(source: &Path) -> Result<Vec<OsString>, Error> {
    let mut names = hostfs::list(source)?;
    names.retain(|name| fs::metadata(source.join(name)).is_ok_and(|found| found.is_file()));
    if !names.iter().any(|name| name == PLUGIN) {
        return Err(Error::NoPlugin(source.to_owned()));
    }
    Ok(names)
}
