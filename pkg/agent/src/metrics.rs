//! The agent's Prometheus metrics.

use std::time::Duration;

use metrics::{Labelled, Labels, gauge_value, histogram_family};
use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

use crate::{mesh_pods::MeshPodMetrics, watch_health::StaleCollection};

/// Upper bounds in seconds, from an immediate repair to one that waits for the interval.
const DRIFT_DURATIONS: [f64; 10] = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 40.0];

/// Upper bounds in seconds, from an enrolment to a tool that hangs.
pub(crate) const DURATIONS: [f64; 12] =
    [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.02, 0.05, 0.1, 0.3, 1.0, 3.0, 10.0];

metrics::metric_set! {
    /// The agent's metrics; clones share their values.
    pub struct AgentMetrics, fn register_all(mesh_pods: MeshPodMetrics) {
        watch_failures: Labelled<Gauge> = "istio_cni_ambient_watch_failure_seconds",
            "How long the watch of a resource has failed; no series for one that works";
        refused: Labelled<Gauge> = "istio_cni_ambient_refused_pods",
            "Pods whose labels request ambient mode and that are not enrolled, by reason";
        active: Gauge = "istio_cni_ambient_active_slot",
            "Slot of the ztunnel that accepts new connections, or -1";
        switches: Counter = "istio_cni_ambient_ztunnel_switches",
            "Switches of new connections to another ztunnel";
        switching: Histogram = "istio_cni_ambient_ztunnel_switch_seconds",
            "Duration of a switch to another ztunnel, from its first to its last step",
            Histogram::new(DURATIONS);
        steps: Family<Labels<2>, Counter> = "istio_cni_ambient_plan_steps",
            "Steps applied to the node's network, by kind and result";
        age: Gauge<f64, std::sync::atomic::AtomicU64> = "istio_cni_ambient_queue_age_seconds",
            "Age of the oldest change that the last reconcile pass handled";
        unconfirmed: Gauge = "istio_cni_ambient_unconfirmed_objects",
            "Pods and namespaces that are kept although the API server's list lacks them or is older";
        unconfirmed_total: Counter = "istio_cni_ambient_unconfirmed",
            "Times that a pod or namespace was kept although the API server's list lacked it or was older";
        members: Labelled<Gauge> = "istio_cni_ambient_set_size",
            "Addresses in the node's sets";
        ready: Gauge = "istio_cni_ambient_ready",
            "Whether the last reconcile pass succeeded: 1 or 0";
        repairs: Labelled<Counter> = "istio_cni_ambient_repairs",
            "Repairs of what other components changed or removed, by place";
        drift: Labelled<Histogram> = "istio_cni_ambient_drift_repair_seconds",
            "Time from when a change by another component was noticed to its repair, by what was changed",
            histogram_family(|| Histogram::new(DRIFT_DURATIONS));
        unsynced: Gauge = "istio_cni_ambient_unsynced_ztunnels",
            "Ztunnels that are connected and have not acknowledged their snapshot of pods";
        unknown_ztunnels: Gauge = "istio_cni_ambient_unknown_ztunnels",
            "Connected ztunnels that run in none of the node's ztunnel pods";
        privileges: Labelled<Gauge> = "istio_cni_ambient_privileged_pods",
            "Pods with in-pod capture, by what their most privileged container may do in the pod's network namespace";
        overruled: Gauge = "istio_cni_ambient_overruled_pods",
            "Captured pods of which rules of another component precede ours, in their network namespaces or on the node, so that traffic bypasses the mesh";
        ambiguous: Gauge = "istio_cni_ambient_ambiguous_pods",
            "Pods of ambient mode whose network namespace could not be determined, so that they are not captured";
        excepted: Gauge = "istio_cni_ambient_excepted_pods",
            "Captured pods of which some traffic stays outside of the mesh by intent, as annotations ask for it";
        bypassing: Gauge = "istio_cni_ambient_bypassing_connections",
            "TCP connections that captured pods had when they joined, and that bypass ztunnel until they close";
        events: Labelled<Counter> = "nodeagent_reconcile_events",
            "Pods that joined ambient mode, changed, or left it, with in-pod capture";
        connected: Gauge = "ztunnel_connected",
            "Connections from ztunnel";
    }
}

impl AgentMetrics {
    /// Registers all metrics but `mesh_pods`, before the first pass.
    pub fn register(registry: &mut Registry, mesh_pods: MeshPodMetrics) -> AgentMetrics {
        let metrics = AgentMetrics::register_all(registry, mesh_pods);
        metrics.active.set(-1);
        // For alerts: Prometheus sees no increase in a series that did not exist before.
        for place in ["namespace", "node", "pod"] {
            drop(metrics.repairs.get_or_create(&[("place", place)]));
        }
        metrics
    }

