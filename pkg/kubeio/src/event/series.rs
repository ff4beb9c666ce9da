//! Which Events are new, which have been told already, and which would be too many.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::{EventSubject, KubeEvent};

/// The API server keeps Events for an hour after their last change; after that the next one is new.
const WINDOW: Duration = Duration::from_secs(3600);
/// How many Events are remembered.
const REMEMBERED: usize = 256;
/// How many may be told at once, and how often one more afterwards. A node in trouble has hundreds to tell, and so have
/// all other nodes.
const BURST: u32 = 20;
const EVERY: Duration = Duration::from_secs(10);

/// What makes two Events the same.
pub(super) type EventKey = (EventSubject, KubeEvent);

/// What is to be done with an Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EventVerdict {
    /// Create it.
    New,
    /// It has happened so many times: count the one of this name.
    Again {
        /// Of the Event that was created.
        name: String,
        /// With this time.
        count: u32,
    },
    /// Say nothing; a repetition is counted, and told with the next one.
    Suppressed,
}

#[derive(Debug)]
struct SentEvent {
    name: String,
    count: u32,
    last: Instant,
}

/// What was told. Its memory and its rate are bounded, whatever happens on the node.
#[derive(Debug)]
pub(super) struct EventSeries {
    told: BTreeMap<EventKey, SentEvent>,
    tokens: u32,
    refilled: Instant,
}

impl EventSeries {
    pub(super) fn new(now: Instant) -> EventSeries {
        EventSeries { told: BTreeMap::new(), tokens: BURST, refilled: now }
    }

    /// What is to be done with an Event that happens now.
    pub(super) fn happened(&mut self, key: &EventKey, now: Instant) -> EventVerdict {
        let may = self.take(now);
        let Some(told) = self.told.get_mut(key) else {
            return if may { EventVerdict::New } else { EventVerdict::Suppressed };
        };
        if now.saturating_duration_since(told.last) >= WINDOW {
            self.told.remove(key);
            return if may { EventVerdict::New } else { EventVerdict::Suppressed };
        }
        told.count = told.count.saturating_add(1);
        if !may {
            return EventVerdict::Suppressed;
        }
        told.last = now;
        EventVerdict::Again { name: told.name.clone(), count: told.count }
    }

    /// An Event was created.
    pub(super) fn created(&mut self, key: EventKey, name: String, now: Instant) {
        if self.told.len() >= REMEMBERED && !self.told.contains_key(&key) {
            let oldest = self.told.iter().min_by_key(|(_, told)| told.last).map(|(key, _)| key.clone());
            oldest.map(|key| self.told.remove(&key));
        }
        self.told.insert(key, SentEvent { name, count: 1, last: now });
    }

    /// Whether one more may be told.
    fn take(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.refilled).as_secs() / EVERY.as_secs();
        let passed = u32::try_from(passed).unwrap_or(u32::MAX);
        self.refilled += EVERY.saturating_mul(passed);
        self.tokens = self.tokens.saturating_add(passed).min(BURST);
        let may = self.tokens > 0;
        self.tokens = self.tokens.saturating_sub(1);
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EventLevel;

    fn key(node: &str, message: &str) -> EventKey {
        let event = KubeEvent { level: EventLevel::Warning, reason: "Conflict", message: message.to_owned() };
        (EventSubject::Node(node.to_owned()), event)
    }

    fn again(count: u32) -> EventVerdict {
        EventVerdict::Again { name: "first".to_owned(), count }
    }

    #[test]
    fn what_happens_again_within_an_hour_is_counted_and_not_told_anew() {
        let start = Instant::now();
        let mut series = EventSeries::new(start);
        let table = [
            (0, key("n1", "a"), EventVerdict::New),
            (1, key("n1", "a"), again(2)),
            (3_600, key("n1", "a"), again(3)),
            (7_199, key("n1", "a"), again(4)),
            (7_199, key("n1", "b"), EventVerdict::New),
            (7_199, key("n2", "a"), EventVerdict::New),
            (10_799, key("n1", "a"), EventVerdict::New),
            (10_800, key("n1", "a"), again(2)),
        ];
        for (second, key, expected) in table {
            let now = start + Duration::from_secs(second);
            let verdict = series.happened(&key, now);
            assert_eq!(verdict, expected, "{second}: {key:?}");
            if verdict == EventVerdict::New {
                series.created(key, "first".to_owned(), now);
            }
        }
    }

    #[test]
    fn a_flood_is_cut_off_and_one_passes_every_ten_seconds() {
        let start = Instant::now();
        let mut series = EventSeries::new(start);
        let mut told = |second: u64, number: u32| {
            let key = key("n1", &format!("{second}-{number}"));
            series.happened(&key, start + Duration::from_secs(second)) == EventVerdict::New
        };
        let mut round = |second: u64| (0..100).filter(|number| told(second, *number)).count();
        let table =
            [(0, 20), (9, 0), (10, 1), (19, 0), (20, 1), (55, 3), (60, 1), (100_000, 20), (100_009, 0)];
        for (second, expected) in table {
            assert_eq!(round(second), expected, "{second}");
        }
    }

    #[test]
    fn repetitions_of_a_flood_are_counted_with_the_next_that_passes() {
        let start = Instant::now();
        let mut series = EventSeries::new(start);
        assert_eq!(series.happened(&key("n1", "a"), start), EventVerdict::New);
        series.created(key("n1", "a"), "first".to_owned(), start);
        let suppressed = |_: &u32| series.happened(&key("n1", "a"), start) == EventVerdict::Suppressed;
        assert_eq!((0..100).filter(suppressed).count(), 81);
        assert_eq!(series.happened(&key("n1", "a"), start + EVERY), again(102));
    }

    #[test]
    fn no_more_than_so_many_are_remembered_and_the_oldest_go_first() {
        let start = Instant::now();
        let mut series = EventSeries::new(start);
        for number in 0..1000_u64 {
            let now = start + Duration::from_secs(number);
            series.created(key("n1", &number.to_string()), "first".to_owned(), now);
        }
        assert_eq!(series.told.len(), REMEMBERED);
        let now = start + Duration::from_secs(1000);
        assert_eq!(series.happened(&key("n1", "743"), now), EventVerdict::New);
        assert_eq!(series.happened(&key("n1", "744"), now), again(2));
    }
}
