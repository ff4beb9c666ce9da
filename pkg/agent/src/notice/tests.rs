//! Reports about a pod, depending on its earlier states.

use std::sync::mpsc;

use enrolment::EnrolmentReason;

use super::*;

struct Desk {
    notices: NoticeTracker,
    said: mpsc::Receiver<Notice>,
    start: Instant,
}

/// A pod's standing, and its observed status.
type Look = (AmbientStanding, CaptureStatus);
/// A case: at each second the observation, and the reasons that are then reported.
type Row<'a, T> = (&'a str, &'a [(u64, T, &'a [&'a str])]);

fn pod(name: &str, phase: &str) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.namespace = "shop".to_owned();
    pod.metadata.name = name.to_owned();
    pod.metadata.uid = format!("uid-{name}").into();
    pod.status.phase = phase.to_owned();
    pod
}

fn shown_life(pod: &Pod) -> PodLife {
    if pod.status.phase == "Running" { PodLife::Running } else { PodLife::Starting }
}

fn member(is: CaptureStatus) -> Look {
    (AmbientStanding::Member { reason: EnrolmentReason::NamespaceLabel, ips: vec![] }, is)
}

fn out(reason: SkipReason) -> Look {
    (AmbientStanding::Out(reason), Evidence::OUTSIDE.classify())
}

const CAPTURED: CaptureStatus =
    CaptureStatus { state: CaptureState::Captured, annotation: Some(Redirection::Enabled) };
const HELD: CaptureStatus =
    CaptureStatus { state: CaptureState::Held, annotation: Some(Redirection::Pending) };
const BYPASSING: CaptureStatus =
    CaptureStatus { state: CaptureState::Bypassing, annotation: Some(Redirection::None) };
const LEAVING: CaptureStatus = CaptureStatus { state: CaptureState::Leaving, annotation: None };
const UNKNOWN: CaptureStatus = CaptureStatus { state: CaptureState::Unknown, annotation: None };
const STARTING: CaptureStatus = CaptureStatus { state: CaptureState::Pending, annotation: None };

impl Desk {
    fn new() -> Desk {
        let (tell, said) = mpsc::channel();
        let notify = Box::new(move |notice| drop(tell.send(notice)));
        Desk { notices: NoticeTracker::new(notify), said, start: Instant::now() }
    }

    fn at(&self, second: u64) -> Instant {
        self.start + Duration::from_secs(second)
    }

    /// Runs one pass over one pod; returns the reported reasons.
    fn turn(&mut self, second: u64, pod: &Pod, look: &Look) -> Vec<&'static str> {
        self.observe_life(second, pod, shown_life(pod), look)
    }

    fn observe_life(
        &mut self,
        second: u64,
        pod: &Pod,
        life: PodLife,
        (standing, is): &Look,
    ) -> Vec<&'static str> {
        let now = self.at(second);
        self.notices.observe_pod(pod, life, standing, *is, || "a tool failed".to_owned(), now);
        self.notices.retain_pods(|uid| *uid == pod.metadata.uid);
        self.reasons(second)
    }

    /// Runs a failing pass over these pods.
    fn fail(&mut self, second: u64, looks: &[(&Pod, Look)]) {
        for (pod, look) in looks {
            let now = self.at(second);
            self.notices.observe_failure(pod, shown_life(pod), &look.0, "no tool", now);
        }
        self.notices.retain_pods(|uid| looks.iter().any(|(pod, _)| pod.metadata.uid == *uid));
    }

    fn reasons(&mut self, second: u64) -> Vec<&'static str> {
        self.all(second).iter().map(|notice| notice.reason).collect()
    }

    fn all(&mut self, second: u64) -> Vec<Notice> {
        self.notices.report_due(self.at(second));
        self.said.try_iter().collect()
    }
}

