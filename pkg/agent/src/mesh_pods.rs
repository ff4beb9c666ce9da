//! Pods of the mesh by capture state, whatever redirects their traffic.

use std::collections::BTreeMap;

use pod_status::CaptureState;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge},
    registry::Registry,
};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MeshPodLabel {
    redirection: &'static str,
    state: &'static str,
}

/// `istio_cni_mesh_pods`; clones share their values. Until the first observation of a kind of pods it has no samples of it.
#[derive(Clone, Debug, Default)]
pub struct MeshPodMetrics(Family<MeshPodLabel, Gauge>);

impl MeshPodMetrics {
    /// Registers them.
    pub fn register(registry: &mut Registry) -> MeshPodMetrics {
        let metrics = MeshPodMetrics::default();
        let help = "Pods of this node that belong to the mesh or leave it, by redirection and capture state";
        registry.register("istio_cni_mesh_pods", help, metrics.0.clone());
        metrics
    }

    /// Sets how many pods are in each state; those outside of the mesh are not counted. `redirection`: `ambient` or `sidecar`.
    pub fn set(&self, redirection: &'static str, pods: impl IntoIterator<Item = CaptureState>) {
        let mut counts: BTreeMap<CaptureState, i64> = BTreeMap::new();
        for state in pods {
            *counts.entry(state).or_default() += 1;
        }
        for state in CaptureState::ALL.into_iter().filter(|state| *state != CaptureState::Outside) {
            let label = MeshPodLabel { redirection, state: state.word() };
            self.0.get_or_create(&label).set(counts.get(&state).copied().unwrap_or_default());
        }
    }
}
