//! The agent's Prometheus metrics.

use std::time::Duration;

use pod_status::CaptureState;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

use crate::mesh_pods::MeshPodMetrics;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct StateLabel {
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ReasonLabel {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct StepLabel {
    kind: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct SetFamily {
    family: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct EventLabel {
    r#type: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct PrivilegeLabel {
    privilege: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct PlaceLabel {
    place: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct DriftKindLabel {
    kind: &'static str,
}

/// Upper bounds in seconds, from a repair at once to one that waits for the clock.
const DRIFT_DURATIONS: [f64; 10] = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 40.0];

/// Upper bounds in seconds, from an enrolment to a tool that hangs.
pub(crate) const DURATIONS: [f64; 12] =
    [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.02, 0.05, 0.1, 0.3, 1.0, 3.0, 10.0];

/// The agent's metrics; clones share their values.
#[derive(Clone, Debug)]
pub struct AgentMetrics {
    mesh_pods: MeshPodMetrics,
    pods: Family<StateLabel, Gauge>,
    refused: Family<ReasonLabel, Gauge>,
    active: Gauge,
    switches: Counter,
    switching: Histogram,
    steps: Family<StepLabel, Counter>,
    doubted: Gauge,
    doubts: Counter,
    age: Gauge<f64, std::sync::atomic::AtomicU64>,
    members: Family<SetFamily, Gauge>,
    ready: Gauge,
    events: Family<EventLabel, Counter>,
    connected: Gauge,
    unsynced: Gauge,
    unknown_ztunnels: Gauge,
    repairs: Family<PlaceLabel, Counter>,
    drift: Family<DriftKindLabel, Histogram, fn() -> Histogram>,
    privileges: Family<PrivilegeLabel, Gauge>,
    overruled: Gauge,
    ambiguous: Gauge,
    outside: Gauge,
}

impl AgentMetrics {
    /// Registers everything but `mesh_pods`, so that it is there before the first pass.
    pub fn register(registry: &mut Registry, mesh_pods: MeshPodMetrics) -> AgentMetrics {
        let metrics = AgentMetrics {
            mesh_pods,
            pods: Family::default(),
            refused: Family::default(),
            active: Gauge::default(),
            switches: Counter::default(),
            switching: Histogram::new(DURATIONS),
            steps: Family::default(),
            doubted: Gauge::default(),
            doubts: Counter::default(),
            age: Gauge::default(),
            members: Family::default(),
            ready: Gauge::default(),
            events: Family::default(),
            connected: Gauge::default(),
            unsynced: Gauge::default(),
            unknown_ztunnels: Gauge::default(),
            repairs: Family::default(),
            drift: Family::new_with_constructor((|| Histogram::new(DRIFT_DURATIONS)) as fn() -> Histogram),
            privileges: Family::default(),
            overruled: Gauge::default(),
            ambiguous: Gauge::default(),
            outside: Gauge::default(),
        };
        let add = |name: &str, help: &str| (format!("istio_cni_ambient_{name}"), help.to_owned());
        let (name, help) =
            add("pods", "Pods of this node that belong to ambient mode, by whether the kernel captures them");
        registry.register(name, help, metrics.pods.clone());
        let (name, help) = add(
            "refused_pods",
            "Pods whose labels request ambient mode and that are not enrolled, by reason",
        );
        registry.register(name, help, metrics.refused.clone());
        let (name, help) = add("active_slot", "Slot of the ztunnel that accepts new connections, or -1");
        registry.register(name, help, metrics.active.clone());
        let (name, help) = add("ztunnel_switches", "Switches of new connections to another ztunnel");
        registry.register(name, help, metrics.switches.clone());
        let (name, help) =
            add("ztunnel_switch_seconds", "Duration of such a switch, from its first to its last step");
        registry.register(name, help, metrics.switching.clone());
        let (name, help) = add("plan_steps", "Steps applied to the node's network, by kind and result");
        registry.register(name, help, metrics.steps.clone());
        let (name, help) =
            add("queue_age_seconds", "Age of the oldest change that the last reconcile pass handled");
        registry.register(name, help, metrics.age.clone());
        let (name, help) = add(
            "doubted_objects",
            "Pods and namespaces that are kept although the API server's list lacks them or is older",
        );
        registry.register(name, help, metrics.doubted.clone());
        let (name, help) = add(
            "doubted",
            "Times that a pod or namespace was kept although the API server's list lacked it or was older",
        );
        registry.register(name, help, metrics.doubts.clone());
        let (name, help) = add("set_size", "Addresses in the node's sets");
        registry.register(name, help, metrics.members.clone());
        let (name, help) = add("ready", "Whether the last reconcile pass succeeded: 1 or 0");
        registry.register(name, help, metrics.ready.clone());
        let (name, help) = add("repairs", "Repairs of what other components changed or removed, by place");
        registry.register(name, help, metrics.repairs.clone());
        let (name, help) = add(
            "drift_repair_seconds",
            "Time from when a change by another component was noticed to its repair, by what was changed",
        );
        registry.register(name, help, metrics.drift.clone());
        let (name, help) = add(
            "unsynced_ztunnels",
            "Ztunnels that are connected and have not acknowledged their snapshot of pods",
        );
        registry.register(name, help, metrics.unsynced.clone());
        let (name, help) =
            add("unknown_ztunnels", "Connected ztunnels that run in none of the node's ztunnel pods");
        registry.register(name, help, metrics.unknown_ztunnels.clone());
        let (name, help) = add(
            "privileged_pods",
            "Pods with in-pod redirection, by what their strongest container may do in the pod's network namespace",
        );
        registry.register(name, help, metrics.privileges.clone());
        let (name, help) = add(
            "overruled_pods",
            "Captured pods in whose network namespace rules of another component precede ours, so that traffic bypasses the mesh",
        );
        registry.register(name, help, metrics.overruled.clone());
        let (name, help) = add(
            "ambiguous_pods",
            "Pods of ambient mode whose network namespace could not be determined, so that they are not captured",
        );
        registry.register(name, help, metrics.ambiguous.clone());
        let (name, help) = add(
            "outside_connections",
            "TCP connections that captured pods had when they joined, and that bypass ztunnel until they close",
        );
        registry.register(name, help, metrics.outside.clone());
        // Istio's own names.
        let help = "Pods that joined ambient mode, changed, or left it, with in-pod redirection";
        registry.register("nodeagent_reconcile_events", help, metrics.events.clone());
        registry.register("ztunnel_connected", "Connections from ztunnel", metrics.connected.clone());
        metrics.active.set(-1);
        metrics
    }

    /// A pod joined (`add`), changed (`update`) or left (`delete`) in-pod redirection.
    pub fn event(&self, kind: &'static str) {
        self.events.get_or_create(&EventLabel { r#type: kind }).inc();
    }

    /// How many ztunnels are connected, and how many of these have acknowledged their snapshot.
    pub fn ztunnels(&self, connected: usize, synced: usize) {
        let number = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.connected.set(number(connected));
        self.unsynced.set(number(connected.saturating_sub(synced)));
    }

    /// How many connected ztunnels run in none of the node's ztunnel pods.
    pub fn unknown_ztunnels(&self, count: usize) {
        self.unknown_ztunnels.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Drift was repaired that had been noticed this long ago; `kind`: what was changed.
    pub fn drift_repaired(&self, kind: &'static str, took: Duration) {
        self.drift.get_or_create(&DriftKindLabel { kind }).observe(took.as_secs_f64());
    }

    /// Drift was repaired; `place`: `node`, `pod` or `namespace`.
    pub fn repaired(&self, place: &'static str) {
        self.repairs.get_or_create(&PlaceLabel { place }).inc();
    }

    /// Enrolled pods that may bypass the mesh, by privilege; pods whose rules are overruled by those of other components; and
    /// connections that bypass ztunnel until they close.
    pub fn bypasses(
        &self,
        privileges: &std::collections::BTreeMap<model::NetworkPrivilege, usize>,
        overruled: usize,
        outside: usize,
    ) {
        let number = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        for privilege in model::NetworkPrivilege::ALL {
            let pods = privileges.get(&privilege).copied().unwrap_or_default();
            self.privileges.get_or_create(&PrivilegeLabel { privilege: privilege.word() }).set(number(pods));
        }
        self.overruled.set(number(overruled));
        self.outside.set(number(outside));
    }

    /// Pods whose network namespace could not be determined.
    pub fn ambiguous(&self, pods: usize) {
        self.ambiguous.set(i64::try_from(pods).unwrap_or(i64::MAX));
    }

    /// An operation on the kernel succeeded or failed.
    pub fn step(&self, kind: &'static str, done: bool) {
        let result = if done { "success" } else { "failure" };
        self.steps.get_or_create(&StepLabel { kind, result }).inc();
    }

    /// The slot that accepts new connections changed; `None`: none does.
    pub fn switched(&self, slot: Option<u32>, took: Duration) {
        self.active.set(slot.map_or(-1, i64::from));
        if slot.is_some() {
            self.switches.inc();
            self.switching.observe(took.as_secs_f64());
        }
    }

    pub(crate) fn age(&self, age: Duration) {
        self.age.set(age.as_secs_f64());
    }

    pub(crate) fn ready(&self, ready: bool) {
        self.ready.set(i64::from(ready));
    }

    /// Counts pods of ambient mode by state; of each, its namespace is given, too.
    pub(crate) fn capture_states<'a>(&self, pods: impl IntoIterator<Item = (&'a str, CaptureState)>) {
        self.mesh_pods.set("ambient", pods);
    }

    pub(crate) fn pods(&self, enrolled: usize, pending: usize) {
        let set = |state, number: usize| {
            let number = i64::try_from(number).unwrap_or(i64::MAX);
            self.pods.get_or_create(&StateLabel { state }).set(number);
        };
        set("enrolled", enrolled);
        set("pending", pending);
    }

    /// So many objects are doubted, of which so many were not before.
    pub(crate) fn doubted(&self, number: usize, new: usize) {
        self.doubted.set(i64::try_from(number).unwrap_or(i64::MAX));
        self.doubts.inc_by(u64::try_from(new).unwrap_or(u64::MAX));
    }

    pub(crate) fn refused(&self, reasons: &std::collections::BTreeMap<&'static str, usize>) {
        self.refused.clear();
        for (reason, number) in reasons {
            let number = i64::try_from(*number).unwrap_or(i64::MAX);
            self.refused.get_or_create(&ReasonLabel { reason }).set(number);
        }
    }

    /// How many addresses of a family are enrolled.
    pub fn set_size(&self, family: model::Family, number: usize) {
        let family = match family {
            model::Family::V4 => "ipv4",
            model::Family::V6 => "ipv6",
        };
        let number = i64::try_from(number).unwrap_or(i64::MAX);
        self.members.get_or_create(&SetFamily { family }).set(number);
    }
}
