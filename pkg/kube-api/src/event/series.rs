//! Detection of Events that repeat a published one.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use model::Notice;

use super::{EventObject, queue::most_crowded};

/// Time for which the API server keeps an Event after its last change; the next one is a new Event.
const WINDOW: Duration = Duration::from_secs(3600);
/// Number of Events remembered.
const REMEMBERED: usize = 256;

/// Key of an Event: Events with equal keys repeat each other.
type EventKey = (EventObject, Notice);

#[derive(Debug)]
struct SentEvent {
    name: String,
    count: u32,
    last: Instant,
}

/// Published Events that are remembered.
#[derive(Debug, Default)]
pub(super) struct EventSeries(BTreeMap<EventKey, SentEvent>);

impl EventSeries {
    /// Returns the published Event that this one repeats, by its name, and its new count; `None`: this one is new.
    pub(super) fn find_published(&self, key: &EventKey, times: u32, now: Instant) -> Option<(String, u32)> {
        let sent = self.0.get(key).filter(|sent| now.saturating_duration_since(sent.last) < WINDOW)?;
        Some((sent.name.clone(), sent.count.saturating_add(times)))
    }

    /// Records that an Event was published under this name, with this count.
    pub(super) fn record_published(&mut self, key: EventKey, name: String, count: u32, now: Instant) {
        if self.0.len() >= REMEMBERED && !self.0.contains_key(&key) {
            self.forget_one();
        }
        self.0.insert(key, SentEvent { name, count, last: now });
    }

    /// Forgets the oldest Event of the namespace with the most.
    fn forget_one(&mut self) {
        let namespaces = self.0.keys().map(|(subject, _)| subject.namespace());
        let Some(crowded) = most_crowded(namespaces, |_| 0) else { return };
        let theirs = self.0.iter().filter(|((subject, _), _)| subject.namespace() == crowded);
        let oldest = theirs.min_by_key(|(_, sent)| sent.last).map(|(key, _)| key.clone());
        oldest.map(|key| self.0.remove(&key));
    }
}

#[cfg(test)]
mod tests {
    use model::PodName;

    use super::*;
    use model::{EventLevel, EventSubject};

    fn event(message: &str) -> Notice {
        let message = message.to_owned();
        Notice { about: EventSubject::Node, level: EventLevel::Warning, reason: "Conflict", message }
    }

    fn key(node: &str, message: &str) -> EventKey {
        (EventObject::Node(node.to_owned()), event(message))
    }

    fn again(count: u32) -> Option<(String, u32)> {
        Some(("first".to_owned(), count))
    }

    #[test]
    fn what_happens_again_within_an_hour_is_counted_and_not_told_anew() {
        let start = Instant::now();
        let mut series = EventSeries::default();
        let table = [
            (0, key("n1", "a"), 1, None),
            (1, key("n1", "a"), 1, again(2)),
            (3_600, key("n1", "a"), 5, again(7)),
            (7_199, key("n1", "a"), 1, again(8)),
            (7_199, key("n1", "b"), 3, None),
            (7_199, key("n1", "b"), 1, again(4)),
            (7_199, key("n2", "a"), 1, None),
            (10_799, key("n1", "a"), 1, None),
            (10_800, key("n1", "a"), 1, again(2)),
        ];
        for (second, key, times, expected) in table {
            let now = start + Duration::from_secs(second);
            let published = series.find_published(&key, times, now);
            assert_eq!(published, expected, "{second}: {key:?}");
            let count = published.map_or(times, |(_, count)| count);
            series.record_published(key, "first".to_owned(), count, now);
        }
    }

    #[test]
    fn no_more_than_so_many_are_remembered_and_the_namespace_with_the_most_forgets_its_oldest() {
        let start = Instant::now();
        let mut series = EventSeries::default();
        let pod = |namespace: &str, number: u64| {
            let name = PodName { namespace: namespace.to_owned(), name: number.to_string() };
            (EventObject::Pod { name, uid: number.to_string().as_str().into() }, event("a"))
        };
        series.record_published(pod("calm", 0), "first".to_owned(), 1, start);
        for number in 0..1000_u64 {
            let now = start + Duration::from_secs(number);
            series.record_published(pod("loud", number), "first".to_owned(), 1, now);
        }
        assert_eq!(series.0.len(), REMEMBERED);
        let now = start + Duration::from_secs(1000);
        assert_eq!(series.find_published(&pod("calm", 0), 1, now), again(2));
        assert_eq!(series.find_published(&pod("loud", 744), 1, now), None);
        assert_eq!(series.find_published(&pod("loud", 745), 1, now), again(2));
    }
}
