//! Time of the next pass, and decisions on calls.

use std::sync::Mutex;

use enrolment::{AmbientStanding, WatchedCollection};
use pod_status::PodLife;
use prometheus_client::registry::Registry;

use super::*;
use crate::{MeshPodMetrics, SidecarsOnly};

/// Mode whose passes have this result, with the time at which a change by another component is to be observed, and whether a
/// request waits. The pod with UID `stuck` cannot be released.
struct TroubledMode(Result<Option<Reason>, Reason>, Arc<Mutex<Option<Instant>>>, bool);

impl CaptureMode for TroubledMode {
    fn reconcile(&mut self, _: &mut AgentState, _: ReconcileScope) -> Result<Option<Reason>, Reason> {
        if self.0.is_ok() {
            *self.1.lock().unwrap() = None;
        }
        self.0.clone()
    }

    fn is_awaited(&self) -> bool {
        self.2
    }

    fn enrol_pod(&mut self, _: &mut AgentState, _: PodEnrolment, _: CaptureReply) {}

    fn skip_pod(&mut self, _: &mut AgentState, _: &ContainerId, _: PodAttachment, _: CaptureReply) {}

    fn release_pod(
        &mut self,
        _: &mut AgentState,
        _: &ContainerId,
        gone: PodAttachment,
        _: bool,
    ) -> CaptureResult {
        if gone.uid.as_str() == "stuck" { Err(format!("{:?}", gone.ips).into()) } else { Ok(()) }
    }

    fn check_pod(&mut self, _: &mut AgentState, _: &PodUid, _: &[IpAddr], _: CaptureReply) {}

    fn next_wakeup(&self) -> Option<Instant> {
        *self.1.lock().unwrap()
    }
}

fn reconciler(mode: Box<dyn CaptureMode>) -> (Reconciler, Arc<AgentStatus>) {
    let (_, inbox) = ReconcilerInbox::new();
    let metrics = AgentMetrics::register(&mut Registry::default(), MeshPodMetrics::default());
    let status = Arc::new(AgentStatus::default());
    let policy = EnrolmentPolicy { ambient: true, ..EnrolmentPolicy::default() };
    let outputs = AgentOutputs {
        metrics,
        status: Arc::clone(&status),
        annotate: Box::new(drop),
        notify: Box::new(drop),
    };
    (Reconciler::new(mode, policy, inbox, outputs), status)
}

fn synchronize(reconciler: &mut Reconciler) {
    let fact = |fact| ReconcilerMessage::Fact(Box::new(fact), Instant::now());
    reconciler.handle_message(fact(Fact::Namespaces(Vec::new())));
    assert!(reconciler.due > Instant::now(), "pods are still missing");
    reconciler.handle_message(fact(Fact::Pods(Vec::new())));
    reconciler.reconcile_if_due();
}

#[test]
fn the_first_pass_comes_with_the_facts_whatever_failed_before() {
    let (mut reconciler, status) = reconciler(Box::new(SidecarsOnly));
    for failures in 1..=5 {
        reconciler.due = Instant::now();
        reconciler.reconcile_if_due();
        assert_eq!(reconciler.attempts.failure_count(), failures, "pods and namespaces are not known");
    }
    synchronize(&mut reconciler);
    assert_eq!((status.check_readiness(), reconciler.attempts.failure_count()), (Ok(()), 0));
}

#[test]
fn foreign_changes_are_observed_at_once_despite_a_problem_but_not_despite_an_error() {
    let why = || Reason::from("out of order");
    for (result, is_early) in [(Ok(Some(why())), true), (Err(why()), false)] {
        let drift = Arc::new(Mutex::new(None));
        let (mut reconciler, _) = reconciler(Box::new(TroubledMode(result, Arc::clone(&drift), false)));
        reconciler.due = Instant::now();
        reconciler.reconcile_if_due();
        synchronize(&mut reconciler);
        // Without a change, passes are repeated at the pace of the back-off.
        reconciler.due = Instant::now() + LAST_RETRY;
        let (due, failures) = (reconciler.due, reconciler.attempts.failure_count());
        reconciler.reconcile_if_due();
        assert_eq!((reconciler.next_wakeup(), reconciler.attempts.failure_count()), (due, failures));
        let noticed = Instant::now();
        *drift.lock().unwrap() = Some(noticed);
        assert_eq!(reconciler.next_wakeup(), if is_early { noticed } else { due });
        reconciler.reconcile_if_due();
        assert_eq!(drift.lock().unwrap().is_none(), is_early);
        // The full pass that is to end the problem comes as before.
        assert_eq!((reconciler.next_wakeup(), reconciler.attempts.failure_count()), (due, failures));
    }
}

