//! A program that undoes what we do.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::install_heal::fixture::HealFixture;

/// Undoes, until it is stopped or dropped.
pub(crate) struct Rival {
    stop: Arc<AtomicBool>,
    undone: Arc<Mutex<Vec<Instant>>>,
    thread: Option<JoinHandle<()>>,
}

impl Rival {
    /// Looks every millisecond whether there is something to undo.
    pub(crate) fn start(
        is_there: impl Fn() -> bool + Send + 'static,
        undo: impl Fn() + Send + 'static,
    ) -> Self {
        let (stop, undone) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let (stopped, note) = (Arc::clone(&stop), Arc::clone(&undone));
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                if is_there() {
                    note.lock().unwrap().push(Instant::now()); // before it, see `watch`
                    undo();
                }
                thread::sleep(Duration::from_millis(1)); // it polls
            }
        });
        Self { stop, undone, thread: Some(thread) }
    }

    /// When it had to undo something.
    pub(crate) fn undone(&self) -> Vec<Instant> {
        self.undone.lock().unwrap().clone()
    }

    /// Looks on for a while: `/readyz` may only say 200 when all was well at some time between two looks, which is
    /// so when the rival has found something to undo meanwhile.
    pub(crate) fn watch(&self, fixture: &HealFixture, time: Duration) {
        let (end, mut samples) = (Instant::now() + time, 0);
        while Instant::now() < end {
            let (count, before) = (self.undone().len(), fixture.files.broken());
            let ready = fixture.daemon.is_ready();
            let (after, now) = (fixture.files.broken(), self.undone().len());
            if let (true, true, Some(before), Some(after)) = (ready, count == now, &before, &after) {
                panic!("/readyz says 200, but {before}, and then still {after}:\n{}", fixture.daemon.log());
            }
            samples += 1;
        }
        println!("{samples} samples during a conflict, and no false answer");
    }

    pub(crate) fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        if let Some(Err(panic)) = ended
            && !thread::panicking()
        {
            resume_unwind(panic);
        }
    }
}

impl Drop for Rival {
    fn drop(&mut self) {
        self.end();
    }
}

/// The times between what comes one after the other.
pub(crate) fn gaps(moments: &[Instant]) -> Vec<Duration> {
    moments.windows(2).map(|pair| pair[1] - pair[0]).collect()
}
