//! Each row of the table in docs/in-pod-internals.md, and invariants under all events.

use proptest::prelude::*;

use super::*;
use crate::{CaptureState, Redirection};

type Pod = Lifecycle<u8>;

const HERE: u8 = 1;
const THERE: u8 = 2;

fn seconds(seconds: u64) -> AgentTime {
    Duration::from_secs(seconds)
}

fn failure() -> Reason {
    "a tool failed".into()
}

fn added(netns: u8) -> PodEvent<u8> {
    PodEvent::Added { netns, deadline: seconds(7) }
}

/// The pod after these events, and the actions for the last one.
fn after(events: &[PodEvent<u8>]) -> (Pod, Vec<PodAction>) {
    let mut pod = Pod::new(None, AgentTime::ZERO);
    let (mut actions, mut now) = (Vec::new(), AgentTime::ZERO);
    for event in events {
        now += FIRST_RECHECK;
        actions = pod.apply_event(event.clone(), now);
    }
    (pod, actions)
}

fn state(pod: &Pod) -> CaptureState {
    pod.capture_evidence(PodLife::Running, true, false).classify().state
}

#[test]
fn each_event_leads_to_its_actions_and_its_state() {
    use CaptureState::{Bypassing, Captured, Held, Leaving, Pending, Unknown};
    use PodAction::{Announce, Answer, Capture, Forget, Moved, Observe, Serve};
    let found = |netns, captured| PodEvent::Found { netns, captured };
    let applied = [added(HERE), PodEvent::Captured(HERE, Ok(true))];
    let served = [&applied[..], &[PodEvent::Accepted(HERE)]].concat();
    let (seen, removed) = (PodEvent::Observed(HERE, Ok(false)), PodEvent::Observed(HERE, Ok(true)));
    let verified = [&served[..], &[PodEvent::Observed(HERE, Ok(false))]].concat();
    let then = |before: &[PodEvent<u8>], event| [before, &[event]].concat();
    let forget = |why: &str| Forget(why.into());
    let refused = || Err("no certificate".into());
    let no_member = || Err("it does not belong to the mesh: it has a sidecar".into());
    let leaves = PodEvent::Left("it has a sidecar".into());
    let left = then(&verified, leaves.clone());
    let opened = then(&verified, PodEvent::Opened(true));
    let closed = [PodEvent::Captured(HERE, Ok(true)), PodEvent::Opened(false)];
    let cases = [
        ("an ADD comes", vec![added(HERE)], vec![Capture], Pending),
        ("its rules are made", applied.to_vec(), vec![Serve], Pending),
        ("ztunnel serves it", served.clone(), vec![Answer(Ok(()))], Captured),
        ("its rules are seen", verified.clone(), vec![Announce], Captured),
        ("its rules are seen again", then(&verified, PodEvent::Observed(HERE, Ok(false))), vec![], Captured),
        (
            "its rules are gone again before they are observed",
            then(&verified, PodEvent::Contested(HERE, true)),
            vec![],
            Pending,
        ),
        (
            "nothing can be restored of what is missing, twice",
            then(&then(&verified, PodEvent::Contested(HERE, false)), PodEvent::Contested(HERE, false)),
            vec![],
            Unknown,
        ),
        ("ztunnel acknowledges it again", then(&verified, PodEvent::Accepted(HERE)), vec![], Captured),
        ("its sandbox before is accepted late", then(&verified, PodEvent::Accepted(THERE)), vec![], Captured),
        (
            "its third namespace has the number of its first, in which ztunnel served it",
            [&verified[..], &[found(THERE, false), found(HERE, false), PodEvent::Captured(HERE, Ok(true))]]
                .concat(),
            vec![Serve],
            Held,
        ),
        (
            "a second ADD of a captured pod",
            then(&verified, added(HERE)),
            vec![Capture, Answer(Ok(()))],
            Captured,
        ),
        ("a second ADD with another sandbox", then(&verified, added(THERE)), vec![Capture], Pending),
        (
            "what ended concerns the sandbox before",
            vec![added(HERE), added(THERE), PodEvent::Captured(HERE, Ok(true))],
            vec![Capture],
            Pending,
        ),
        (
            "its rules cannot be made",
            vec![added(HERE), PodEvent::Captured(HERE, Err(failure()))],
            vec![Answer(Err(failure())), Forget(failure())],
            Bypassing,
        ),
        (
            "ztunnel refuses it while its ADD waits",
            then(&applied, PodEvent::Refused(HERE, "no certificate".into())),
            vec![Answer(refused()), forget("no certificate")],
            Held,
        ),
        (
            "ztunnel refuses one that runs",
            then(&verified, PodEvent::Refused(HERE, "no certificate".into())),
            vec![],
            Held,
        ),
        (
            "ztunnel refuses its sandbox before",
            then(&verified, PodEvent::Refused(THERE, failure())),
            vec![],
            Captured,
        ),
        (
            "its ADD expires",
            then(&applied, PodEvent::Expired("no ztunnel is connected".into())),
            vec![Answer(Err("no ztunnel is connected".into())), forget("no ztunnel is connected")],
            Held,
        ),
        ("found at a start", vec![found(HERE, true)], vec![], Bypassing),
        ("found in another namespace", then(&verified, found(THERE, false)), vec![Moved], Bypassing),
        ("found while its ADD waits", then(&applied, found(THERE, false)), vec![], Pending),
        (
            "it asks for other rules",
            then(&verified, PodEvent::Joined { changed: true }),
            vec![Capture],
            Captured,
        ),
        ("nothing has changed", then(&verified, PodEvent::Joined { changed: false }), vec![], Captured),
        ("no ztunnel is there, and it goes on", opened.clone(), vec![Capture], Bypassing),
        ("its rules let it go on", then(&opened, PodEvent::Captured(HERE, Ok(true))), vec![Serve], Bypassing),
        ("a ztunnel is there again", [&opened[..], &closed].concat(), vec![Capture], Bypassing),
        (
            "its rules redirect again",
            [&opened[..], &closed, &[PodEvent::Captured(HERE, Ok(true))]].concat(),
            vec![Serve],
            Captured,
        ),
        ("nothing about ztunnel has changed", then(&verified, PodEvent::Opened(false)), vec![], Captured),
        (
            "an ADD while it may go on without ztunnel",
            vec![PodEvent::Opened(true), added(HERE), PodEvent::Captured(HERE, Ok(true))],
            vec![Serve, Answer(Ok(()))],
            Bypassing,
        ),
        (
            "it leaves while it goes on without ztunnel",
            [&opened[..], &[PodEvent::Captured(HERE, Ok(true)), leaves.clone(), PodEvent::Opened(false)]]
                .concat(),
            vec![],
            Leaving,
        ),
        ("its rules were removed", then(&verified, removed.clone()), vec![], Captured),
        (
            "they were removed again",
            [&verified[..], &[removed.clone(), removed.clone()]].concat(),
            vec![],
            Pending,
        ),
        (
            "they are seen once since",
            [&verified[..], &[removed.clone(), removed.clone(), seen.clone()]].concat(),
            vec![],
            Pending,
        ),
        (
            "they are seen twice since",
            [&verified[..], &[removed.clone(), removed, seen.clone(), seen]].concat(),
            vec![],
            Captured,
        ),
        (
            "its rules cannot be seen",
            then(&served, PodEvent::Observed(HERE, Err(failure()))),
            vec![],
            Bypassing,
        ),
        ("its namespace changes", then(&verified, PodEvent::Changed(HERE)), vec![Observe], Captured),
        ("another namespace changes", then(&verified, PodEvent::Changed(THERE)), vec![], Captured),
        ("it changes while it is captured", then(&[added(HERE)], PodEvent::Changed(HERE)), vec![], Pending),
        ("it changes while it leaves", then(&left, PodEvent::Changed(HERE)), vec![], Leaving),
        ("it leaves", left.clone(), vec![], Leaving),
        ("it leaves again", then(&left, leaves.clone()), vec![], Leaving),
        (
            "it left, and comes back",
            then(&left, PodEvent::Joined { changed: false }),
            vec![Capture],
            Captured,
        ),
        (
            "its rules are gone",
            then(&left, PodEvent::Released(HERE, Ok(()))),
            vec![forget("it has left the mesh")],
            Leaving,
        ),
        (
            "its rules cannot be removed",
            then(&left, PodEvent::Released(HERE, Err(failure()))),
            vec![],
            Leaving,
        ),
        ("it leaves while its ADD waits", then(&applied, leaves.clone()), vec![Answer(no_member())], Leaving),
        (
            "it leaves before its namespace is known",
            vec![PodEvent::Joined { changed: false }, leaves],
            vec![forget("it has a sidecar")],
            Leaving,
        ),
        (
            "it left while no agent was here",
            vec![PodEvent::LeftMeanwhile, found(HERE, true)],
            vec![],
            Leaving,
        ),
    ];
    for (what, events, actions, expected) in cases {
        let (pod, done) = after(&events);
        assert_eq!(done, actions, "{what}");
        assert_eq!(state(&pod), expected, "{what}");
    }
}

