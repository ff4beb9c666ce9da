//! Waiting for a state of which nothing notifies: one of another process, of the kernel or of an API server.

use std::fmt::Display;
use std::thread;
use std::time::{Duration, Instant};

/// How long anything here may take that only depends on this machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// Between two looks, within these bounds: see [`pause_after`].
const PAUSES: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(100)];

/// An answer to the question whether something holds yet: yes or no, or what was found.
pub trait Condition {
    /// What is known when it holds.
    type Found;

    /// `None`: not yet.
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

/// Waits until a condition holds, and returns what it found. `what` describes the condition; [`std::fmt::from_fn`] makes a description
/// of what is known in the end, such as a log.
///
/// # Panics
/// It does not hold within 20 seconds; the message is the description.
#[track_caller]
pub fn until<C: Condition>(what: impl Display, ask: impl FnMut() -> C) -> C::Found {
    until_within(LIMIT, what, ask)
}

/// [`until`] with a limit of its own.
///
/// # Panics
/// It does not hold within `limit`; the message is the description.
#[track_caller]
pub fn until_within<C: Condition>(limit: Duration, what: impl Display, ask: impl FnMut() -> C) -> C::Found {
    match found_within(limit, ask) {
        Some(found) => found,
        None => panic!("not within {limit:?}: {what}"),
    }
}

/// The same for those who judge themselves what it means that it did not hold within `limit`: `None`.
pub fn found_within<C: Condition>(limit: Duration, mut ask: impl FnMut() -> C) -> Option<C::Found> {
    let began = Instant::now();
    loop {
        let asked = Instant::now();
        if let Some(found) = ask().found() {
            return Some(found);
        }
        if began.elapsed() >= limit {
            return None;
        }
        thread::sleep(pause_after(began.elapsed(), asked.elapsed())); // between two looks: nothing notifies
    }
}

/// Pause after a look, `waited` since the first one and `took` for the last: a sixteenth of the wait, so that no test takes longer by
/// more than that, and three times the look, so that those who wait leave the processors to those whom they wait for.
fn pause_after(waited: Duration, took: Duration) -> Duration {
    let [shortest, longest] = PAUSES;
    (waited / 16).max(took * 3).clamp(shortest, longest)
}
