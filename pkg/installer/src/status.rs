//! Status of the installation, for queries from any thread at any time.

use std::{
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use hostfs::FileFingerprint;
use model::Reason;

/// The loop iterates at least every ten seconds; a pass may have to wait for a slow disk.
const LIVE: Duration = Duration::from_secs(60);

/// State of the installation and of the installer's loop.
#[derive(Debug)]
pub struct InstallerStatus(Mutex<InstallerState>);

#[derive(Debug)]
struct InstallerState {
    /// Reason why the plugin is not installed; `None`: it is installed.
    missing: Option<String>,
    /// Files on which this depends, with their fingerprints at the last pass.
    witnesses: Vec<(PathBuf, FileFingerprint)>,
    active: Instant,
    /// Latest template from the cluster.
    template: Option<String>,
    /// Namespaces excluded by the plugin's entry; `None`: no entry yet.
    excluded_namespaces: Option<Vec<String>>,
}

impl Default for InstallerStatus {
    fn default() -> InstallerStatus {
        let missing = Some("the first pass of the installer has not ended yet".to_owned());
        InstallerStatus(Mutex::new(InstallerState {
            missing,
            witnesses: Vec::new(),
            active: Instant::now(),
            template: None,
            excluded_namespaces: None,
        }))
    }
}

impl InstallerStatus {
    /// Checks whether the plugin is installed, runs, and is called last by the runtime, as far as fingerprints show: a file changed
    /// since the last pass counts as drifted until the next one.
    ///
    /// # Errors
    /// The plugin is not installed, with the reason as a message.
    pub fn check_ready(&self) -> Result<(), Reason> {
        let state = self.lock_state();
        if let Some(why) = &state.missing {
            return Err(why.as_str().into());
        }
        match state.witnesses.iter().find(|(path, observed)| !observed.is_current(path)) {
            Some((path, _)) => Err(format!("{} has changed and is being checked", path.display()).into()),
            None => Ok(()),
        }
    }

    /// Checks whether the installer's loop makes progress.
    ///
    /// # Errors
    /// The loop is stuck, with the reason as a message.
    pub fn check_live(&self) -> Result<(), Reason> {
        let since = self.lock_state().active.elapsed();
        if since <= LIVE {
            return Ok(());
        }
        Err(format!("the installer has made no progress for {} s", since.as_secs()).into())
    }

    pub(crate) fn note_pass(&self) {
        self.lock_state().active = Instant::now();
    }

    /// Returns the latest template from the cluster.
    pub fn template(&self) -> Option<String> {
        self.lock_state().template.clone()
    }

    /// Returns the namespaces excluded by the plugin's entry, from the latest valid template; `None`: no template has been valid
    /// yet.
    pub fn excluded_namespaces(&self) -> Option<Vec<String>> {
        self.lock_state().excluded_namespaces.clone()
    }

    pub(crate) fn set_excluded_namespaces(&self, namespaces: Vec<String>) {
        self.lock_state().excluded_namespaces = Some(namespaces);
    }

    pub(crate) fn set_template(&self, template: String) {
        self.lock_state().template = Some(template);
    }

    pub(crate) fn set_installed(&self, witnesses: Vec<(PathBuf, FileFingerprint)>) {
        let mut state = self.lock_state();
        state.missing = None;
        state.witnesses = witnesses;
    }

    pub(crate) fn set_missing(&self, why: String) {
        self.lock_state().missing = Some(why);
    }

    /// Locks the state, even after a panic of another holder, which cannot leave it inconsistent: every change is one assignment or
    /// two.
    fn lock_state(&self) -> MutexGuard<'_, InstallerState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
