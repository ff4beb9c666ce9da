//! Decides when each broken pod is handled: one at a time, at a limited rate, and again after a failure.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use kube_api::ListEvent;
use model::PodName;
use retry::{Attempts, Backoff};

use crate::{criteria::RepairCriteria, observed_pod::ObservedPod};

/// Interval between two pods: at most ten a second, however many fail at the same time.
const PACE: Duration = Duration::from_millis(100);
/// Delays after a failed attempt: the first, and the maximum.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(300);
const RETRY: Backoff = Backoff::new(FIRST_RETRY, LAST_RETRY);
/// Maximum delay of a pod that had changed when it was handled; it has its own back-off.
const LAST_OUTDATED: Duration = Duration::from_secs(30);
const OUTDATED: Backoff = Backoff::new(FIRST_RETRY, LAST_OUTDATED);
/// Delays of the next attempt for a pod that was handled and is still broken, because its rules may have been removed
/// again.
const FIRST_RECHECK: Duration = Duration::from_secs(60);
const LAST_RECHECK: Duration = Duration::from_secs(600);
const RECHECK: Backoff = Backoff::new(FIRST_RECHECK, LAST_RECHECK);

/// A broken pod that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairTask {
    /// The pod as last observed.
    pub pod: ObservedPod,
    /// The signs that it is broken, as a clause.
    pub breakage: String,
    /// Whether an earlier attempt was successful or skipped: this one is reported only if its result differs.
    pub is_recheck: bool,
}

/// Result of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepairOutcome {
    /// The pod should recover, or is being deleted.
    Done,
    /// Nothing can, or has to, be done for the pod.
    Skipped,
    /// The attempt failed; another one follows.
    Failed,
    /// The pod has changed since it was observed: another attempt follows soon, with its state by then.
    Outdated,
    /// The pod no longer exists.
    Gone,
}

#[derive(Debug)]
struct BrokenPod {
    pod: ObservedPod,
    breakage: String,
    due: Instant,
    failures: Attempts,
    outdated: Attempts,
    rechecks: Attempts,
    handled: bool,
}

/// The broken pods of the node. Input is events and time, output is tasks.
#[derive(Debug)]
pub struct RepairQueue {
    criteria: RepairCriteria,
    broken: BTreeMap<PodName, BrokenPod>,
    /// No task is due before this time.
    next: Instant,
}

impl RepairQueue {
    /// Creates an empty queue.
    pub fn new(criteria: RepairCriteria, now: Instant) -> RepairQueue {
        RepairQueue { criteria, broken: BTreeMap::new(), next: now }
    }

    /// Applies an event of the API server.
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
                // Another pod may already have its name.
                if self.broken.get(&pod.name).is_some_and(|known| known.pod.uid == pod.uid) {
                    self.broken.remove(&pod.name);
                }
            }
        }
    }

    fn update_pod(&mut self, pod: ObservedPod, known: Option<BrokenPod>, now: Instant) {
        let Some(breakage) = self.criteria.find_breakage(&pod) else { return };
        let entry = match known.filter(|known| known.pod.uid == pod.uid) {
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

    /// Returns when the next task is due; `None`: no pod is broken.
    pub fn next_due(&self) -> Option<Instant> {
        self.broken.values().map(|broken| broken.due).min().map(|due| due.max(self.next))
    }

    /// Returns the task that is due; of several, the one that has waited longest. [`RepairQueue::finish_task`] must
    /// follow.
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

    /// Makes no task due before `until`.
    pub fn pause_until(&mut self, until: Instant) {
        self.next = until;
    }

    /// Records the result of a task.
    pub fn finish_task(&mut self, task: &RepairTask, outcome: RepairOutcome, now: Instant) {
        let name = &task.pod.name;
        let Some(broken) = self.broken.get_mut(name).filter(|broken| broken.pod.uid == task.pod.uid) else {
            return; // the pod has recovered, or another pod has its name
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

    /// Returns the number of broken pods.
    pub fn len(&self) -> usize {
        self.broken.len()
    }

    /// Returns whether no pod is broken.
    pub fn is_empty(&self) -> bool {
        self.broken.is_empty()
    }
}

#[cfg(test)]
mod tests;