#[test]
fn changes_of_a_running_pod_are_told_once() {
    let nothing: &[&str] = &[];
    let table: [Row<'_, Look>; 12] = [
        (
            "not observed for a while",
            &[
                (0, member(UNKNOWN), nothing),
                (11, member(UNKNOWN), nothing),
                (12, member(CAPTURED), nothing),
                (13, member(BYPASSING), nothing),
            ],
        ),
        (
            "not observed between two failed passes",
            &[
                (0, member(BYPASSING), nothing),
                (10, member(BYPASSING), &["BypassesMesh"]),
                (11, member(UNKNOWN), nothing),
                (12, member(BYPASSING), nothing),
                (25, member(BYPASSING), nothing),
            ],
        ),
        (
            "captured from its start on",
            &[
                (0, member(STARTING), nothing),
                (1, member(CAPTURED), nothing),
                (99, member(CAPTURED), nothing),
            ],
        ),
        (
            "labelled while it runs, and back",
            &[
                (0, out(SkipReason::NotLabelled), nothing),
                (1, member(STARTING), nothing),
                (2, member(CAPTURED), &["JoinedMesh"]),
                (3, member(CAPTURED), nothing),
                (4, (AmbientStanding::Out(SkipReason::NotLabelled), LEAVING), nothing),
                (5, out(SkipReason::NotLabelled), &["ReleasedFromMesh"]),
                (6, out(SkipReason::NotLabelled), nothing),
            ],
        ),
        (
            "opted out while it runs",
            &[
                (0, member(CAPTURED), nothing),
                (1, out(SkipReason::OptedOut), &["ReleasedFromMesh"]),
                (2, out(SkipReason::OptedOut), nothing),
            ],
        ),
        (
            "refused for one reason, and then for another",
            &[
                (0, out(SkipReason::HostNetwork), &["RefusedByMesh"]),
                (1, out(SkipReason::HostNetwork), nothing),
                (2, out(SkipReason::HasSidecar), &["RefusedByMesh"]),
                (3, out(SkipReason::HasSidecar), nothing),
            ],
        ),
        (
            "kept out for reasons that nobody wants to hear of",
            &[
                (0, out(SkipReason::NotLabelled), nothing),
                (1, out(SkipReason::PodLabelNone), nothing),
                (2, out(SkipReason::NotSelected), nothing),
                (3, out(SkipReason::ExcludedNamespace), nothing),
                (4, out(SkipReason::AgentPod), nothing),
                (5, out(SkipReason::Ztunnel), nothing),
                (6, out(SkipReason::NamespaceUnknown), nothing),
                (7, out(SkipReason::Terminated), nothing),
            ],
        ),
        (
            "bypassing for ten seconds, said again after half an hour, and captured then",
            &[
                (0, member(BYPASSING), nothing),
                (9, member(STARTING), nothing),
                (10, member(BYPASSING), &["BypassesMesh"]),
                (11, member(BYPASSING), nothing),
                (1809, member(BYPASSING), nothing),
                (1810, member(BYPASSING), &["BypassesMesh"]),
                (1811, member(CAPTURED), &["JoinedMesh"]),
            ],
        ),
        (
            "not taken by ztunnel, and then not led there any more",
            &[
                (0, member(HELD), nothing),
                (10, member(HELD), &["CaptureFailed"]),
                (20, member(BYPASSING), nothing),
                (29, member(BYPASSING), nothing),
                (30, member(BYPASSING), &["BypassesMesh"]),
            ],
        ),
        (
            "captured just in time",
            &[
                (0, member(BYPASSING), nothing),
                (9, member(CAPTURED), nothing),
                (15, member(BYPASSING), nothing),
                (24, member(CAPTURED), nothing),
            ],
        ),
        (
            "released while it was missing",
            &[
                (0, member(BYPASSING), nothing),
                (5, out(SkipReason::NotLabelled), nothing),
                (30, out(SkipReason::NotLabelled), nothing),
            ],
        ),
        (
            "its namespace is not known for a moment",
            &[
                (0, member(CAPTURED), nothing),
                (1, out(SkipReason::NamespaceUnknown), nothing),
                (2, member(CAPTURED), nothing),
            ],
        ),
    ];
    for (what, looks) in table {
        let mut desk = Desk::new();
        for (second, look, expected) in looks {
            assert_eq!(desk.turn(*second, &pod("web", "Running"), look), *expected, "{what}: {second}");
        }
    }
}

