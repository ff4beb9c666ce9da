use model::{ContainerState, ContainerStatus, PodUid, Termination};
use proptest::prelude::*;

use super::*;

fn criteria() -> RepairCriteria {
    RepairCriteria {
        sidecar_annotation: String::new(),
        init_container: "istio-validation".into(),
        termination_message: String::new(),
        exit_code: 126,
    }
}

fn healthy(name: &str, uid: &str) -> ObservedPod {
    let name = PodName { namespace: "shop".into(), name: name.into() };
    ObservedPod { name, uid: uid.into(), version: "1".into(), ..ObservedPod::default() }
}

fn broken(name: &str, uid: &str) -> ObservedPod {
    let ended = Termination { exit_code: 126, ..Termination::default() };
    let state = ContainerState { terminated: Some(Box::new(ended)), waiting: None };
    let container = ContainerStatus { name: "istio-validation".into(), state, ..ContainerStatus::default() };
    ObservedPod { init_containers: vec![container], ..healthy(name, uid) }
}

struct Fixture {
    queue: RepairQueue,
    start: Instant,
}

impl Fixture {
    fn new() -> Fixture {
        let start = Instant::now();
        Fixture { queue: RepairQueue::new(criteria(), start), start }
    }

    fn at(&self, seconds: f64) -> Instant {
        self.start + Duration::from_secs_f64(seconds)
    }

    fn see(&mut self, seconds: f64, event: ListEvent<ObservedPod>) {
        let now = self.at(seconds);
        self.queue.apply_event(event, now);
    }

    fn take(&mut self, seconds: f64) -> Option<RepairTask> {
        let now = self.at(seconds);
        self.queue.take_due(now)
    }

    fn finish(&mut self, seconds: f64, task: &RepairTask, outcome: RepairOutcome) {
        let now = self.at(seconds);
        self.queue.finish_task(task, outcome, now);
    }

    fn due(&self) -> Option<f64> {
        self.queue.next_due().map(|due| (due - self.start).as_secs_f64())
    }
}

#[test]
fn a_pod_that_has_changed_is_tried_again_soon_and_has_not_failed() {
    let mut fixture = Fixture::new();
    fixture.see(0.0, ListEvent::Applied(broken("a", "1")));
    let mut now = 0.0;
    for delay in [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0] {
        let task = fixture.take(now).unwrap();
        fixture.finish(now, &task, RepairOutcome::Outdated);
        assert_eq!(fixture.due(), Some(now + delay));
        now += delay;
    }
    let task = fixture.take(now).unwrap();
    fixture.finish(now, &task, RepairOutcome::Failed);
    assert_eq!(fixture.due(), Some(now + 1.0), "the first failure");
}

#[test]
fn a_broken_pod_is_handled_at_once_and_looked_at_again() {
    let mut fixture = Fixture::new();
    fixture.see(0.0, ListEvent::Reset(vec![healthy("a", "1"), broken("b", "2")]));
    let task = fixture.take(0.0).unwrap();
    assert_eq!((task.pod.uid.as_str(), task.is_recheck, fixture.queue.len()), ("2", false, 1));
    fixture.finish(0.0, &task, RepairOutcome::Done);
    assert_eq!((fixture.take(59.0), fixture.due()), (None, Some(60.0)));
    let task = fixture.take(60.0).unwrap();
    assert!(task.is_recheck);
    fixture.finish(60.0, &task, RepairOutcome::Done);
    assert_eq!(fixture.due(), Some(180.0), "twice as long");
    fixture.see(100.0, ListEvent::Applied(healthy("b", "2")));
    assert!(fixture.queue.is_empty() && fixture.due().is_none(), "it has recovered");
}

#[test]
fn a_failure_is_repeated_with_back_off_and_with_the_version_seen_last() {
    let mut fixture = Fixture::new();
    fixture.see(0.0, ListEvent::Applied(broken("b", "2")));
    let mut delays = Vec::new();
    let mut now = 0.0;
    for _ in 0..10 {
        let task = fixture.take(now).unwrap();
        assert!(!task.is_recheck);
        fixture.finish(now, &task, RepairOutcome::Failed);
        let due = fixture.due().unwrap();
        delays.push((due - now).round());
        now = due + 0.001;
    }
    assert_eq!(delays, [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 300.0]);
    fixture.see(now, ListEvent::Applied(ObservedPod { version: "9".into(), ..broken("b", "2") }));
    assert_eq!(fixture.take(now).unwrap().pod.version, "9");
}

