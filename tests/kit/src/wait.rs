//! Polling for a state without notification: of another process, of the kernel or of an API server.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Time limit for everything that depends on this machine alone.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// Minimum and maximum interval between two polls: see [`pause_after`].
const PAUSES: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(100)];

/// Result of a poll: whether the condition holds yet, or the value found.
pub trait Condition {
    /// Value known when it holds.
    type Found;

    /// `None` means not yet.
    fn found(self) -> Option<Self::Found>;
}

impl Condition for bool {
    type Found = ();

    fn found(self) -> Option<()> {
        self.then_some(())
    }
}

impl<T> Condition for Option<T> {
    type Found = T;

    fn found(self) -> Self {
        self
    }
}

/// Waits until a condition holds, and returns the value found. `what` describes the condition; [`std::fmt::from_fn`] defers a
/// description until the failure, such as a log.
///
/// # Panics
/// If it does not hold within 20 seconds; the message is the description.
#[track_caller]
pub fn until<C: Condition>(what: impl Display, ask: impl FnMut() -> C) -> C::Found {
    until_within(LIMIT, what, ask)
}

/// [`until`] with its own limit.
///
/// # Panics
/// If it does not hold within `limit`; the message is the description.
#[track_caller]
pub fn until_within<C: Condition>(limit: Duration, what: impl Display, ask: impl FnMut() -> C) -> C::Found {
    match found_within(limit, ask) {
        Some(found) => found,
        None => panic!("not within {limit:?}: {what}"),
    }
}

/// As [`until_within`], but returns `None` if the condition does not hold within `limit`, which the caller interprets.
pub fn found_within<C: Condition>(limit: Duration, mut ask: impl FnMut() -> C) -> Option<C::Found> {
    let (began, mut is_over) = (Instant::now(), false);
    loop {
        let asked = Instant::now();
        if let Some(found) = ask().found() {
            return Some(found);
        }
        if is_over {
            return None;
        }
        // The last poll begins after the limit: this process may have been stopped for a while after the one before.
        is_over = began.elapsed() >= limit;
        if !is_over {
            thread::sleep(pause_after(began.elapsed(), asked.elapsed())); // between two polls: nothing notifies
        }
    }
}

/// Asserts that a condition holds throughout `period`, which is long enough to see what must not happen.
///
/// # Panics
/// As soon as it does not hold; the message is the description.
#[track_caller]
pub fn holds_for(period: Duration, what: impl Display, mut ask: impl FnMut() -> bool) {
    let broken = found_within(period, || !ask());
    assert!(broken.is_none(), "it does not hold for {period:?}: {what}");
}

/// Waits until a value has not changed for `quiet`, as a sign that what changes it has ended; returns the value.
///
/// # Panics
/// If it still changes after 20 seconds; the message is the description.
#[track_caller]
pub fn until_steady<T: PartialEq>(quiet: Duration, what: impl Display, mut ask: impl FnMut() -> T) -> T {
    let (mut last, mut since) = (ask(), Instant::now());
    until(what, || {
        let asked = Instant::now();
        let now = ask();
        if now != last {
            (last, since) = (now, Instant::now());
        }
        asked.saturating_duration_since(since) >= quiet
    });
    last
}

/// Interval after a poll, `waited` since the first one and `took` for the last: a sixteenth of the wait, so that no test takes
/// longer by more than that, and three times the poll, which leaves the CPUs to the processes that are waited for.
fn pause_after(waited: Duration, took: Duration) -> Duration {
    let [shortest, longest] = PAUSES;
    (waited / 16).max(took * 3).clamp(shortest, longest)
}

/// Sets a flag on drop, also when a test fails, so that the threads that poll it end.
#[derive(Debug)]
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
