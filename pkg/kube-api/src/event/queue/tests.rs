use model::{EventLevel, PodName};

use super::*;

const REASONS: [&str; 4] = ["RefusedByMesh", "JoinedMesh", "ReleasedFromMesh", "CanBypassMesh"];

struct Desk {
    queue: EventQueue,
    start: Instant,
    now: Instant,
}

fn subject(namespace: &str, name: &str) -> EventSubject {
    let name = PodName { namespace: namespace.to_owned(), name: name.to_owned() };
    EventSubject::Pod { name, uid: "u".into() }
}

/// Reason, whether it reports a bypass, and message.
type Event = (&'static str, bool, String);

fn event(reason: &'static str, is_bypass: bool, message: &str) -> Event {
    (reason, is_bypass, message.to_owned())
}

/// Such as `shop/web JoinedMesh again*2`.
fn text(waiting: &WaitingEvent) -> String {
    let subject = match &waiting.notice.about {
        EventSubject::Node => "node".to_owned(),
        EventSubject::Agent { .. } => "agent".to_owned(),
        EventSubject::Pod { name, .. } => format!("{}/{}", name.namespace, name.name),
    };
    format!("{subject} {} {}*{}", waiting.notice.reason, waiting.notice.message, waiting.times)
}

impl Desk {
    fn new() -> Desk {
        let start = Instant::now();
        Desk { queue: EventQueue::new(start), start, now: start }
    }

    /// Sets the clock to this number of milliseconds since the start.
    fn at(&mut self, milliseconds: u64) {
        self.now = self.start + Duration::from_millis(milliseconds);
    }

    fn add(&mut self, about: EventSubject, (reason, is_bypass, message): Event) -> Option<WaitingEvent> {
        let notice = Notice { about, level: EventLevel::Warning, reason, message };
        self.queue.add(notice, is_bypass, self.now)
    }

    fn pod(&mut self, namespace: &str, name: &str, reason: &'static str) {
        self.add(subject(namespace, name), event(reason, false, ""));
    }

    /// Publishes all Events that the budgets allow now.
    fn published(&mut self) -> Vec<WaitingEvent> {
        std::iter::from_fn(|| match self.queue.next_event(self.now) {
            NextEvent::Publish(waiting) => Some(waiting),
            NextEvent::At(when) => {
                assert!(when > self.now, "a publisher that waits would never end");
                assert!(when <= self.now + EVERY);
                None
            }
            NextEvent::Idle => None,
        })
        .collect()
    }

    fn texts(&mut self) -> Vec<String> {
        self.published().iter().map(text).collect()
    }

    /// Publishes, and advances the clock to the next allowed time, until the Event is published or none is pending.
    fn wait_for(&mut self, is_it: impl Fn(&WaitingEvent) -> bool) -> Option<Duration> {
        let began = self.now;
        loop {
            match self.queue.next_event(self.now) {
                NextEvent::Publish(waiting) if is_it(&waiting) => return Some(self.now - began),
                NextEvent::Publish(_) => {}
                NextEvent::At(when) => self.now = when,
                NextEvent::Idle => return None,
            }
        }
    }
}

fn is_of(namespace: &str) -> impl Fn(&WaitingEvent) -> bool {
    move |waiting| waiting.share_name() == namespace
}

/// Pseudo-random numbers, the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }

    fn event(&mut self) -> Event {
        let reason = REASONS[usize::try_from(self.below(4)).unwrap()];
        event(reason, self.below(2) == 0, &self.below(3).to_string())
    }
}

#[test]
fn one_namespace_has_ten_at_once_and_then_one_every_ten_seconds() {
    let mut desk = Desk::new();
    for (second, expected) in
        [(0, 10), (9, 0), (10, 1), (19, 0), (20, 1), (55, 3), (60, 1), (2_000, 10), (2_009, 0)]
    {
        desk.at(second * 1000);
        (0..100).for_each(|number| desk.pod("shop", &format!("{second}-{number}"), "JoinedMesh"));
        assert_eq!(desk.published().len(), expected, "{second}");
    }
}

#[test]
fn the_whole_class_has_twenty_at_once_and_then_one_every_ten_seconds() {
    let mut desk = Desk::new();
    for (second, expected) in [(0, 20), (9, 0), (10, 1), (25, 1), (60, 4)] {
        desk.at(second * 1000);
        for number in 0..100 {
            desk.pod(&format!("n{number}"), &format!("{second}"), "JoinedMesh");
        }
        assert_eq!(desk.published().len(), expected, "{second}");
    }
}