#[test]
fn a_namespace_that_changes_all_the_time_is_observed_at_a_bounded_rate() {
    let (mut pod, _) = after(&[added(HERE), PodEvent::Captured(HERE, Ok(true)), PodEvent::Accepted(HERE)]);
    let _ = pod.apply_event(PodEvent::Observed(HERE, Ok(false)), seconds(20));
    let (mut now, mut repairs) = (seconds(30), 0);
    while now < seconds(90) {
        now += Duration::from_millis(5);
        let works = pod.due_action(now).filter(|_| pod.next_wakeup(now, now).is_some_and(|due| due <= now));
        works.iter().for_each(|action| pod.begin_action(action, now + OBSERVE));
        if works.or_else(|| pod.apply_event(PodEvent::Changed(HERE), now).pop()) == Some(PodAction::Observe) {
            let _ = pod.apply_event(PodEvent::Observed(HERE, Ok(true)), now);
            repairs += 1;
        }
    }
    assert!((10..40).contains(&repairs), "{repairs}");
    assert_eq!(state(&pod), CaptureState::Pending);
}

#[test]
fn a_change_of_its_namespace_ends_the_back_off_after_a_failure() {
    let (mut pod, _) = after(&[added(HERE), PodEvent::Captured(HERE, Ok(true)), PodEvent::Accepted(HERE)]);
    for _ in 0..8 {
        let _ = pod.apply_event(PodEvent::Observed(HERE, Err(failure())), seconds(20));
    }
    assert_eq!(pod.due_action(seconds(30)), None);
    assert_eq!(pod.apply_event(PodEvent::Changed(HERE), seconds(30)), []);
    assert_eq!(pod.due_action(seconds(30)), Some(PodAction::Capture));
    // Changes that do not end, and neither does the failure.
    let (mut now, mut attempts) = (seconds(30), 0);
    while now < seconds(90) {
        let works = pod.due_action(now);
        works.iter().for_each(|action| pod.begin_action(action, now + OBSERVE));
        if works.is_some() {
            let _ = pod.apply_event(PodEvent::Captured(HERE, Err(failure())), now);
            attempts += 1;
        }
        let _ = pod.apply_event(PodEvent::Changed(HERE), now);
        now += Duration::from_millis(5);
    }
    assert!((10..40).contains(&attempts), "{attempts}");
}