#[test]
fn pods_that_start_or_end_are_not_told_of() {
    let mut desk = Desk::new();
    for second in [0, 60] {
        assert_eq!(desk.turn(second, &pod("web", "Pending"), &member(BYPASSING)), [""; 0]);
    }
    assert_eq!(desk.turn(61, &pod("web", "Running"), &member(CAPTURED)), [""; 0]);
    assert_eq!(
        desk.turn(61, &pod("web", "Pending"), &out(SkipReason::NotLabelled)),
        [""; 0],
        "it does not run yet"
    );
    let mut leaving = pod("web", "Running");
    leaving.metadata.deleted = Some("2026-01-01T00:00:00Z".to_owned());
    for ended in [leaving, pod("web", "Succeeded"), pod("web", "Failed")] {
        assert_eq!(desk.turn(62, &pod("web", "Running"), &member(CAPTURED)), [""; 0]);
        assert_eq!(desk.turn(63, &ended, &out(SkipReason::NotLabelled)), [""; 0], "{ended:?}");
        assert_eq!(desk.turn(64, &ended, &out(SkipReason::HostNetwork)), [""; 0], "{ended:?}");
        assert!(desk.notices.pods.is_empty(), "nothing is remembered of it");
    }
}

#[test]
fn a_notice_says_of_whom_and_why() {
    let mut desk = Desk::new();
    desk.turn(0, &pod("web", "Running"), &member(BYPASSING));
    let [notice] = &desk.all(10)[..] else { panic!("one") };
    let name = PodName { namespace: "shop".to_owned(), name: "web".to_owned() };
    assert_eq!(notice.about, EventSubject::Pod { name, uid: "uid-web".into() });
    assert_eq!(notice.level, EventLevel::Warning);
    assert_eq!(
        notice.message,
        "The pod should be captured and is not: its traffic may bypass the mesh: a tool failed. Run `install-cni explain \
         shop/web` on the node for details."
    );
}

#[test]
fn after_a_failed_turn_only_those_count_as_missing_that_were_not_captured() {
    let mut desk = Desk::new();
    let [captured, new, plain] = ["captured", "new", "plain"].map(|name| pod(name, "Running"));
    desk.turn(0, &captured, &member(CAPTURED));
    let looks =
        [(&captured, member(STARTING)), (&new, member(STARTING)), (&plain, out(SkipReason::NotLabelled))];
    desk.fail(1, &looks);
    desk.fail(2, &looks);
    assert_eq!(desk.notices.next_wakeup(), Some(desk.at(11)));
    let [notice] = &desk.all(11)[..] else { panic!("one") };
    assert_eq!(notice.reason, "BypassesMesh");
    assert!(notice.message.contains("no tool"), "{}", notice.message);
    // The earlier capture is remembered.
    assert_eq!(desk.turn(12, &captured, &out(SkipReason::NotLabelled)), ["ReleasedFromMesh"]);
}

#[test]
fn of_a_pod_that_goes_while_all_turns_fail_nothing_is_said() {
    let mut desk = Desk::new();
    let [new, gone] = ["new", "gone"].map(|name| pod(name, "Running"));
    desk.fail(0, &[(&new, member(STARTING)), (&gone, member(STARTING))]);
    desk.fail(5, &[(&new, member(STARTING))]);
    let told: Vec<_> = desk.all(10).into_iter().map(|notice| notice.about).collect();
    let name = PodName { namespace: "shop".to_owned(), name: "new".to_owned() };
    assert_eq!(told, [EventSubject::Pod { name, uid: "uid-new".into() }]);
}