#[test]
fn the_newest_state_of_a_subject_is_published_and_repetitions_are_counted() {
    let mut desk = Desk::new();
    // They exhaust the namespace's budget.
    (0..10).for_each(|number| desk.pod("shop", &number.to_string(), "JoinedMesh"));
    assert_eq!(desk.published().len(), 10);
    for (name, reason, message) in [
        ("web", "BypassesMesh", "old"),
        ("db", "BypassesMesh", "same"),
        ("db", "BypassesMesh", "same"),
        ("web", "BypassesMesh", "older"),
        ("web", "CaptureFailed", "another reason"),
        ("web", "BypassesMesh", "new"),
        ("web", "BypassesMesh", "new"),
        ("web", "BypassesMesh", "new"),
    ] {
        desk.add(subject("shop", name), event(reason, false, message));
    }
    desk.at(10_000);
    assert_eq!(desk.texts(), ["shop/web BypassesMesh new*3"], "it has the place of the first");
    desk.at(20_000);
    assert_eq!(desk.texts(), ["shop/web CaptureFailed another reason*1"], "the reason that was not yet");
    desk.at(30_000);
    assert_eq!(desk.texts(), ["shop/db BypassesMesh same*2"]);
    assert_eq!(desk.queue.next_event(desk.now), NextEvent::Idle);
}

#[test]
fn what_could_not_be_published_is_tried_again_unless_there_is_news_or_it_is_too_old() {
    let mut desk = Desk::new();
    let fail = |desk: &mut Desk| {
        let failed = desk.published().remove(0);
        let now = desk.now;
        desk.queue.requeue_event(failed, now);
    };
    desk.add(subject("shop", "web"), event("BypassesMesh", true, "a"));
    fail(&mut desk);
    desk.add(subject("shop", "web"), event("BypassesMesh", true, "a"));
    assert_eq!(desk.texts(), ["shop/web BypassesMesh a*2"]);
    desk.add(subject("shop", "web"), event("BypassesMesh", true, "a"));
    let failed = desk.published().remove(0);
    desk.add(subject("shop", "web"), event("BypassesMesh", true, "b"));
    desk.queue.requeue_event(failed, desk.now);
    assert_eq!(desk.texts(), ["shop/web BypassesMesh b*1"]);
    desk.add(subject("shop", "web"), event("BypassesMesh", true, "c"));
    fail(&mut desk);
    desk.at(3_600_000);
    assert_eq!(desk.queue.next_event(desk.now), NextEvent::Idle);
}

/// S 2.5: a pod author causes Events continuously, of any kind, for any pods.
#[test]
fn whatever_one_namespace_makes_events_of_others_and_of_the_node_are_published_at_once() {
    for seed in 0..100 {
        let (mut desk, mut numbers) = (Desk::new(), Numbers(seed));
        let pods = 1 + numbers.below(1000);
        let pause = 1 + numbers.below(3000);
        let end = numbers.below(200_000);
        let mut now = 0;
        while now < end {
            desk.at(now);
            for _ in 0..1 + numbers.below(20) {
                let pod = subject("evil", &numbers.below(pods).to_string());
                let event = numbers.event();
                desk.add(pod, event);
            }
            desk.published();
            now += pause * (1 + numbers.below(20));
        }
        for class in ["bypass", "pod", "node"] {
            match class {
                "node" => desk.add(EventSubject::Node, event("CNIConfigConflict", false, "")),
                class => desk.add(subject("shop", "web"), event("BypassesMesh", class == "bypass", "")),
            };
            let share = if class == "node" { "CNIConfigConflict" } else { "shop" };
            assert_eq!(desk.wait_for(is_of(share)), Some(Duration::ZERO), "{class}, seed {seed}");
        }
    }
}