#[test]
fn a_request_that_waits_is_attempted_soon_after_a_failure_but_not_without_a_pause() {
    let mode = TroubledMode(Err("out of order".into()), Arc::default(), true);
    let (mut reconciler, _) = reconciler(Box::new(mode));
    reconciler.reconcile_if_due();
    synchronize(&mut reconciler);
    let failures = reconciler.attempts.failure_count();
    let failed_at = Instant::now();
    (reconciler.failed_at, reconciler.due) = (Some(failed_at), failed_at + LAST_RETRY);
    assert_eq!(reconciler.next_wakeup(), failed_at + FIRST_RETRY);
    reconciler.reconcile_if_due();
    assert_eq!(reconciler.attempts.failure_count(), failures);
    reconciler.failed_at = failed_at.checked_sub(FIRST_RETRY);
    reconciler.reconcile_if_due();
    assert_eq!(reconciler.attempts.failure_count(), failures + 1);
}

#[test]
fn garbage_is_collected_past_a_container_that_cannot_be_released_which_the_next_call_tries_again() {
    let mode = TroubledMode(Ok(None), Arc::default(), false);
    let (mut reconciler, _) = reconciler(Box::new(mode));
    let ip = IpAddr::from([10, 1, 0, 1]);
    for (container, uid, ips) in [("a", "stuck", vec![ip]), ("b", "fine", vec![]), ("c", "listed", vec![])] {
        let attachment = PodAttachment { uid: uid.into(), ips, network: "net".to_owned() };
        reconciler.core.ledger.record_add(&container.into(), attachment);
    }
    let listed = BTreeSet::from(["c".into()]);
    for _ in 0..2 {
        assert_eq!(reconciler.collect_garbage("net", &listed), Err("[10.1.0.1]".into()));
        assert!(!reconciler.core.ledger.has_container(&"b".into()));
    }
    assert!(reconciler.core.ledger.has_container(&"c".into()));
    assert_eq!(reconciler.collect_garbage("other", &BTreeSet::new()), Ok(()));
}

fn web_pod() -> Pod {
    let mut pod = Pod::default();
    pod.metadata.namespace = "shop".to_owned();
    pod.metadata.name = "web".to_owned();
    pod.metadata.uid = "u1".into();
    pod
}

fn shop_namespace(mode: &str) -> Namespace {
    let mut namespace = Namespace::default();
    namespace.metadata.name = "shop".to_owned();
    namespace.metadata.labels.insert("istio.io/dataplane-mode".to_owned(), mode.to_owned());
    namespace
}

#[test]
fn passes_decide_by_the_namespace_that_an_add_was_decided_by_while_its_watch_fails() {
    for fails in [true, false] {
        let mode = TroubledMode(Ok(None), Arc::default(), false);
        let (mut reconciler, _) = reconciler(Box::new(mode));
        reconciler.reconcile_if_due();
        synchronize(&mut reconciler);
        let core = &mut reconciler.core;
        core.apply_fact(Fact::Namespace(Box::new(shop_namespace("none"))));
        core.apply_fact(Fact::Pod(Box::new(web_pod())));
        if fails {
            core.apply_fact(Fact::Watched(WatchedCollection::Namespaces, Err("refused".to_owned())));
        }
        let arrival = PodArrival {
            name: web_pod().name(),
            uid: "u1".into(),
            container: "c1".into(),
            ips: vec![IpAddr::from([10, 1, 0, 1])],
            network: String::new(),
            netns: None,
            deadline: Instant::now(),
            known: Some((Box::new(web_pod()), Some(shop_namespace("ambient")))),
            outdated: false,
        };
        let (reply, _answer) = mpsc::channel();
        let decided = reconciler.process_add(Box::new(arrival), reply).unwrap();
        assert!(decided.membership.is_ok());
        let standing = reconciler.core.pod_standing(&web_pod());
        assert_eq!(matches!(standing, AmbientStanding::Pending(_)), fails, "{standing:?}");
    }
}

