//! Queue of jobs that wait for workers, and the number of running ones.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Time after which a job counts as slow.
pub(super) const SLOW: Duration = Duration::from_secs(2);

/// A lane of the queue; earlier lanes precede later ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum JobLane {
    /// Jobs that an ADD waits for, which some of the workers serve exclusively.
    Urgent,
    /// All other jobs.
    Other,
    /// Jobs of pods whose last job was slow: they leave half of the workers for other pods.
    Slow,
}

/// A queue of jobs in lanes.
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
    waiting: BTreeMap<JobLane, VecDeque<J>>,
    /// Start and lane of running jobs, by their number.
    running: BTreeMap<u64, (Instant, JobLane)>,
    last: u64,
    ended: bool,
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
        let (waiting, running) = (BTreeMap::new(), BTreeMap::new());
        let state = QueueState { waiting, running, last: 0, ended: false };
        JobQueue { state: Mutex::new(state), more: Condvar::new(), idle: Condvar::new(), others }
    }

    fn lock_state(&self) -> MutexGuard<'_, QueueState<J>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a job.
    pub(super) fn push(&self, job: J, lane: JobLane) {
        self.lock_state().waiting.entry(lane).or_default().push_back(job);
        self.more.notify_one();
    }

    /// Waits for a job; `None`: the queue has been stopped.
    pub(super) fn next_job(&self) -> Option<(J, RunningJob<'_, J>)> {
        let mut state = self.lock_state();
        loop {
            if state.ended {
                return None;
            }
            if let Some((job, lane)) = state.take_first(self.others) {
                state.last += 1;
                let number = state.last;
                let _ = state.running.insert(number, (Instant::now(), lane));
                return Some((job, RunningJob { queue: self, number }));
            }
            state = self.more.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Returns the number of jobs that have been running for longer than `time`.
    pub(super) fn longer_than(&self, time: Duration) -> usize {
        self.lock_state().running.values().filter(|(began, _)| began.elapsed() > time).count()
    }

    /// Drops waiting jobs, and waits for running ones.
    pub(super) fn drain(&self) {
        let mut state = self.lock_state();
        state.waiting.clear();
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

impl<J> QueueState<J> {
    /// Takes the first job that may run now. `others`: as in [`JobQueue::new`].
    fn take_first(&mut self, others: usize) -> Option<(J, JobLane)> {
        for (lane, jobs) in &mut self.waiting {
            let most = match lane {
                JobLane::Urgent => usize::MAX,
                JobLane::Other => others,
                JobLane::Slow => others.div_ceil(2),
            };
            if self.running.values().filter(|(_, running)| running >= lane).count() >= most {
                return None;
            }
            if let Some(job) = jobs.pop_front() {
                return Some((job, *lane));
            }
        }
        None
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
        for (job, lane) in
            [(1, JobLane::Slow), (2, JobLane::Urgent), (3, JobLane::Other), (4, JobLane::Urgent)]
        {
            queue.push(job, lane);
        }
        let taken: Vec<i32> = (0..4).map(|_| queue.next_job().unwrap().0).collect();
        assert_eq!(taken, [2, 4, 3, 1]);
        queue.stop_workers();
        assert!(queue.next_job().is_none());
    }

    #[test]
    fn slow_jobs_leave_half_of_the_workers_for_others() {
        let queue = JobQueue::new(4);
        (0..4).for_each(|_| queue.push("slow", JobLane::Slow));
        let slow = [(); 2].map(|()| queue.next_job().unwrap());
        queue.push("other", JobLane::Other);
        let (job, _other) = queue.next_job().unwrap();
        assert_eq!((slow[1].0, job), ("slow", "other"));
        assert!(queue.lock_state().take_first(4).is_none(), "two of them run");
        drop(slow);
        assert_eq!(queue.next_job().unwrap().0, "slow");
    }

    #[test]
    fn settled_means_that_nothing_runs_and_nothing_waits() {
        let queue = JobQueue::new(4);
        queue.push("runs", JobLane::Other);
        let (_, running) = queue.next_job().unwrap();
        queue.push("waits", JobLane::Other);
        queue.push("waits, too", JobLane::Urgent);
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
        queue.push("later", JobLane::Other);
        assert_eq!(queue.next_job().unwrap().0, "later");
    }

    #[test]
    fn whatever_takes_long_leaves_workers_for_what_is_urgent() {
        let queue = JobQueue::new(1);
        queue.push("long", JobLane::Other);
        queue.push("waits", JobLane::Other);
        let (_, long) = queue.next_job().unwrap();
        thread::scope(|scope| {
            let (say, taken) = mpsc::channel();
            let worker = &queue;
            let _worker = scope.spawn(move || {
                while let Some((job, _running)) = worker.next_job() {
                    say.send(job).unwrap();
                }
            });
            queue.push("urgent", JobLane::Urgent);
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
        queue.push((), JobLane::Other);
        let panics = || {
            let _taken = queue.next_job().unwrap();
            panic!("as it should");
        };
        thread::scope(|scope| scope.spawn(panics).join()).unwrap_err();
        queue.drain();
    }
}
