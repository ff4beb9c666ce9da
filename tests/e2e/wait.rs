//! Waiting for conditions, never longer than was said.

use std::thread;
use std::time::{Duration, Instant};

const STEP: Duration = Duration::from_millis(50);

/// Asks until there is an answer.
pub(crate) fn until<T>(limit: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(found) = ask() {
            return Some(found);
        }
        if Instant::now() > deadline {
            return None;
        }
        thread::sleep(STEP);
    }
}