#[test]
fn a_ztunnel_that_was_there_and_has_no_successor_in_time_is_told_of() {
    let nothing: &[&str] = &[];
    let table: [Row<'_, bool>; 4] = [
        ("never there", &[(0, false, nothing), (99, false, nothing), (100, true, nothing)]),
        ("replaced", &[(0, true, nothing), (1, false, nothing), (10, true, nothing), (99, true, nothing)]),
        (
            "gone, and back",
            &[
                (0, true, nothing),
                (1, false, nothing),
                (5, false, nothing),
                (11, false, &["NoZtunnel"]),
                (99, false, nothing),
                (100, true, &["ZtunnelReady"]),
            ],
        ),
        (
            "gone twice",
            &[
                (0, true, nothing),
                (1, false, nothing),
                (11, false, &["NoZtunnel"]),
                (12, true, &["ZtunnelReady"]),
                (13, false, nothing),
                (23, false, &["NoZtunnel"]),
            ],
        ),
    ];
    for (what, looks) in table {
        let mut desk = Desk::new();
        for (second, there, expected) in looks {
            desk.notices.observe_ztunnel(*there, "traffic is held", desk.at(*second));
            assert_eq!(desk.reasons(*second), *expected, "{what}: {second}");
        }
    }
}

#[test]
fn an_unknown_ztunnel_is_reported_once_unless_its_pod_becomes_known_in_time() {
    let nothing: &[&str] = &[];
    let table: [Row<'_, usize>; 3] = [
        ("none", &[(0, 0, nothing), (99, 0, nothing)]),
        ("its pod's address came late", &[(0, 1, nothing), (9, 0, nothing), (99, 0, nothing)]),
        (
            "twice",
            &[
                (0, 1, nothing),
                (5, 2, nothing),
                (10, 2, &["UnknownZtunnel"]),
                (99, 1, nothing),
                (100, 0, nothing),
                (101, 1, nothing),
                (111, 1, &["UnknownZtunnel"]),
            ],
        ),
    ];
    for (what, looks) in table {
        let mut desk = Desk::new();
        for (second, count, expected) in looks {
            desk.notices.unknown_ztunnels(*count, desk.at(*second));
            assert_eq!(desk.reasons(*second), *expected, "{what}: {second}");
        }
    }
}

#[test]
fn a_repair_is_told_about_the_agent() {
    let mut desk = Desk::new();
    desk.notices
        .report_repair("traffic of shop/web to ztunnel", &["a rule".to_owned(), "a route".to_owned()]);
    let [notice] = &desk.all(0)[..] else { panic!("one") };
    assert_eq!((&notice.about, notice.reason), (&NODE, "DriftRepaired"));
    assert_eq!(
        notice.message,
        "Rules that redirect traffic of shop/web to ztunnel were changed externally and have been restored: a rule; a route."
    );
}