#[test]
fn a_call_without_a_uid_is_about_no_pod_that_has_ended_or_is_about_to() {
    let (mut reconciler, _) = reconciler(Box::new(SidecarsOnly));
    let core = &mut reconciler.core;
    core.apply_fact(Fact::Namespace(Box::new(shop_namespace("ambient"))));
    let being_deleted = Some("2026-01-01T00:00:00Z");
    for (phase, deleted, is_meant) in
        [("Running", None, true), ("Failed", None, false), ("Running", being_deleted, false)]
    {
        let mut pod = web_pod();
        pod.status.phase = phase.to_owned();
        pod.metadata.deleted = deleted.map(str::to_owned);
        core.apply_fact(Fact::Pod(Box::new(pod)));
        let is_known = |uid: &str| core.find_known_pod(&web_pod().name(), &uid.into()).is_some();
        assert_eq!((is_known(""), is_known("u1")), (is_meant, true), "{phase} {deleted:?}");
    }
}

#[test]
fn a_pod_whose_last_sandbox_was_deleted_has_no_traffic_until_its_next_add() {
    let (mut reconciler, _) = reconciler(Box::new(TroubledMode(Ok(None), Arc::default(), false)));
    let mut pod = web_pod();
    pod.status.phase = "Running".to_owned();
    let ips = vec![IpAddr::from([10, 1, 0, 1])];
    let attachment = PodAttachment { uid: "u1".into(), ips, network: String::new() };
    reconciler.core.ledger.record_add(&"c1".into(), attachment.clone());
    assert_eq!(reconciler.core.pod_life(&pod), PodLife::Running);
    let end = SandboxEnd { name: pod.name(), container: "c1".into(), attachment, netns: None };
    assert_eq!(reconciler.release_container(end), Ok(()));
    for (shown, life) in [("10.1.0.1", PodLife::Ending), ("10.1.0.2", PodLife::Running)] {
        pod.status.pod_ip = shown.to_owned();
        assert_eq!(
            reconciler.core.pod_life(&pod),
            life,
            "the plugin may have enrolled another sandbox alone"
        );
    }
    reconciler.core.record_sandbox_start(&pod);
    assert_eq!(reconciler.core.pod_life(&pod), PodLife::Running);
}

/// UID of a static pod for the runtime.
const HASH: &str = "0123456789abcdef0123456789abcdef";

/// The end of a sandbox whose ADD is unknown.
fn sandbox_end(name: PodName) -> SandboxEnd {
    let ips = vec![IpAddr::from([10, 1, 0, 1])];
    let attachment = PodAttachment { uid: HASH.into(), ips, network: String::new() };
    SandboxEnd { name, container: "c1".into(), attachment, netns: None }
}

#[test]
fn the_end_of_a_static_pod_that_an_earlier_agent_added_is_that_of_the_pod_in_the_api() {
    let (mut reconciler, _) = reconciler(Box::new(TroubledMode(Ok(None), Arc::default(), false)));
    let mut pod = web_pod();
    pod.metadata.uid = "stuck".into();
    for annotation in [model::CONFIG_HASH, model::CONFIG_MIRROR] {
        pod.metadata.annotations.insert(annotation.to_owned(), HASH.to_owned());
    }
    reconciler.core.apply_fact(Fact::Pod(Box::new(pod.clone())));
    let other = PodName { name: "other".to_owned(), ..pod.name() };
    assert_eq!(reconciler.release_container(sandbox_end(other)), Ok(()));
    assert_eq!(reconciler.release_container(sandbox_end(pod.name())), Err("[10.1.0.1]".into()));
}