#[test]
fn a_pod_that_took_the_name_of_another_begins_anew() {
    let mut fixture = Fixture::new();
    fixture.see(0.0, ListEvent::Applied(broken("b", "2")));
    let task = fixture.take(0.0).unwrap();
    fixture.see(0.1, ListEvent::Applied(broken("b", "3")));
    fixture.finish(0.2, &task, RepairOutcome::Done);
    let next = fixture.take(0.2).unwrap();
    assert_eq!((next.pod.uid.as_str(), next.is_recheck), ("3", false));
    fixture.see(0.3, ListEvent::Deleted(broken("b", "2")));
    assert_eq!(fixture.queue.len(), 1, "that was its predecessor");
    fixture.see(0.4, ListEvent::Deleted(broken("b", "3")));
    assert!(fixture.queue.is_empty());
}

#[test]
fn what_a_new_list_does_not_have_is_gone() {
    let mut fixture = Fixture::new();
    fixture.see(0.0, ListEvent::Reset(vec![broken("a", "1"), broken("b", "2")]));
    let task = fixture.take(0.0).unwrap();
    fixture.finish(0.0, &task, RepairOutcome::Failed);
    fixture.see(0.5, ListEvent::Reset(vec![broken("a", "1")]));
    assert_eq!(fixture.queue.len(), 1);
    assert_eq!(fixture.due(), Some(1.0), "its back-off goes on");
    let task = fixture.take(1.0).unwrap();
    fixture.finish(1.0, &task, RepairOutcome::Gone);
    assert!(fixture.queue.is_empty());
}

#[test]
fn however_many_fail_at_once_ten_a_second_are_handled_each_once() {
    let mut fixture = Fixture::new();
    let all: Vec<_> = (0..500).map(|n| broken(&format!("pod-{n}"), &n.to_string())).collect();
    fixture.see(0.0, ListEvent::Reset(all));
    let (mut handled, mut now, mut last) = (std::collections::BTreeSet::new(), 0.0, 0.0);
    while handled.len() < 500 {
        last = now;
        let task = fixture.take(now).unwrap();
        assert!(fixture.take(now).is_none(), "the next one has to wait");
        fixture.finish(now, &task, RepairOutcome::Done);
        assert!(handled.insert(task.pod.uid));
        now = fixture.due().unwrap() + 0.000_001;
    }
    assert!((49.8..50.1).contains(&last), "{last}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// In any sequence: a task is always for a pod that was last observed broken, and the interval between two is never shorter
    /// than the pace.
    #[test]
    fn only_broken_pods_are_handled_at_a_bounded_rate(
        steps in prop::collection::vec((0_u8..6, 0_u8..4, 0_u8..3, 0_u64..5000), 1..80),
    ) {
        let mut fixture = Fixture::new();
        let mut last_seen = BTreeMap::new();
        let (mut clock, mut last_task) = (0.0, None::<f64>);
        for (kind, name, uid, millis) in steps {
            clock += Duration::from_millis(millis).as_secs_f64() / 10.0;
            let (name, uid) = (format!("p{name}"), uid.to_string());
            match kind {
                0 | 1 => {
                    let pod = if kind == 0 { broken(&name, &uid) } else { healthy(&name, &uid) };
                    last_seen.insert(name, (PodUid::from(uid), kind == 0));
                    fixture.see(clock, ListEvent::Applied(pod));
                }
                2 => {
                    if last_seen.get(&name).is_some_and(|(seen, _)| seen.as_str() == uid) {
                        last_seen.remove(&name);
                    }
                    fixture.see(clock, ListEvent::Deleted(healthy(&name, &uid)));
                }
                _ => if let Some(task) = fixture.take(clock) {
                    prop_assert!(last_task.is_none_or(|last| clock - last >= 0.099));
                    last_task = Some(clock);
                    prop_assert_eq!(last_seen.get(&task.pod.name.name), Some(&(task.pod.uid.clone(), true)));
                    let outcome = match kind {
                        3 => RepairOutcome::Done,
                        4 => RepairOutcome::Failed,
                        _ => RepairOutcome::Skipped,
                    };
                    fixture.finish(clock, &task, outcome);
                    prop_assert!(fixture.due().is_some_and(|due| due > clock));
                },
            }
        }
    }
}