    /// Counts a pod that joined (`add`), changed (`update`) or left (`delete`) in-pod capture.
    pub fn count_pod_event(&self, kind: &'static str) {
        self.events.get_or_create(&[("type", kind)]).inc();
    }

    /// Sets the number of connected ztunnels, of those that have acknowledged their snapshot, and of those that run in none
    /// of the node's ztunnel pods.
    pub fn set_ztunnels(&self, connected: usize, synced: usize, unknown: usize) {
        self.connected.set(gauge_value(connected));
        self.unsynced.set(gauge_value(connected.saturating_sub(synced)));
        self.unknown_ztunnels.set(gauge_value(unknown));
    }

    /// Observes the time from detection to repair of drift; `kind`: the changed object.
    pub fn drift_repaired(&self, kind: &'static str, took: Duration) {
        self.drift.get_or_create(&[("kind", kind)]).observe(took.as_secs_f64());
    }

    /// Counts a repair of drift; `place`: `node`, `pod` or `namespace`.
    pub fn count_repair(&self, place: &'static str) {
        self.repairs.get_or_create(&[("place", place)]).inc();
    }

    /// Sets the numbers of enrolled pods that may bypass the mesh, by privilege; of pods whose rules are preceded by foreign ones;
    /// and of connections that bypass ztunnel until they close.
    pub fn set_bypasses(
        &self,
        privileges: &std::collections::BTreeMap<model::NetworkPrivilege, usize>,
        overruled: usize,
        outside: usize,
    ) {
        for privilege in model::NetworkPrivilege::ALL {
            let pods = privileges.get(&privilege).copied().unwrap_or_default();
            self.privileges.get_or_create(&[("privilege", privilege.as_str())]).set(gauge_value(pods));
        }
        self.set_overruled(overruled);
        self.bypassing.set(gauge_value(outside));
    }

    /// Sets the number of pods whose rules are preceded by foreign ones.
    pub fn set_overruled(&self, pods: usize) {
        self.overruled.set(gauge_value(pods));
    }

    /// Sets the number of pods with traffic excepted from capture.
    pub fn set_excepted_pods(&self, pods: usize) {
        self.excepted.set(gauge_value(pods));
    }

    /// Sets the number of pods whose network namespace could not be determined.
    pub fn set_ambiguous_pods(&self, pods: usize) {
        self.ambiguous.set(gauge_value(pods));
    }

    /// Counts an operation on the kernel, by success.
    pub fn count_operation(&self, kind: &'static str, done: bool) {
        let result = if done { "success" } else { "failure" };
        self.steps.get_or_create(&[("kind", kind), ("result", result)]).inc();
    }

    /// Records a change of the slot that accepts new connections; `None`: none does.
    pub fn record_switch(&self, slot: Option<u32>, took: Duration) {
        self.active.set(slot.map_or(-1, i64::from));
        if slot.is_some() {
            self.switches.inc();
            self.switching.observe(took.as_secs_f64());
        }
    }

    /// Records the number of unconfirmed objects, and of those that were confirmed before.
    pub(crate) fn record_unconfirmed(&self, number: usize, new: usize) {
        self.unconfirmed.set(gauge_value(number));
        self.unconfirmed_total.inc_by(u64::try_from(new).unwrap_or(u64::MAX));
    }

    pub(crate) fn set_refused_pods(&self, reasons: &std::collections::BTreeMap<&'static str, usize>) {
        self.refused.clear();
        for (reason, number) in reasons {
            let number = gauge_value(*number);
            self.refused.get_or_create(&[("reason", *reason)]).set(number);
        }
    }

    pub(crate) fn set_stale_collections(&self, all: &[StaleCollection]) {
        self.watch_failures.clear();
        for stale in all {
            let seconds = i64::try_from(stale.age.as_secs()).unwrap_or(i64::MAX);
            self.watch_failures.get_or_create(&[("resource", stale.collection.as_str())]).set(seconds);
        }
    }

    /// Sets the number of enrolled addresses of a family.
    pub fn set_size(&self, family: model::Family, number: usize) {
        let family = match family {
            model::Family::V4 => "ipv4",
            model::Family::V6 => "ipv6",
        };
        let number = gauge_value(number);
        self.members.get_or_create(&[("family", family)]).set(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_repair_is_an_increase() {
        let mut registry = Registry::default();
        drop(AgentMetrics::register(&mut registry, MeshPodMetrics::default()));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for place in ["namespace", "node", "pod"] {
            let sample = format!("istio_cni_ambient_repairs_total{{place=\"{place}\"}} 0\n");
            assert!(text.contains(&sample), "{text}");
        }
    }
}
