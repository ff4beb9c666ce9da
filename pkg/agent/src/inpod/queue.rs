//! What waits for workers, and how many of them are at work.

use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
};

/// A queue of jobs with a fast lane.
#[derive(Debug)]
pub(super) struct Queue<J> {
    state: Mutex<State<J>>,
    more: Condvar,
    idle: Condvar,
}

#[derive(Debug)]
struct State<J> {
    urgent: VecDeque<J>,
    other: VecDeque<J>,
    running: usize,
    ended: bool,
}

/// A job that was taken; it counts as running until this is dropped, also by a panic.
#[derive(Debug)]
pub(super) struct Running<'a, J>(&'a Queue<J>);

impl<J> Default for Queue<J> {
    fn default() -> Queue<J> {
        let state = State { urgent: VecDeque::new(), other: VecDeque::new(), running: 0, ended: false };
        Queue { state: Mutex::new(state), more: Condvar::new(), idle: Condvar::new() }
    }
}

impl<J> Queue<J> {
    fn lock(&self) -> MutexGuard<'_, State<J>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a job; what is urgent goes before all else.
    pub(super) fn push(&self, job: J, urgent: bool) {
        let mut state = self.lock();
        let lane = if urgent { &mut state.urgent } else { &mut state.other };
        lane.push_back(job);
        drop(state);
        self.more.notify_one();
    }

    /// Waits for a job; none: there will be no more.
    pub(super) fn next(&self) -> Option<(J, Running<'_, J>)> {
        let mut state = self.lock();
        loop {
            if state.ended {
                return None;
            }
            let job = state.urgent.pop_front();
            if let Some(job) = job.or_else(|| state.other.pop_front()) {
                state.running += 1;
                return Some((job, Running(self)));
            }
            state = self.more.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Drops what was not begun, and waits for what was.
    pub(super) fn settle(&self) {
        let mut state = self.lock();
        state.urgent.clear();
        state.other.clear();
        while state.running > 0 {
            state = self.idle.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Nobody gets a job any more.
    pub(super) fn end(&self) {
        self.lock().ended = true;
        self.more.notify_all();
    }
}

impl<J> Drop for Running<'_, J> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.running = state.running.saturating_sub(1);
        drop(state);
        self.0.idle.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::mpsc::{self, RecvTimeoutError},
        thread,
        time::Duration,
    };

    use super::*;

    #[test]
    fn what_is_urgent_comes_first() {
        let queue = Queue::default();
        for (job, urgent) in [(1, false), (2, true), (3, false), (4, true)] {
            queue.push(job, urgent);
        }
        let taken: Vec<i32> = (0..4).map(|_| queue.next().unwrap().0).collect();
        assert_eq!(taken, [2, 4, 1, 3]);
        queue.end();
        assert!(queue.next().is_none());
    }

    #[test]
    fn settled_means_that_nothing_runs_and_nothing_waits() {
        let queue = Queue::default();
        queue.push("runs", false);
        let (_, running) = queue.next().unwrap();
        queue.push("waits", false);
        queue.push("waits, too", true);
        let (say, settled) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                queue.settle();
                say.send(()).unwrap();
            });
            // Long enough for what must not happen.
            let early = settled.recv_timeout(Duration::from_millis(100));
            assert_eq!(early, Err(RecvTimeoutError::Timeout));
            drop(running);
            settled.recv_timeout(Duration::from_secs(10)).unwrap();
        });
        queue.push("later", false);
        assert_eq!(queue.next().unwrap().0, "later");
    }

    #[test]
    fn a_job_that_panics_is_over() {
        let queue = Queue::default();
        queue.push((), false);
        let panics = || {
            let _taken = queue.next().unwrap();
            panic!("as it should");
        };
        thread::scope(|scope| scope.spawn(panics).join()).unwrap_err();
        queue.settle();
    }
}
