//! Waits of tests.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use kit::{found_within, until, until_within};

/// A condition that counts its calls.
fn counted<T>(asked: &Cell<u32>, answer: impl Fn(u32) -> T) -> impl FnMut() -> T {
    move || {
        asked.set(asked.get() + 1);
        answer(asked.get())
    }
}

#[test]
fn a_wait_ends_with_the_first_answer_and_returns_what_was_found() {
    let asked = Cell::new(0);
    until("the third time", counted(&asked, |times| times == 3));
    assert_eq!(asked.get(), 3);
    assert_eq!(until("an even one", counted(&asked, |times| (times % 2 == 0).then_some(times))), 4);
}

#[test]
fn what_holds_already_costs_no_time_and_needs_none() {
    let began = Instant::now();
    assert_eq!(found_within(Duration::ZERO, || Some("at once")), Some("at once"));
    assert!(began.elapsed() < Duration::from_secs(1));
}

#[test]
fn a_wait_that_ends_in_vain_panics_with_what_is_known_then() {
    let asked = Cell::new(0);
    let described = std::fmt::from_fn(|f| write!(f, "never, asked {} times", asked.get()));
    let limit = Duration::from_millis(30);
    let began = Instant::now();
    let panic = catch_unwind(AssertUnwindSafe(|| until_within(limit, described, counted(&asked, |_| false))));
    assert!(began.elapsed() >= limit && asked.get() >= 2);
    let message = *panic.unwrap_err().downcast::<String>().unwrap();
    assert_eq!(message, format!("not within 30ms: never, asked {} times", asked.get()));
    assert_eq!(found_within(limit, || None::<()>), None);
}