#[test]
fn pods_that_bypass_or_could_are_told_of_once_and_bypasses_again_after_half_an_hour() {
    use model::NetworkPrivilege::{NetAdmin, NetRaw, None, Privileged, RuntimeDefault};
    let mut desk = Desk::new();
    let pod = pod("web", "Running");
    let (name, uid) = (pod.name(), pod.metadata.uid);
    for (privilege, told) in [
        (None, false),
        (RuntimeDefault, false),
        (NetRaw, false),
        (NetAdmin, true),
        (NetAdmin, false),
        (Privileged, true),
    ] {
        desk.notices.can_bypass(&name, &uid, privilege);
        assert_eq!(desk.said.try_iter().count(), usize::from(told), "{privilege:?}");
    }
    let long = "x".repeat(5000);
    for (second, what, told) in [
        (0, "", false),
        (1, "a rule", true),
        (40, "a rule", false),
        (80, &long, true),
        (1879, &long, false),
        (1881, &long, true),
        (1900, "", false),
        (1940, "a rule", true),
    ] {
        desk.notices.report_overruled(
            &name,
            &uid,
            (RulesPlace::Pod, what),
            desk.start + Duration::from_secs(second),
        );
        let said: Vec<Notice> = desk.said.try_iter().collect();
        assert_eq!(said.len(), usize::from(told), "{second}");
        assert!(said.iter().all(|notice| notice.reason == "CaptureOverruled" && notice.message.len() < 1024));
    }
    for (second, told) in [(0, true), (40, false), (1799, false), (1801, true), (1802, false)] {
        desk.notices.report_unstable(
            &name,
            &uid,
            (&long, Option::None),
            3,
            desk.start + Duration::from_secs(second),
        );
        let said: Vec<Notice> = desk.said.try_iter().collect();
        assert_eq!(said.len(), usize::from(told), "{second}");
        assert!(said.iter().all(|notice| notice.reason == "CaptureUnstable" && notice.message.len() < 1024));
        desk.notices.clear_unstable(&uid);
    }
    desk.notices.forget_bypasses(|_| false);
    desk.notices.can_bypass(&name, &uid, Privileged);
    assert_eq!(desk.said.try_iter().count(), 1);
}

#[test]
fn a_refused_exception_is_told_of_once_and_again_when_it_is_another_one() {
    let mut desk = Desk::new();
    let pod = pod("web", "Running");
    let (name, uid) = (pod.name(), pod.metadata.uid);
    for (refused, told) in
        [("", false), ("one", true), ("one", false), ("two", true), ("", false), ("two", true)]
    {
        let refused: Vec<String> = refused.split_terminator(' ').map(|one| one.repeat(1000)).collect();
        desk.notices.refused_exceptions(&name, &uid, &refused);
        let said: Vec<Notice> = desk.said.try_iter().collect();
        assert_eq!(said.len(), usize::from(told), "{refused:.20?}");
        assert!(said.iter().all(|notice| notice.reason == "ExceptionRefused" && notice.message.len() < 1024));
    }
}

#[test]
fn a_pod_whose_rules_are_removed_repeatedly_has_no_other_event_for_it() {
    const UNSTABLE: CaptureStatus =
        CaptureStatus { state: CaptureState::Pending, annotation: Some(Redirection::Pending) };
    let mut desk = Desk::new();
    let pod = pod("web", "Running");
    assert_eq!(desk.turn(0, &pod, &member(CAPTURED)), [""; 0]);
    desk.notices.report_unstable(
        &pod.name(),
        &pod.metadata.uid,
        ("a rule", Some("nft (process 7)")),
        1,
        desk.at(40),
    );
    let notice = desk.said.try_recv().unwrap();
    assert!(notice.message.contains("restored once: a rule; changed by nft (process 7). Its"), "{notice:?}");
    assert_eq!(desk.turn(41, &pod, &member(UNSTABLE)), [""; 0]);
    assert_eq!(desk.turn(60, &pod, &member(UNSTABLE)), [""; 0]);
    desk.notices.clear_unstable(&pod.metadata.uid);
    assert_eq!(desk.turn(70, &pod, &member(CAPTURED)), [""; 0]);
}

#[test]
fn a_pod_without_a_sandbox_bypasses_nothing() {
    let (mut desk, web) = (Desk::new(), pod("web", "Running"));
    assert_eq!(desk.turn(0, &web, &member(BYPASSING)), [""; 0]);
    assert_eq!(desk.observe_life(5, &web, PodLife::Ending, &member(STARTING)), [""; 0]);
    assert_eq!(desk.reasons(60), [""; 0]);
    let _ = desk.turn(60, &web, &member(BYPASSING));
    assert_eq!(desk.reasons(75), ["BypassesMesh"], "it has another one");
}
