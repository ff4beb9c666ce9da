//! Time of the next pass.

use prometheus_client::registry::Registry;

use super::*;
use crate::{MeshPodMetrics, SidecarsOnly};

#[test]
fn the_first_pass_comes_with_the_facts_whatever_failed_before() {
    let (_handle, inbox) = ReconcilerInbox::new();
    let metrics = AgentMetrics::register(&mut Registry::default(), MeshPodMetrics::default());
    let status = Arc::new(AgentStatus::default());
    let policy = EnrolmentPolicy { ambient: true, ..EnrolmentPolicy::default() };
    let mode = Box::new(SidecarsOnly);
    let mut reconciler = Reconciler::new(
        mode,
        policy,
        inbox,
        AgentOutputs {
            metrics,
            status: Arc::clone(&status),
            annotate: Box::new(drop),
            notify: Box::new(drop),
        },
    );
    for failures in 1..=5 {
        reconciler.due = Instant::now();
        reconciler.reconcile_if_due();
        assert_eq!(reconciler.attempts.failure_count(), failures, "pods and namespaces are not known");
    }
    let fact = |fact| ReconcilerMessage::Fact(Box::new(fact), Instant::now());
    reconciler.handle_message(fact(Fact::Namespaces(Vec::new())));
    assert!(reconciler.due > Instant::now(), "pods are still missing");
    reconciler.handle_message(fact(Fact::Pods(Vec::new())));
    reconciler.reconcile_if_due();
    assert_eq!((status.check_readiness(), reconciler.attempts.failure_count()), (Ok(()), 0));
}
