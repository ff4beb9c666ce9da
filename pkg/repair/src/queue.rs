//! Decides when each broken pod is handled: one at a time, at a bounded rate, and again after a failure.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use kubeio::ListEvent;
use model::PodName;
use retry::{Attempts, Backoff};

use crate::{
    criteria::{Breakage, RepairCriteria},
    observed_pod::ObservedPod,
};

/// Between two pods: no more than ten a second, however many fail at once.
const PACE: Duration = Duration::from_millis(100);
/// The delay after a failed attempt.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(300);
const RETRY: Backoff = Backoff::new(FIRST_RETRY, LAST_RETRY);
/// A pod that had changed when it was handled is handled again after a delay of its own, which is no longer than this.
const LAST_OUTDATED: Duration = Duration::from_secs(30);
const OUTDATED: Backoff = Backoff::new(FIRST_RETRY, LAST_OUTDATED);
/// A pod that was handled and is still broken is handled again after this time: its rules may have been removed again.
const FIRST_RECHECK: Duration = Duration::from_secs(60);
const LAST_RECHECK: Duration = Duration::from_secs(600);
const RECHECK: Backoff = Backoff::new(FIRST_RECHECK, LAST_RECHECK);

/// A broken pod that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairTask {
    /// As it was last observed.
    pub pod: ObservedPod,
    /// The signs that it is broken.
    pub breakage: Breakage,
    /// An earlier attempt was successful, or was skipped: this one is reported only if its result differs.
    pub is_recheck: bool,
}

/// The result of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepairOutcome {
    /// Done. The pod should recover, or be deleted.
    Done,
    /// Nothing can, or has to, be done for it.
    Skipped,
    /// The attempt failed; another one follows.
    Failed,
    /// The pod has changed since it was observed: another attempt follows soon, with what is observed by then.
    Outdated,
    /// There is no such pod any more.
    Gone,
}

#[derive(Debug)]
struct BrokenPod {
    pod: ObservedPod,
    breakage: Breakage,
    due: Instant,
    failures: Attempts,
    outdated: Attempts,
    rechecks: Attempts,
    handled: bool,
}

/// The broken pods of the node. Events and time go in, tasks come out.
#[derive(Debug)]
pub struct RepairQueue {
    criteria: RepairCriteria,
    broken: BTreeMap<PodName, BrokenPod>,
    /// No task before.
    next: Instant,
}

impl RepairQueue {
    /// Nothing is known yet.
    pub fn new(criteria: RepairCriteria, now: Instant) -> RepairQueue {
        RepairQueue { criteria, broken: BTreeMap::new(), next: now }
    }

    /// Applies what the API server reports.
    pub fn apply_event(&mut self, event: ListEvent<ObservedPod>, now: Instant) {
        match event {
            ListEvent::Reset(pods) => {
                let mut before = std::mem::take(&mut self.broken);
                for pod in pods {
                    let known = before.remove(&pod.name);
                    self.update_pod(pod, known, now);
                }
            }
            ListEvent::Applied(pod) => {
                let known = self.broken.remove(&pod.name);
                self.update_pod(pod, known, now);
            }
            ListEvent::Deleted(pod) => {
                // Another pod may have its name already.
                if self.broken.get(&pod.name).is_some_and(|known| known.pod.uid == pod.uid) {
                    self.broken.remove(&pod.name);
                }
            }
        }
    }

    fn update_pod(&mut self, pod: ObservedPod, known: Option<BrokenPod>, now: Instant) {
        let Some(breakage) = self.criteria.find_breakage(&pod) else { return };
        let known = known.filter(|known| known.pod.uid == pod.uid);
        let entry = match known {
            Some(known) => BrokenPod { pod, breakage, ..known },
            None => BrokenPod {
                pod,
                breakage,
                due: now,
                failures: RETRY.start_attempts(),
                outdated: OUTDATED.start_attempts(),
                rechecks: RECHECK.start_attempts(),
                handled: false,
            },
        };
        self.broken.insert(entry.pod.name.clone(), entry);
    }

    /// When the next task is due; `None`: no pod is broken.
    pub fn next_due(&self) -> Option<Instant> {
        self.broken.values().map(|broken| broken.due).min().map(|due| due.max(self.next))
    }

    /// The task that is due; of several, the one that has waited longest. [`RepairQueue::finish_task`] has to follow.
    pub fn take_due(&mut self, now: Instant) -> Option<RepairTask> {
        if now < self.next {
            return None;
        }
        let first =
            self.broken.values().filter(|broken| broken.due <= now).min_by_key(|broken| broken.due)?;
        self.next = now + PACE;
        Some(RepairTask {
            pod: first.pod.clone(),
            breakage: first.breakage.clone(),
            is_recheck: first.handled,
        })
    }

    /// No task is due before.
    pub fn pause_until(&mut self, until: Instant) {
        self.next = until;
    }

    /// Records the result of a task.
    pub fn finish_task(&mut self, task: &RepairTask, outcome: RepairOutcome, now: Instant) {
        let name = &task.pod.name;
        let Some(broken) = self.broken.get_mut(name).filter(|broken| broken.pod.uid == task.pod.uid) else {
            return; // it has recovered, or another pod has its name
        };
        match outcome {
            RepairOutcome::Gone => drop(self.broken.remove(name)),
            RepairOutcome::Outdated => broken.due = now + broken.outdated.record_failure(),
            RepairOutcome::Failed => broken.due = now + broken.failures.record_failure(),
            RepairOutcome::Done | RepairOutcome::Skipped => {
                broken.failures.record_success();
                broken.outdated.record_success();
                broken.handled = true;
                broken.due = now + broken.rechecks.record_failure();
            }
        }
    }

    /// How many pods are broken.
    pub fn len(&self) -> usize {
        self.broken.len()
    }

    /// No pod is broken.
    pub fn is_empty(&self) -> bool {
        self.broken.is_empty()
    }
}

#[cfg(test)]
mod tests;