#[test]
fn a_writer_that_is_faster_than_observations_meets_the_same_pauses() {
    let (mut pod, _) = after(&[added(HERE), PodEvent::Captured(HERE, Ok(true)), PodEvent::Accepted(HERE)]);
    let _ = pod.apply_event(PodEvent::Observed(HERE, Ok(false)), seconds(20));
    let (mut now, mut pauses) = (seconds(30), Vec::new());
    assert_eq!(pod.apply_event(PodEvent::Changed(HERE), now), [PodAction::Observe]);
    for _ in 0..9 {
        assert_eq!(pod.apply_event(PodEvent::Contested(HERE, true), now), []);
        assert_eq!(pod.apply_event(PodEvent::Changed(HERE), now), [], "that is known");
        assert_eq!(state(&pod), CaptureState::Pending);
        let next = pod.next_wakeup(now, now).unwrap();
        assert_eq!(pod.due_action(next), Some(PodAction::Observe), "it has been captured before");
        pod.begin_action(&PodAction::Observe, next + OBSERVE);
        pauses.push((next - now).as_millis());
        now = next;
    }
    assert_eq!(pauses, [50, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
    for found in [PodEvent::Observed(HERE, Ok(true)), seen(), seen()] {
        now += FIRST_RECHECK;
        let _ = pod.apply_event(found, now);
    }
    assert_eq!(state(&pod), CaptureState::Captured);
}

fn seen() -> PodEvent<u8> {
    PodEvent::Observed(HERE, Ok(false))
}

#[test]
fn a_pod_that_comes_back_during_its_release_is_captured_again() {
    let (mut pod, _) = after(&[added(HERE), PodEvent::Captured(HERE, Ok(true)), PodEvent::Accepted(HERE)]);
    let _ = pod.apply_event(PodEvent::Left("its label".into()), seconds(1));
    assert_eq!(pod.due_action(seconds(1)), Some(PodAction::Release));
    pod.begin_action(&PodAction::Release, AgentTime::ZERO);
    assert_eq!(pod.apply_event(PodEvent::Joined { changed: false }, seconds(1)), []);
    assert_eq!(pod.apply_event(PodEvent::Released(HERE, Ok(())), seconds(2)), [PodAction::Capture]);
    assert_eq!(state(&pod), CaptureState::Bypassing, "its rules were removed");
}

#[test]
fn a_pod_whose_sandbox_is_replaced_during_its_release_is_released_there_too() {
    let (mut pod, _) = after(&[added(HERE), PodEvent::Captured(HERE, Ok(true)), PodEvent::Accepted(HERE)]);
    let _ = pod.apply_event(PodEvent::Left("its label".into()), seconds(1));
    pod.begin_action(&PodAction::Release, AgentTime::ZERO);
    let moves = PodEvent::Found { netns: THERE, captured: true };
    assert_eq!(pod.apply_event(moves, seconds(1)), [PodAction::Moved]);
    assert_eq!(pod.apply_event(PodEvent::Released(HERE, Ok(())), seconds(2)), []);
    assert_eq!(pod.due_action(seconds(2)), Some(PodAction::Release));
    pod.begin_action(&PodAction::Release, AgentTime::ZERO);
    let ends = pod.apply_event(PodEvent::Released(THERE, Ok(())), seconds(3));
    assert_eq!(ends, [PodAction::Forget("it has left the mesh".into())]);
}

#[test]
fn a_pod_that_comes_back_is_not_captured_by_what_a_failed_release_left() {
    let verified = [added(HERE), PodEvent::Captured(HERE, Ok(true)), PodEvent::Accepted(HERE)];
    let verified = [&verified[..], &[PodEvent::Observed(HERE, Ok(false))]].concat();
    for returns_first in [true, false] {
        let (mut pod, _) = after(&verified);
        let _ = pod.apply_event(PodEvent::Left("its label".into()), seconds(1));
        pod.begin_action(&PodAction::Release, AgentTime::ZERO);
        let (returns, fails) =
            (PodEvent::Joined { changed: false }, PodEvent::Released(HERE, Err(failure())));
        if returns_first {
            assert_eq!(pod.apply_event(returns, seconds(1)), []);
            assert_eq!(pod.apply_event(fails, seconds(1)), [PodAction::Capture]);
        } else {
            assert_eq!(pod.apply_event(fails, seconds(1)), []);
            assert_eq!(pod.apply_event(returns, seconds(1)), []);
            assert_eq!(pod.due_action(seconds(1)), Some(PodAction::Capture));
        }
        assert_eq!(state(&pod), CaptureState::Bypassing, "some of its rules may be gone");
        let _ = pod.apply_event(PodEvent::Captured(HERE, Ok(true)), seconds(1));
        assert_eq!(state(&pod), CaptureState::Captured);
    }
}

#[test]
fn attempts_that_fail_are_made_less_and_less_often() {
    let (mut pod, _) = after(&[PodEvent::Found { netns: HERE, captured: false }]);
    let mut now = AgentTime::ZERO;
    let mut pauses = Vec::new();
    for _ in 0..10 {
        assert_eq!(pod.due_action(now), Some(PodAction::Capture));
        pod.begin_action(&PodAction::Capture, AgentTime::ZERO);
        assert_eq!(pod.next_wakeup(now, now), None, "busy");
        let _ = pod.apply_event(PodEvent::Captured(HERE, Err(failure())), now);
        let next = pod.next_wakeup(now, now).unwrap();
        pauses.push((next - now).as_millis());
        assert_eq!(pod.due_action(next - Duration::from_millis(1)), None);
        now = next;
    }
    assert_eq!(pauses, [200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000]);
    assert_eq!(state(&pod), CaptureState::Bypassing);
    let annotation = pod.capture_evidence(PodLife::Running, true, false).classify().annotation;
    assert_eq!(annotation, Some(Redirection::Pending), "clients must not use HBONE");
}

#[test]
fn rules_that_can_be_made_and_not_be_observed_leave_it_unknown() {
    let (mut pod, _) = after(&[PodEvent::Found { netns: HERE, captured: false }, PodEvent::Accepted(HERE)]);
    for (round, expected) in
        [(1, CaptureState::Captured), (2, CaptureState::Unknown), (3, CaptureState::Unknown)]
    {
        let _ = pod.apply_event(PodEvent::Observed(HERE, Err(failure())), seconds(round));
        let _ = pod.apply_event(PodEvent::Captured(HERE, Ok(true)), seconds(round));
        assert_eq!(state(&pod), expected, "{round}");
    }
    assert!(pod.due_action(seconds(3)).is_none(), "the next attempt is not made at once");
    let _ = pod.apply_event(PodEvent::Observed(HERE, Ok(false)), seconds(4));
    assert_eq!(state(&pod), CaptureState::Captured);
}

#[test]
fn failures_in_a_namespace_do_not_count_in_the_next_one() {
    let (mut pod, _) = after(&[PodEvent::Found { netns: HERE, captured: false }, PodEvent::Accepted(HERE)]);
    for failed in [PodEvent::Observed(HERE, Err(failure())), PodEvent::Captured(HERE, Err(failure()))] {
        (0..2).for_each(|_| drop(pod.apply_event(failed.clone(), AgentTime::ZERO)));
    }
    assert!(pod.has_lost_rules() && pod.last_failure().is_some());
    let _ = pod.apply_event(PodEvent::Found { netns: THERE, captured: false }, AgentTime::ZERO);
    assert!(!pod.has_lost_rules() && pod.last_failure().is_none());
    let annotation = pod.capture_evidence(PodLife::Running, true, false).classify().annotation;
    assert_eq!(annotation, None, "no attempt has failed there");
}

#[test]
fn options_change_no_more_often_than_allowed() {
    let (mut pod, _) = after(&[added(HERE)]);
    assert!(pod.may_change(AgentTime::ZERO));
    let _ = pod.apply_event(PodEvent::Joined { changed: true }, seconds(10));
    let soon = seconds(10) + OPTIONS;
    assert!(!pod.may_change(soon - Duration::from_millis(1)) && pod.may_change(soon));
    assert_eq!(pod.next_wakeup(seconds(10), seconds(10)), Some(seconds(7)), "its ADD comes first");
    let _ = pod.apply_event(PodEvent::Expired(failure()), seconds(10));
    assert_eq!(pod.next_wakeup(seconds(10), seconds(10)), Some(soon));
}

#[test]
fn an_annotation_of_an_agent_before_this_one_is_kept_until_ztunnel_is_heard() {
    for (annotation, announced, inherited) in [
        (None, false, false),
        (Some("pending"), false, true),
        (Some("enabled"), true, true),
        (Some("no"), false, false),
    ] {
        let mut pod = Pod::new(annotation, AgentTime::ZERO);
        assert_eq!(pod.is_inherited(), inherited, "{annotation:?}");
        let _ = pod.apply_event(PodEvent::Found { netns: HERE, captured: true }, AgentTime::ZERO);
        let _ = pod.apply_event(PodEvent::Captured(HERE, Ok(false)), AgentTime::ZERO);
        let status = pod.capture_evidence(PodLife::Running, false, false).classify();
        let expected = if announced { None } else { Some(Redirection::Pending) };
        assert_eq!(status.annotation, expected, "{annotation:?}");
        let _ = pod.apply_event(PodEvent::Refused(HERE, failure()), AgentTime::ZERO);
        let status = pod.capture_evidence(PodLife::Running, true, false).classify();
        assert_eq!(status.annotation, Some(Redirection::Pending), "{annotation:?}");
    }
}

/// A node with one pod: the state of its namespaces, and the current job there.
#[derive(Debug, Default)]
struct World {
    /// Whether each namespace has rules that redirect.
    rules: [bool; 3],
    /// Current job, with the namespace and whether rules were desired at its start.
    job: Option<(PodAction, u8, bool)>,
    /// Number of pending ADDs.
    waiting: usize,
    forgotten: bool,
}

#[derive(Clone, Debug)]
enum Step {
    Event(PodEvent<u8>),
    /// The current job ends; `Some` means that it fails.
    End(Option<Reason>),
    /// Another component removes the rules.
    Tamper,
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let netns = 1..3_u8;
    let event = prop_oneof![
        (netns.clone(), 1..9_u64)
            .prop_map(|(netns, time)| PodEvent::Added { netns, deadline: seconds(time * 20) }),
        any::<bool>().prop_map(|changed| PodEvent::Joined { changed }),
        any::<bool>().prop_map(PodEvent::Opened),
        Just(PodEvent::Left("its label".into())),
        (netns.clone(), any::<bool>()).prop_map(|(netns, captured)| PodEvent::Found { netns, captured }),
        any::<bool>().prop_map(|there| PodEvent::DiscoveryDone { there }),
        netns.clone().prop_map(PodEvent::Accepted),
        netns.prop_map(|netns| PodEvent::Refused(netns, failure())),
    ];
    let step = prop_oneof![
        5 => event.prop_map(Step::Event),
        5 => proptest::option::weighted(0.2, Just(failure())).prop_map(Step::End),
        1 => Just(Step::Tamper),
        3 => (0..60_u64).prop_map(Step::Pass),
    ];
    proptest::collection::vec(step, 0..60)
}

impl World {
    fn event(&mut self, pod: &mut Pod, event: PodEvent<u8>, now: AgentTime) {
        if matches!(event, PodEvent::Added { .. }) {
            self.waiting += 1;
        }
        for action in pod.apply_event(event, now) {
            self.act(pod, action);
        }
    }

    fn act(&mut self, pod: &Pod, action: PodAction) {
        match action {
            PodAction::Capture | PodAction::Observe | PodAction::Release => {
                assert!(self.job.is_none(), "one thing at a time");
                self.job = Some((action, pod.netns.expect("where"), !pod.open));
            }
            PodAction::Answer(result) => {
                assert!(self.waiting > 0, "somebody has asked");
                assert!(
                    result.is_err() || (pod.is_ruled() && (pod.served || pod.open)),
                    "enrolled only if it is captured, or goes on without ztunnel"
                );
                self.waiting = 0;
            }
            PodAction::Announce => assert_eq!(state(pod), CaptureState::Captured),
            PodAction::Forget(_) => self.forgotten = true,
            PodAction::Serve | PodAction::Moved => {}
        }
    }

    /// Ends the current job, in the namespace in which it was started.
    fn end(&mut self, pod: &mut Pod, failure: Option<Reason>, now: AgentTime) {
        let Some((action, netns, wanted)) = self.job.take() else { return };
        let rules = &mut self.rules[usize::from(netns)];
        let event = match (action, failure) {
            (PodAction::Capture, None) => {
                let changed = std::mem::replace(rules, wanted) != wanted;
                PodEvent::Captured(netns, Ok(changed))
            }
            (PodAction::Capture, Some(why)) => PodEvent::Captured(netns, Err(why)),
            (PodAction::Observe, None) => {
                let repaired = std::mem::replace(rules, wanted) != wanted; // missing rules are restored
                PodEvent::Observed(netns, Ok(repaired))
            }
            (PodAction::Observe, Some(why)) => PodEvent::Observed(netns, Err(why)),
            (_, None) => {
                *rules = false;
                PodEvent::Released(netns, Ok(()))
            }
            (_, Some(why)) => {
                *rules = false; // several of its steps have succeeded
                PodEvent::Released(netns, Err(why))
            }
        };
        self.event(pod, event, now);
    }

    /// Runs a pass of the reconciler.
    fn pass(&mut self, pod: &mut Pod, now: AgentTime) {
        if let Some(action) = pod.due_action(now) {
            pod.begin_action(&action, now + OBSERVE);
            self.act(pod, action);
        }
        if pod.is_late(now) {
            self.event(pod, PodEvent::Expired(failure()), now);
        }
    }
}

proptest! {
    /// Under any events in any order: one job at a time runs in the pod's namespace, every ADD is answered by its deadline and with
    /// success only if the pod is captured, and a pod reported as captured has rules in its current namespace, unless another
    /// component has removed them since they were last observed.
    #[test]
    fn whatever_happens_a_pod_is_done_justice(steps in steps()) {
        let (mut pod, mut world, mut now) = (Pod::new(None, AgentTime::ZERO), World::default(), AgentTime::ZERO);
        let mut tampered = false;
        for step in steps {
            match step {
                Step::Event(event) => world.event(&mut pod, event, now),
                Step::End(failure) => world.end(&mut pod, failure, now),
                Step::Tamper => {
                    world.rules = [false; 3];
                    tampered = true;
                }
                Step::Pass(time) => now += seconds(time),
            }
            if world.forgotten {
                prop_assert_eq!(world.waiting, 0, "nobody waits for a pod that is forgotten");
                return Ok(());
            }
            world.pass(&mut pod, now);
            if world.forgotten {
                return Ok(());
            }
            prop_assert_eq!(world.waiting > 0, pod.is_awaited());
            prop_assert!(!pod.is_late(now), "an ADD is answered by its deadline");
            prop_assert_eq!(world.job.is_some(), pod.is_busy());
            if state(&pod) == CaptureState::Captured && !tampered {
                let netns = pod.netns.expect("a captured pod is somewhere");
                prop_assert!(world.rules[usize::from(netns)], "{:?}", pod);
            }
        }
    }

    /// Once no more events occur, a pod that belongs to the mesh and is served is eventually captured, whatever another component
    /// did to its rules, and one that has left has no rules.
    #[test]
    fn in_the_end_it_is_as_desired(steps in steps(), leaves in any::<bool>()) {
        let (mut pod, mut world, mut now) = (Pod::new(None, AgentTime::ZERO), World::default(), AgentTime::ZERO);
        for step in steps {
            match step {
                Step::Event(event) => world.event(&mut pod, event, now),
                Step::End(failure) => world.end(&mut pod, failure, now),
                Step::Tamper => world.rules = [false; 3],
                Step::Pass(time) => now += seconds(time),
            }
            if world.forgotten {
                return Ok(());
            }
        }
        world.event(&mut pod, PodEvent::Joined { changed: false }, now);
        world.event(&mut pod, PodEvent::Opened(false), now);
        world.event(&mut pod, PodEvent::Expired(failure()), now);
        if world.forgotten {
            return Ok(()); // its rules stay, so that none of its traffic bypasses the mesh
        }
        world.event(&mut pod, PodEvent::Found { netns: THERE, captured: false }, now);
        world.event(&mut pod, PodEvent::Accepted(THERE), now);
        if leaves {
            world.event(&mut pod, PodEvent::Left("its label".into()), now);
        }
        for _ in 0..10 {
            if world.forgotten {
                break;
            }
            world.end(&mut pod, None, now);
            now += LAST_RETRY + OBSERVE;
            if !world.forgotten {
                world.pass(&mut pod, now);
            }
        }
        if leaves {
            prop_assert!(world.forgotten && !world.rules[usize::from(THERE)], "{:?}", world);
        } else if !world.forgotten {
            prop_assert_eq!(state(&pod), CaptureState::Captured);
            prop_assert!(world.rules[usize::from(THERE)]);
        }
    }
}
