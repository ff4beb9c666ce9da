//! Metrics of repair.

use std::time::Duration;

use metrics::{Labelled, Labels, histogram_family};
use prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram};

use crate::RepairMode;

metrics::metric_set! {
    /// Istio's counter of repairs, the number of broken pods, and our own metrics.
    pub struct RepairMetrics, pub fn register() {
        restored: Labelled<Counter> = "istio_cni_repair_sidecar_rules",
            "Running pods with a sidecar whose rules were missing: result is success, skip (dry run) or fail";
        drift: Labelled<Histogram> = "istio_cni_repair_sidecar_drift_seconds",
            "Time from when a change of a sidecar pod's network namespace was noticed to its repair, by what was changed",
            histogram_family(|| Histogram::new(DRIFT_DURATIONS));
        repaired: Family<Labels<2>, Counter> = "istio_cni_repair_pods_repaired",
            "Repairs of broken pods: type is delete, label or repair; result is success, skip or fail";
        broken: Gauge = "istio_cni_repair_broken_pods",
            "Pods of this node whose validation container has failed";
        watch_failures: Counter = "istio_cni_repair_watch_failures",
            "Errors of the watch of this node's pods; while it increases, no broken pod is found";
    }
}

/// Buckets from the duration of a repair to the interval of comparisons, in seconds.
const DRIFT_DURATIONS: [f64; 10] = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 30.0];

impl RepairMetrics {
    pub(crate) fn count_repair(&self, mode: &RepairMode, result: &'static str) {
        self.repaired.get_or_create(&[("type", mode.code()), ("result", result)]).inc();
    }

    pub(crate) fn drift_repaired(&self, kind: &'static str, took: Duration) {
        self.drift.get_or_create(&[("kind", kind)]).observe(took.as_secs_f64());
    }
}
