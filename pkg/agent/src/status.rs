//! Status of the agent for other threads, such as probes.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use model::Reason;
use rustix::io::{Errno, fcntl_dupfd_cloexec};

/// Maximum duration of a loop iteration, which normally takes less than a second; one that waits for a tool has that tool's
/// timeout.
const STUCK: Duration = Duration::from_secs(90);
/// Time for which the agent is not ready after an ADD that failed for lack of file descriptors or threads. Several probes see it,
/// and pods that start meanwhile would fail, too.
const SHORT: Duration = Duration::from_secs(30);
/// Minimum number of file descriptors that an ADD needs: for its rules, in both families, and for the tools.
const NEEDED: usize = 8;
/// Reasons for [`AgentStatus::report_shortage`].
pub(crate) const NO_DESCRIPTORS: &str = "the agent has no file descriptors left";
pub(crate) const NO_THREADS: &str = "the agent can start no thread";

#[derive(Debug)]
struct ReconcilerHealth {
    active: Instant,
    /// Whether the workers have stopped making progress.
    standstill: bool,
    problem: Option<String>,
    /// Time of the last ADD that failed because the process has too few of something, and the reason.
    short: Option<(Instant, &'static str)>,
}

/// Status shared by the reconciler, which writes it, and probes, which read it.
#[derive(Debug)]
pub struct AgentStatus(Mutex<ReconcilerHealth>, AtomicU64);

impl Default for AgentStatus {
    fn default() -> AgentStatus {
        let problem = Some("the node has not been observed yet".to_owned());
        AgentStatus(
            Mutex::new(ReconcilerHealth { active: Instant::now(), standstill: false, problem, short: None }),
            AtomicU64::new(0),
        )
    }
}

impl AgentStatus {
    fn lock_health(&self) -> MutexGuard<'_, ReconcilerHealth> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn record_progress(&self) {
        self.lock_health().active = Instant::now();
    }

    /// Sets whether the workers have stopped making progress.
    pub fn set_standstill(&self, standstill: bool) {
        self.lock_health().standstill = standstill;
    }

    pub(crate) fn set_problem(&self, problem: Option<String>) {
        let mut state = self.lock_health();
        if state.problem != problem {
            state.problem = problem;
            self.record_change();
        }
    }

    /// Records a change of the debug state.
    pub fn record_change(&self) {
        self.1.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of changes of the debug state.
    pub fn change_count(&self) -> u64 {
        self.1.load(Ordering::Relaxed)
    }

    /// Checks that the loop has run recently, and that the workers make progress.
    ///
    /// # Errors
    /// The part that is stuck.
    pub fn check_liveness(&self) -> Result<(), Reason> {
        let (since, standstill) = {
            let state = self.lock_health();
            (state.active.elapsed(), state.standstill)
        };
        if standstill {
            return Err("the agent's workers have made no progress for minutes".into());
        }
        if since < STUCK { Ok(()) } else { Err(format!("the agent's loop has not run for {since:?}").into()) }
    }

    /// Records a failed ADD, or a failed connection, if the process has no file descriptors left. `of`: any descriptor that can be
    /// duplicated.
    pub(crate) fn record_failed_request(&self, of: impl AsFd) {
        let spare: Result<Vec<OwnedFd>, Errno> = (0..NEEDED).map(|_| fcntl_dupfd_cloexec(&of, 0)).collect();
        if matches!(spare, Err(Errno::MFILE | Errno::NFILE)) {
            self.report_shortage(NO_DESCRIPTORS);
        }
    }

    /// Records that an ADD failed for this reason, for which the next one will fail, too.
    pub(crate) fn report_shortage(&self, why: &'static str) {
        self.lock_health().short = Some((Instant::now(), why));
        self.record_change();
    }

    /// Checks that the loop and the workers make progress, that the facts are known, that the last reconcile pass succeeded, and
    /// that no ADD has failed recently for lack of file descriptors or threads.
    ///
    /// # Errors
    /// The missing condition.
    pub fn check_readiness(&self) -> Result<(), Reason> {
        self.check_liveness()?;
        let state = self.lock_health();
        if let Some((_, why)) = state.short.filter(|(when, _)| when.elapsed() < SHORT) {
            return Err(format!("an ADD failed less than {} s ago: {why}", SHORT.as_secs()).into());
        }
        state.problem.clone().map_or(Ok(()), |why| Err(why.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_whose_loop_or_workers_are_stuck_is_not_ready_although_its_last_pass_succeeded() {
        let status = AgentStatus::default();
        status.set_problem(None);
        assert_eq!(status.check_readiness(), Ok(()));
        status.set_standstill(true);
        assert_eq!(status.check_readiness(), status.check_liveness());
        status.set_standstill(false);
        let past = Instant::now().checked_sub(STUCK).expect("the machine has run for longer");
        status.lock_health().active = past;
        assert!(status.check_readiness().is_err());
        status.record_progress();
        assert_eq!(status.check_readiness(), Ok(()));
    }
}
