//! The metrics of repair.

use std::time::Duration;

use metrics::{Labelled, Labels, MetricRegistry as _, gauge_value, histogram_family};
use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

use crate::RepairMode;

/// Istio's counter of repairs, and how many pods are broken now.
#[derive(Clone, Debug)]
pub struct RepairMetrics {
    repaired: Family<Labels<2>, Counter>,
    broken: Gauge,
    watch_failures: Counter,
    restored: Labelled<Counter>,
    drift: Labelled<Histogram>,
}

/// From what a repair takes to the period of the clock, in seconds.
const DRIFT_DURATIONS: [f64; 10] = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 30.0];

impl RepairMetrics {
    /// Registers them.
    #[must_use]
    pub fn register(registry: &mut Registry) -> RepairMetrics {
        let restored = registry.register_metric(
            "istio_cni_repair_sidecar_rules",
            "Running pods with a sidecar whose rules were missing: result is success, skip (dry run) or fail",
        );
        let drift = registry.metric_as(
            "istio_cni_repair_sidecar_drift_seconds",
            "Time from when a change of a sidecar pod's network namespace was noticed to its repair, by what was changed",
            histogram_family(|| Histogram::new(DRIFT_DURATIONS)),
        );
        RepairMetrics {
            repaired: registry.register_metric(
                "istio_cni_repair_pods_repaired",
                "Repairs of broken pods: type is delete, label or repair; result is success, skip or fail",
            ),
            broken: registry.register_metric(
                "istio_cni_repair_broken_pods",
                "Pods of this node whose validation container has failed",
            ),
            watch_failures: registry.register_metric(
                "istio_cni_repair_watch_failures",
                "Errors of the watch of this node's pods; while it increases, no broken pod is found",
            ),
            restored,
            drift,
        }
    }

    pub(crate) fn count_repair(&self, mode: &RepairMode, result: &'static str) {
        self.repaired.get_or_create(&[("type", mode.code()), ("result", result)]).inc();
    }

    pub(crate) fn count_restored(&self, result: &'static str) {
        self.restored.get_or_create(&[("result", result)]).inc();
    }

    pub(crate) fn drift_repaired(&self, kind: &'static str, took: Duration) {
        self.drift.get_or_create(&[("kind", kind)]).observe(took.as_secs_f64());
    }

    pub(crate) fn count_watch_failure(&self) {
        self.watch_failures.inc();
    }

    pub(crate) fn set_broken(&self, number: usize) {
        self.broken.set(gauge_value(number));
    }
}
