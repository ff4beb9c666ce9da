//! Queue of jobs that wait for workers, and the number of running ones.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// A queue of jobs with an urgent lane, which some of the workers serve exclusively.
#[derive(Debug)]
pub(super) struct JobQueue<J> {
    state: Mutex<QueueState<J>>,
    more: Condvar,
    idle: Condvar,
    /// Maximum number of jobs that are not urgent and run at the same time.
    others: usize,
}

#[derive(Debug)]
struct QueueState<J> {
    urgent: VecDeque<J>,
    other: VecDeque<J>,
    /// Running jobs, by their number.
    running: BTreeMap<u64, JobStart>,
    last: u64,
    ended: bool,
}

/// Start of a running job.
#[derive(Debug)]
struct JobStart {
    began: Instant,
    is_urgent: bool,
}

/// A job that was taken from the queue; counts as running until this is dropped, also by a panic.
#[derive(Debug)]
pub(super) struct RunningJob<'a, J> {
    queue: &'a JobQueue<J>,
    number: u64,
}

impl<J> JobQueue<J> {
    /// Creates an empty queue. `others`: maximum number of jobs that are not urgent and run at the same time, so that
    /// long work in one pod keeps no other pod from starting.
    pub(super) fn new(others: usize) -> JobQueue<J> {
        let (urgent, other) = (VecDeque::new(), VecDeque::new());
        let state = QueueState { urgent, other, running: BTreeMap::new(), last: 0, ended: false };
        JobQueue { state: Mutex::new(state), more: Condvar::new(), idle: Condvar::new(), others }
    }

    fn lock_state(&self) -> MutexGuard<'_, QueueState<J>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a job; urgent jobs precede all others.
    pub(super) fn push(&self, job: J, urgent: bool) {
        let mut state = self.lock_state();
        let lane = if urgent { &mut state.urgent } else { &mut state.other };
        lane.push_back(job);
        drop(state);
        self.more.notify_one();
    }

    /// Waits for a job; `None`: the queue has been stopped.
    pub(super) fn next_job(&self) -> Option<(J, RunningJob<'_, J>)> {
        let mut state = self.lock_state();
        loop {
            if state.ended {
                return None;
            }
            if let Some(job) = state.urgent.pop_front() {
                return Some((job, self.start_job(&mut state, true)));
            }
            let others = state.running.values().filter(|job| !job.is_urgent).count();
            if others < self.others
                && let Some(job) = state.other.pop_front()
            {
                return Some((job, self.start_job(&mut state, false)));
            }
            state = self.more.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn start_job(&self, state: &mut QueueState<J>, is_urgent: bool) -> RunningJob<'_, J> {
        state.last += 1;
        let _ = state.running.insert(state.last, JobStart { began: Instant::now(), is_urgent });
        RunningJob { queue: self, number: state.last }
    }

    /// Returns the number of jobs that have been running for longer than `time`.
    pub(super) fn longer_than(&self, time: Duration) -> usize {
        self.lock_state().running.values().filter(|job| job.began.elapsed() > time).count()
    }

    /// Drops waiting jobs, and waits for running ones.
    pub(super) fn drain(&self) {
        let mut state = self.lock_state();
        state.urgent.clear();
        state.other.clear();
        while !state.running.is_empty() {
            state = self.idle.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Stops handing out jobs to workers.
    pub(super) fn stop_workers(&self) {
        self.lock_state().ended = true;
        self.more.notify_all();
    }
}

impl<J> Drop for RunningJob<'_, J> {
    fn drop(&mut self) {
        let _ = self.queue.lock_state().running.remove(&self.number);
        self.queue.more.notify_one(); // another worker may take a job that had to wait for this one
        self.queue.idle.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::mpsc::{self, RecvTimeoutError},
        thread,
    };

    use super::*;

    #[test]
    fn what_is_urgent_comes_first() {
        let queue = JobQueue::new(4);
        for (job, urgent) in [(1, false), (2, true), (3, false), (4, true)] {
            queue.push(job, urgent);
        }
        let taken: Vec<i32> = (0..4).map(|_| queue.next_job().unwrap().0).collect();
        assert_eq!(taken, [2, 4, 1, 3]);
        queue.stop_workers();
        assert!(queue.next_job().is_none());
    }

    #[test]
    fn settled_means_that_nothing_runs_and_nothing_waits() {
        let queue = JobQueue::new(4);
        queue.push("runs", false);
        let (_, running) = queue.next_job().unwrap();
        queue.push("waits", false);
        queue.push("waits, too", true);
        assert_eq!((queue.longer_than(Duration::ZERO), queue.longer_than(Duration::from_secs(60))), (1, 0));
        let (say, settled) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                queue.drain();
                say.send(()).unwrap();
            });
            // Long enough to see a wrong result.
            let early = settled.recv_timeout(Duration::from_millis(100));
            assert_eq!(early, Err(RecvTimeoutError::Timeout));
            drop(running);
            settled.recv_timeout(Duration::from_secs(10)).unwrap();
        });
        queue.push("later", false);
        assert_eq!(queue.next_job().unwrap().0, "later");
    }

    #[test]
    fn whatever_takes_long_leaves_workers_for_what_is_urgent() {
        let queue = JobQueue::new(1);
        queue.push("long", false);
        queue.push("waits", false);
        let (_, long) = queue.next_job().unwrap();
        thread::scope(|scope| {
            let (say, taken) = mpsc::channel();
            let worker = &queue;
            let _worker = scope.spawn(move || {
                while let Some((job, _running)) = worker.next_job() {
                    say.send(job).unwrap();
                }
            });
            queue.push("urgent", true);
            assert_eq!(taken.recv_timeout(Duration::from_secs(10)), Ok("urgent"));
            // Long enough to see a wrong result.
            assert_eq!(taken.recv_timeout(Duration::from_millis(100)), Err(RecvTimeoutError::Timeout));
            drop(long);
            assert_eq!(taken.recv_timeout(Duration::from_secs(10)), Ok("waits"));
            queue.stop_workers();
        });
    }

    #[test]
    fn a_job_that_panics_is_over() {
        let queue = JobQueue::new(4);
        queue.push((), false);
        let panics = || {
            let _taken = queue.next_job().unwrap();
            panic!("as it should");
        };
        thread::scope(|scope| scope.spawn(panics).join()).unwrap_err();
        queue.drain();
    }
}