#[test]
fn warnings_about_bypasses_in_the_same_namespace_are_published_at_once() {
    let mut desk = Desk::new();
    for second in 0..300 {
        desk.at(second * 1000);
        for number in 0..5 {
            desk.pod("evil", &format!("{second}-{number}"), "RefusedByMesh");
        }
        desk.published();
    }
    for reason in ["CanBypassMesh", "CaptureOverruled"] {
        desk.add(subject("evil", "vpn"), event(reason, true, ""));
        assert_eq!(desk.wait_for(|waiting| waiting.notice.reason == reason), Some(Duration::ZERO));
    }
    // Nor do many of one reason suppress another one.
    for number in 0..300 {
        desk.add(subject("evil", &number.to_string()), event("CanBypassMesh", true, ""));
    }
    desk.published();
    desk.add(subject("evil", "vpn"), event("CaptureOverruled", true, ""));
    let waited = desk.wait_for(|waiting| waiting.notice.reason == "CaptureOverruled");
    assert!(waited.is_some_and(|waited| waited <= EVERY), "{waited:?}");
}

#[test]
fn an_author_of_two_hundred_namespaces_delays_others_for_one_period_and_the_node_not_at_all() {
    let mut desk = Desk::new();
    for second in (0..2_500).step_by(50) {
        desk.at(second * 1000);
        for number in 0..200 {
            for is_bypass in [true, false] {
                let pod = subject(&format!("evil-{number}"), &second.to_string());
                desk.add(pod, event("CaptureOverruled", is_bypass, ""));
            }
        }
        desk.published();
    }
    for repeated in 0..20 {
        desk.add(EventSubject::Agent { or_node: true }, event("DriftRepaired", false, &repeated.to_string()));
        desk.published();
    }
    desk.add(EventSubject::Agent { or_node: true }, event("UnknownZtunnel", false, ""));
    assert_eq!(desk.wait_for(is_of("UnknownZtunnel")), Some(Duration::ZERO));
    for is_bypass in [true, false] {
        desk.add(subject("shop", "web"), event("BypassesMesh", is_bypass, ""));
        let waited = desk.wait_for(is_of("shop")).unwrap();
        assert!(waited <= EVERY, "{waited:?}");
    }
}

#[test]
fn namespaces_are_served_in_turn() {
    let mut desk = Desk::new();
    for namespace in ["a", "b"] {
        (0..50).for_each(|number| desk.pod(namespace, &number.to_string(), "JoinedMesh"));
    }
    let texts = desk.texts();
    let namespaces: String = texts.iter().map(|text| &text[..1]).collect();
    assert_eq!(namespaces, "ab".repeat(10));
    // A later one is the next to be published, however many are pending.
    desk.pod("c", "web", "JoinedMesh");
    desk.at(10_000);
    assert_eq!(desk.texts(), ["c/web JoinedMesh *1"]);
}

#[test]
fn memory_is_bounded_and_the_namespace_with_the_most_events_gives_way() {
    for seed in 0..3 {
        let (mut desk, mut numbers) = (Desk::new(), Numbers(seed));
        for number in 0..9 {
            desk.pod("first", &number.to_string(), "JoinedMesh");
        }
        for number in 0..2_000 {
            let pod = subject(&format!("evil-{}", numbers.below(3)), &number.to_string());
            let dropped = desk.add(pod, event("JoinedMesh", false, &"x".repeat(1024)));
            assert!(dropped.is_none_or(|dropped| dropped.share_name().starts_with("evil")));
        }
        for number in 0..9 {
            desk.pod("last", &number.to_string(), "JoinedMesh");
        }
        assert_eq!(desk.queue.classes[&EventClass::Pod].waiting.len(), WAITING);
        let theirs = desk.queue.classes[&EventClass::Pod].waiting.iter();
        let theirs = theirs.filter(|waiting| !waiting.share_name().starts_with("evil")).count();
        assert_eq!(theirs, 18, "all of both");
    }
    // Many namespaces with one Event each.
    let mut desk = Desk::new();
    desk.pod("shop", "web", "JoinedMesh");
    for number in 0..2_000 {
        desk.at(number * 100);
        desk.pod(&format!("evil-{number}"), "a", "JoinedMesh");
        desk.published();
        let queue = &desk.queue.classes[&EventClass::Pod];
        assert!(queue.waiting.len() <= WAITING && queue.shares.len() <= 2 * WAITING);
    }
    desk.at(5_000_000);
    desk.published();
    let queue = &desk.queue.classes[&EventClass::Pod];
    assert_eq!((queue.waiting.len(), queue.shares.len()), (0, 0), "nothing is remembered of who is silent");
}
