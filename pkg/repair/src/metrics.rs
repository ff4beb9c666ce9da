//! The metrics of repair.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

use std::time::Duration;

use crate::RepairMode;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RepairLabels {
    r#type: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RestoreLabels {
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DriftLabels {
    kind: &'static str,
}

/// Istio's counter of repairs, and how many pods are broken now.
#[derive(Clone, Debug)]
pub struct RepairMetrics {
    repaired: Family<RepairLabels, Counter>,
    broken: Gauge,
    restored: Family<RestoreLabels, Counter>,
    drift: Family<DriftLabels, Histogram, fn() -> Histogram>,
}

/// From what a repair takes to the period of the clock, in seconds.
const DRIFT_DURATIONS: [f64; 10] = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 30.0];

impl RepairMetrics {
    /// Registers them.
    #[must_use]
    pub fn register(registry: &mut Registry) -> RepairMetrics {
        let metrics = RepairMetrics {
            repaired: Family::default(),
            broken: Gauge::default(),
            restored: Family::default(),
            drift: Family::new_with_constructor((|| Histogram::new(DRIFT_DURATIONS)) as fn() -> Histogram),
        };
        let help = "Repairs of broken pods: type is delete, label or repair; result is success, skip or fail";
        registry.register("istio_cni_repair_pods_repaired", help, metrics.repaired.clone());
        let help = "Pods of this node whose validation container has failed";
        registry.register("istio_cni_repair_broken_pods", help, metrics.broken.clone());
        let help =
            "Running pods with a sidecar whose rules were missing: result is success, skip (dry run) or fail";
        registry.register("istio_cni_repair_sidecar_rules", help, metrics.restored.clone());
        let help = "Time from when a change of a sidecar pod's network namespace was noticed to its repair, by what was changed";
        registry.register("istio_cni_repair_sidecar_drift_seconds", help, metrics.drift.clone());
        metrics
    }

    pub(crate) fn count(&self, mode: &RepairMode, result: &'static str) {
        self.repaired.get_or_create(&RepairLabels { r#type: mode.code(), result }).inc();
    }

    pub(crate) fn rules(&self, result: &'static str) {
        self.restored.get_or_create(&RestoreLabels { result }).inc();
    }

    pub(crate) fn drift_repaired(&self, kind: &'static str, took: Duration) {
        self.drift.get_or_create(&DriftLabels { kind }).observe(took.as_secs_f64());
    }

    pub(crate) fn broken(&self, number: usize) {
        self.broken.set(i64::try_from(number).unwrap_or(i64::MAX));
    }
}
