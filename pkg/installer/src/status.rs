//! Whether the plugin is installed, for whoever asks at any moment, from any thread.

use std::{
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use hostfs::FileFingerprint;
use model::Reason;

/// The loop turns at least every ten seconds; a pass may have to wait for a slow disk.
const LIVE: Duration = Duration::from_secs(60);

/// State of the installation and of the installer's loop.
#[derive(Debug)]
pub struct InstallerStatus(Mutex<InstallerState>);

#[derive(Debug)]
struct InstallerState {
    /// Why the plugin is not installed; `None`: it is.
    missing: Option<String>,
    /// Every file that this rests on, as it was when it was looked at.
    witnesses: Vec<(PathBuf, FileFingerprint)>,
    turned: Instant,
    /// The latest template from the cluster.
    template: Option<String>,
    /// The namespaces that the plugin's entry excludes; `None`: there is no entry yet.
    excluded_namespaces: Option<Vec<String>>,
}

impl Default for InstallerStatus {
    fn default() -> InstallerStatus {
        let missing = Some("the first pass of the installer has not ended yet".to_owned());
        InstallerStatus(Mutex::new(InstallerState {
            missing,
            witnesses: Vec::new(),
            turned: Instant::now(),
            template: None,
            excluded_namespaces: None,
        }))
    }
}

impl InstallerStatus {
    /// Whether the plugin is installed, runs, and is called last by the runtime, as far as a look at the files
    /// tells: one that changed since the installer judged it counts as drifted until it has judged again.
    ///
    /// # Errors
    /// It is not; a sentence.
    pub fn check_ready(&self) -> Result<(), Reason> {
        let state = self.lock_state();
        if let Some(why) = &state.missing {
            return Err(why.as_str().into());
        }
        let touched = |(path, observed): &&(PathBuf, FileFingerprint)| !matches!(hostfs::fingerprint(path), Ok(Some(now)) if now == *observed);
        match state.witnesses.iter().find(touched) {
            Some((path, _)) => Err(format!("{} has changed and is being checked", path.display()).into()),
            None => Ok(()),
        }
    }

    /// Whether the installer's loop turns.
    ///
    /// # Errors
    /// It does not; a sentence.
    pub fn check_live(&self) -> Result<(), Reason> {
        let since = self.lock_state().turned.elapsed();
        if since <= LIVE {
            return Ok(());
        }
        Err(format!("the installer has not moved for {} s", since.as_secs()).into())
    }

    pub(crate) fn note_pass(&self) {
        self.lock_state().turned = Instant::now();
    }

    /// The latest template from the cluster.
    pub fn template(&self) -> Option<String> {
        self.lock_state().template.clone()
    }

    /// The namespaces that the plugin's entry excludes, by the latest template that gave one; `None`: none has yet.
    pub fn excluded_namespaces(&self) -> Option<Vec<String>> {
        self.lock_state().excluded_namespaces.clone()
    }

    pub(crate) fn set_excluded_namespaces(&self, namespaces: Vec<String>) {
        self.lock_state().excluded_namespaces = Some(namespaces);
    }

    pub(crate) fn set_template(&self, template: Option<String>) {
        self.lock_state().template = template;
    }

    pub(crate) fn set_installed(&self, witnesses: Vec<(PathBuf, FileFingerprint)>) {
        let mut state = self.lock_state();
        state.missing = None;
        state.witnesses = witnesses;
    }

    pub(crate) fn set_missing(&self, why: String) {
        self.lock_state().missing = Some(why);
    }

    /// A thread that panicked with the lock held left nothing half done: every change is one assignment or two.
    fn lock_state(&self) -> MutexGuard<'_, InstallerState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
