use model::PodUid;
use proptest::prelude::*;

use super::*;
use crate::observed_pod::{ObservedInitContainer, Termination};

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
    let container =
        ObservedInitContainer { name: "istio-validation".into(), ended: Some(ended), ended_before: None };
    ObservedPod { init_containers: vec![container], ..healthy(name, uid) }
}

struct Stage {
    queue: RepairQueue,
    start: Instant,
}

impl Stage {
    fn new() -> Stage {
        let start = Instant::now();
        Stage { queue: RepairQueue::new(criteria(), start), start }
    }

    fn at(&self, seconds: f64) -> Instant {
        self.start + Duration::from_secs_f64(seconds)
    }

    fn see(&mut self, seconds: f64, event: ListEvent<ObservedPod>) {
        let now = self.at(seconds);
        self.queue.observe(event, now);
    }

    fn take(&mut self, seconds: f64) -> Option<RepairTask> {
        let now = self.at(seconds);
        self.queue.take(now)
    }

    fn finish(&mut self, seconds: f64, task: &RepairTask, outcome: RepairOutcome) {
        let now = self.at(seconds);
        self.queue.finish(task, outcome, now);
    }

    fn due(&self) -> Option<f64> {
        self.queue.due().map(|due| (due - self.start).as_secs_f64())
    }
}

#[test]
fn a_broken_pod_is_handled_at_once_and_looked_at_again() {
    let mut stage = Stage::new();
    stage.see(0.0, ListEvent::Reset(vec![healthy("a", "1"), broken("b", "2")]));
    let task = stage.take(0.0).unwrap();
    assert_eq!((task.pod.uid.as_str(), task.is_recheck, stage.queue.len()), ("2", false, 1));
    stage.finish(0.0, &task, RepairOutcome::Done);
    assert_eq!((stage.take(59.0), stage.due()), (None, Some(60.0)));
    let task = stage.take(60.0).unwrap();
    assert!(task.is_recheck);
    stage.finish(60.0, &task, RepairOutcome::Done);
    assert_eq!(stage.due(), Some(180.0), "twice as long");
    stage.see(100.0, ListEvent::Applied(healthy("b", "2")));
    assert!(stage.queue.is_empty() && stage.due().is_none(), "it has recovered");
}

#[test]
fn a_failure_is_repeated_with_back_off_and_with_the_version_seen_last() {
    let mut stage = Stage::new();
    stage.see(0.0, ListEvent::Applied(broken("b", "2")));
    let mut delays = Vec::new();
    let mut now = 0.0;
    for _ in 0..10 {
        let task = stage.take(now).unwrap();
        assert!(!task.is_recheck);
        stage.finish(now, &task, RepairOutcome::Failed);
        let due = stage.due().unwrap();
        delays.push((due - now).round());
        now = due + 0.001;
    }
    assert_eq!(delays, [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 300.0]);
    stage.see(now, ListEvent::Applied(ObservedPod { version: "9".into(), ..broken("b", "2") }));
    assert_eq!(stage.take(now).unwrap().pod.version, "9");
}

#[test]
fn a_pod_that_took_the_name_of_another_begins_anew() {
    let mut stage = Stage::new();
    stage.see(0.0, ListEvent::Applied(broken("b", "2")));
    let task = stage.take(0.0).unwrap();
    stage.see(0.1, ListEvent::Applied(broken("b", "3")));
    stage.finish(0.2, &task, RepairOutcome::Done);
    let next = stage.take(0.2).unwrap();
    assert_eq!((next.pod.uid.as_str(), next.is_recheck), ("3", false));
    stage.see(0.3, ListEvent::Deleted(broken("b", "2")));
    assert_eq!(stage.queue.len(), 1, "that was its predecessor");
    stage.see(0.4, ListEvent::Deleted(broken("b", "3")));
    assert!(stage.queue.is_empty());
}

#[test]
fn what_a_new_list_does_not_have_is_gone() {
    let mut stage = Stage::new();
    stage.see(0.0, ListEvent::Reset(vec![broken("a", "1"), broken("b", "2")]));
    let task = stage.take(0.0).unwrap();
    stage.finish(0.0, &task, RepairOutcome::Failed);
    stage.see(0.5, ListEvent::Reset(vec![broken("a", "1")]));
    assert_eq!(stage.queue.len(), 1);
    assert_eq!(stage.due(), Some(1.0), "its back-off goes on");
    let task = stage.take(1.0).unwrap();
    stage.finish(1.0, &task, RepairOutcome::Gone);
    assert!(stage.queue.is_empty());
}

#[test]
fn however_many_fail_at_once_ten_a_second_are_handled_each_once() {
    let mut stage = Stage::new();
    let all: Vec<_> = (0..500).map(|n| broken(&format!("pod-{n}"), &n.to_string())).collect();
    stage.see(0.0, ListEvent::Reset(all));
    let (mut handled, mut now, mut last) = (std::collections::BTreeSet::new(), 0.0, 0.0);
    while handled.len() < 500 {
        last = now;
        let task = stage.take(now).unwrap();
        assert!(stage.take(now).is_none(), "the next one has to wait");
        stage.finish(now, &task, RepairOutcome::Done);
        assert!(handled.insert(task.pod.uid));
        now = stage.due().unwrap() + 0.000_001;
    }
    assert!((49.8..50.1).contains(&last), "{last}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is seen and done: a task is always a pod that was last seen broken, and no two are nearer than the pace.
    #[test]
    fn only_broken_pods_are_handled_at_a_bounded_rate(
        steps in prop::collection::vec((0_u8..6, 0_u8..4, 0_u8..3, 0_u64..5000), 1..80),
    ) {
        let mut stage = Stage::new();
        let mut last_seen = BTreeMap::new();
        let (mut clock, mut last_task) = (0.0, None::<f64>);
        for (kind, name, uid, millis) in steps {
            clock += Duration::from_millis(millis).as_secs_f64() / 10.0;
            let (name, uid) = (format!("p{name}"), uid.to_string());
            match kind {
                0 | 1 => {
                    let pod = if kind == 0 { broken(&name, &uid) } else { healthy(&name, &uid) };
                    last_seen.insert(name, (PodUid::from(uid), kind == 0));
                    stage.see(clock, ListEvent::Applied(pod));
                }
                2 => {
                    if last_seen.get(&name).is_some_and(|(seen, _)| seen.as_str() == uid) {
                        last_seen.remove(&name);
                    }
                    stage.see(clock, ListEvent::Deleted(healthy(&name, &uid)));
                }
                _ => if let Some(task) = stage.take(clock) {
                    prop_assert!(last_task.is_none_or(|last| clock - last >= 0.099));
                    last_task = Some(clock);
                    prop_assert_eq!(last_seen.get(&task.pod.name.name), Some(&(task.pod.uid.clone(), true)));
                    let outcome = match kind {
                        3 => RepairOutcome::Done,
                        4 => RepairOutcome::Failed,
                        _ => RepairOutcome::Skipped,
                    };
                    stage.finish(clock, &task, outcome);
                    prop_assert!(stage.due().is_some_and(|due| due > clock));
                },
            }
        }
    }
}
