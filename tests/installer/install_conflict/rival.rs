//! A program that undoes the installer's changes.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::install_heal::fixture::HealFixture;

/// Far longer than any conflict here.
const LIMIT: Duration = Duration::from_secs(60);

/// Undoes changes until it is stopped or dropped.
pub(crate) struct Rival {
    stop: Arc<AtomicBool>,
    undone: Arc<Mutex<Vec<Instant>>>,
    thread: Option<JoinHandle<()>>,
}

impl Rival {
    /// Polls every millisecond for a change to undo.
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

    /// Times at which it undid a change.
    fn undone(&self) -> Vec<Instant> {
        self.undone.lock().unwrap().clone()
    }

    /// Observes until the intervals between undone changes suffice, and returns them: `/readyz` may return 200 only if the
    /// installation was complete at some moment between two polls, which is so if the rival has undone a change meanwhile.
    pub(crate) fn watch(
        &self,
        fixture: &HealFixture,
        suffice: impl Fn(&[Duration]) -> bool,
    ) -> Vec<Duration> {
        let (start, mut samples) = (Instant::now(), 0);
        loop {
            let gaps = gaps(&self.undone());
            if suffice(&gaps) {
                println!("{samples} samples during a conflict, and no false answer");
                return gaps;
            }
            assert!(start.elapsed() < LIMIT, "{gaps:?}\n{}", fixture.daemon.log());
            let (count, before) = (self.undone().len(), fixture.files.broken());
            let ready = fixture.daemon.is_ready();
            let (after, now) = (fixture.files.broken(), self.undone().len());
            if let (true, true, Some(before), Some(after)) = (ready, count == now, &before, &after) {
                panic!("/readyz says 200, but {before}, and then still {after}:\n{}", fixture.daemon.log());
            }
            samples += 1;
        }
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

/// Intervals between consecutive moments.
fn gaps(moments: &[Instant]) -> Vec<Duration> {
    moments.windows(2).map(|pair| pair[1] - pair[0]).collect()
}
