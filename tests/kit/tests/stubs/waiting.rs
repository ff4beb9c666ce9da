//! Waits of tests.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use kit::{found_within, holds_for, until, until_steady, until_within};

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
    let took = (0..5).map(|_| {
        let began = Instant::now();
        assert_eq!(found_within(Duration::ZERO, || Some("at once")), Some("at once"));
        began.elapsed()
    });
    assert!(took.min() < Some(Duration::from_secs(1)));
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

#[test]
fn what_must_hold_is_asked_throughout_and_fails_as_soon_as_it_does_not() {
    let asked = Cell::new(0);
    let period = Duration::from_millis(30);
    let began = Instant::now();
    holds_for(period, "it holds", counted(&asked, |_| true));
    assert!(began.elapsed() >= period && asked.get() >= 2);
    asked.set(0);
    let twice = counted(&asked, |times| times < 3);
    let panic = catch_unwind(AssertUnwindSafe(|| holds_for(Duration::from_secs(20), "only twice", twice)));
    let message = *panic.unwrap_err().downcast::<String>().unwrap();
    assert_eq!((message.as_str(), asked.get()), ("it does not hold for 20s: only twice", 3));
}

#[test]
fn a_value_is_steady_once_it_has_not_changed_for_the_whole_period() {
    let asked = Cell::new(0);
    let last_change = Cell::new(Instant::now());
    let quiet = Duration::from_millis(30);
    let value = until_steady(quiet, "it changes three times", || {
        asked.set(asked.get() + 1);
        if asked.get() <= 3 {
            last_change.set(Instant::now());
        }
        asked.get().min(3)
    });
    assert_eq!(value, 3);
    assert!(last_change.get().elapsed() >= quiet);
}
