//! When a pass comes.

use prometheus_client::registry::Registry;

use super::*;
use crate::CaptureSnapshot;

/// A mode that has nothing to do.
struct Idle;

impl CaptureMode for Idle {
    fn reconcile(&mut self, _: &mut AgentState, _: ReconcileScope) -> Result<Option<Reason>, Reason> {
        Ok(None)
    }

    fn is_awaited(&self) -> bool {
        false
    }

    fn answer(&mut self, _: Option<&Reason>) {}

    fn enrol(&mut self, _: &mut AgentState, _: PodEnrolment, _: CaptureReply) {}

    fn skip(&mut self, _: &mut AgentState, _: &ContainerId, _: PodAttachment, _: CaptureReply) {}

    fn release(&mut self, _: &mut AgentState, _: &ContainerId, _: PodAttachment) -> CaptureResult {
        Ok(())
    }

    fn check(&mut self, _: &mut AgentState, _: &PodUid, _: &[IpAddr], _: CaptureReply) {}

    fn settle(&mut self) {}

    fn set_fallback(&mut self, _: ZtunnelFallback) -> bool {
        false
    }

    fn work_completed(&mut self, _: &mut AgentState) {}

    fn snapshot(&self) -> CaptureSnapshot {
        CaptureSnapshot::None
    }

    fn due(&self) -> Option<Instant> {
        None
    }
}

#[test]
fn the_first_pass_comes_with_the_facts_whatever_failed_before() {
    let (_handle, inbox) = ReconcilerInbox::new();
    let metrics = AgentMetrics::register(&mut Registry::default());
    let status = Arc::new(AgentStatus::default());
    let policy = EnrolmentPolicy { ambient: true, ..EnrolmentPolicy::default() };
    let mode = Box::new(Idle);
    let mut reconciler =
        Reconciler::new(mode, policy, inbox, metrics, Arc::clone(&status), Box::new(drop), Box::new(drop));
    for failures in 1..=5 {
        reconciler.due = Instant::now();
        reconciler.reconcile_if_due();
        assert_eq!(reconciler.attempts.failures(), failures, "pods and namespaces are not known");
    }
    let fact = |fact| ReconcilerMessage::Fact(Box::new(fact), Instant::now());
    reconciler.take(fact(Fact::Namespaces(Vec::new())));
    assert!(reconciler.due > Instant::now(), "pods are still missing");
    reconciler.take(fact(Fact::Pods(Vec::new())));
    reconciler.reconcile_if_due();
    assert_eq!((status.ready(), reconciler.attempts.failures()), (Ok(()), 0));
}
