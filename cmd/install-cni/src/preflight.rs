//! Check of the node at the agent's start: on its own thread, so that the start does not wait for it.

use std::{
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};
use daemon_settings::DaemonSettings;
use model::Reason;
use report::{Observed, PreflightCheck, Severity, preflight_error};
use tracing::{info, warn};

use crate::supervise::VitalTasks;

/// Interval between checks while capture is impossible: a kernel module may have been loaded meanwhile.
const AGAIN: Duration = Duration::from_secs(60);

/// Results of the checks; empty until they have run.
#[derive(Debug, Default)]
pub(crate) struct PreflightOutcome(Mutex<Vec<PreflightCheck>>);

impl PreflightOutcome {
    /// Returns the results.
    pub(crate) fn checks(&self) -> Vec<PreflightCheck> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns `Ok` unless a check found capture to be impossible.
    ///
    /// # Errors
    /// Capture is impossible, with the reason.
    pub(crate) fn capture_readiness(&self) -> Result<(), Reason> {
        let error = preflight_error(&self.0.lock().unwrap_or_else(PoisonError::into_inner));
        error.map_or(Ok(()), |why| Err(why.into()))
    }
}

/// Checks the node until capture is possible. `ports`: of [`node_status::taken_ports`], before the agent opened its own ports.
///
/// # Errors
/// A thread cannot be started.
pub(crate) fn start_checks(
    settings: &Arc<DaemonSettings>,
    ports: Observed<Vec<String>>,
    vital: VitalTasks,
) -> Result<Arc<PreflightOutcome>> {
    let outcome = Arc::new(PreflightOutcome::default());
    let (settings, ours) = (Arc::clone(settings), Arc::clone(&outcome));
    let check = move || check_until_ready(&settings, &ports, &ours);
    // Without results, capture would count as possible forever.
    let body = move || vital.watch_thread("the check of the node", check);
    thread::Builder::new().name("preflight".to_owned()).spawn(body).context("cannot start a thread")?;
    Ok(outcome)
}

fn check_until_ready(settings: &DaemonSettings, ports: &Observed<Vec<String>>, outcome: &PreflightOutcome) {
    let mut logged = Vec::new();
    loop {
        let checks = node_status::preflight_agent(settings, ports.clone());
        log_findings(&checks, &mut logged);
        *outcome.0.lock().unwrap_or_else(PoisonError::into_inner) = checks;
        info!(target: "install", findings = logged.len(), "node checked");
        if outcome.capture_readiness().is_ok() {
            return;
        }
        thread::sleep(AGAIN);
    }
}

/// Logs each finding once. Undetermined results do not block the agent.
fn log_findings(checks: &[PreflightCheck], logged: &mut Vec<PreflightCheck>) {
    for check in checks.iter().filter(|check| check.severity.is_some()) {
        if logged.contains(check) {
            continue;
        }
        let PreflightCheck { code, message, advice, link, .. } = check;
        if check.severity == Some(Severity::Unknown) {
            info!(target: "install", code, reason = message, "check of the node: unknown");
        } else {
            warn!(target: "install", code, error = message, advice, link, "check of the node failed");
        }
        logged.push(check.clone());
    }
}
