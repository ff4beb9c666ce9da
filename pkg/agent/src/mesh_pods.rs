//! Metrics of mesh pods by capture state, for both kinds of redirection.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
};

use metrics::Labels;
use pod_status::CaptureState;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge},
    registry::Registry,
};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
struct NamespaceLabel {
    /// Named differently from `namespace`, which Prometheus sets to the agent's namespace.
    pod_namespace: String,
    redirection: &'static str,
    state: &'static str,
}

/// `istio_cni_mesh_pods`, and the same by namespace if configured; clones share their values. Until the first observation of a kind
/// of pods it has no samples.
#[derive(Clone, Debug, Default)]
pub struct MeshPodMetrics {
    pods: Family<Labels<2>, Gauge>,
    by_namespace: Option<NamespaceSeries>,
}

/// `istio_cni_mesh_pods_by_namespace`: a sample for each namespace and state of this node's pods.
#[derive(Clone, Debug, Default)]
struct NamespaceSeries {
    pods: Family<NamespaceLabel, Gauge>,
    labels: Arc<Mutex<BTreeSet<NamespaceLabel>>>,
}

impl MeshPodMetrics {
    /// Registers the metrics.
    pub fn register(registry: &mut Registry, by_namespace: bool) -> MeshPodMetrics {
        let pods = metrics::register(
            registry,
            "istio_cni_mesh_pods",
            "Pods of this node that belong to the mesh or leave it, by redirection and capture state",
            Family::default(),
        );
        let by_namespace = by_namespace.then(|| NamespaceSeries {
            pods: metrics::register(
                registry,
                "istio_cni_mesh_pods_by_namespace",
                "Pods of the mesh, and pods that leave it, by namespace, redirection and capture state",
                Family::default(),
            ),
            labels: Arc::default(),
        });
        MeshPodMetrics { pods, by_namespace }
    }

    /// Sets the number of pods in each state; those outside of the mesh are not counted. `redirection`: `ambient` or `sidecar`;
    /// `pods`: the namespace and state of each.
    pub fn set_pod_counts<'a>(
        &self,
        redirection: &'static str,
        pods: impl IntoIterator<Item = (&'a str, CaptureState)>,
    ) {
        let mut counts: BTreeMap<CaptureState, i64> = BTreeMap::new();
        let mut by_namespace: BTreeMap<NamespaceLabel, i64> = BTreeMap::new();
        for (namespace, state) in pods.into_iter().filter(|(_, state)| *state != CaptureState::Outside) {
            *counts.entry(state).or_default() += 1;
            if self.by_namespace.is_some() {
                let pod_namespace = namespace.to_owned();
                let label = NamespaceLabel { pod_namespace, redirection, state: state.as_str() };
                *by_namespace.entry(label).or_default() += 1;
            }
        }
        for state in CaptureState::WORST_FIRST.into_iter().filter(|state| *state != CaptureState::Outside) {
            let label = [("redirection", redirection), ("state", state.as_str())];
            self.pods.get_or_create(&label).set(counts.get(&state).copied().unwrap_or_default());
        }
        if let Some(series) = &self.by_namespace {
            series.replace_samples(redirection, by_namespace);
        }
    }
}

impl NamespaceSeries {
    /// Replaces all samples of this redirection: a namespace without pods has none.
    fn replace_samples(&self, redirection: &'static str, counts: BTreeMap<NamespaceLabel, i64>) {
        let mut labels = self.labels.lock().unwrap_or_else(PoisonError::into_inner);
        labels.retain(|label| {
            let stays = label.redirection != redirection || counts.contains_key(label);
            if !stays {
                let _ = self.pods.remove(label);
            }
            stays
        });
        for (label, count) in counts {
            self.pods.get_or_create(&label).set(count);
            let _ = labels.insert(label);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(registry: &Registry) -> Vec<String> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
        let mut lines: Vec<String> =
            text.lines().filter(|line| line.contains("_by_namespace{")).map(str::to_owned).collect();
        lines.sort();
        lines
    }

    #[test]
    fn namespaces_have_samples_only_if_asked_for_and_only_while_they_have_pods() {
        use CaptureState::{Bypassing, Captured, Outside};
        let mut registry = Registry::default();
        MeshPodMetrics::register(&mut registry, false).set_pod_counts("ambient", [("shop", Captured)]);
        assert!(shown(&registry).is_empty());
        let mut registry = Registry::default();
        let metrics = MeshPodMetrics::register(&mut registry, true);
        metrics.set_pod_counts(
            "ambient",
            [("shop", Captured), ("shop", Captured), ("shop", Bypassing), ("x", Outside)],
        );
        metrics.set_pod_counts("sidecar", [("old", Captured)]);
        let sample = |namespace: &str, redirection: &str, state: &str, count: i64| {
            format!(
                "istio_cni_mesh_pods_by_namespace{{pod_namespace=\"{namespace}\",redirection=\"{redirection}\",state=\"{state}\"}} {count}"
            )
        };
        let old = sample("old", "sidecar", "captured", 1);
        let ambient = |state, count| sample("shop", "ambient", state, count);
        assert_eq!(shown(&registry), [old.clone(), ambient("bypassing", 1), ambient("captured", 2)]);
        metrics.set_pod_counts("ambient", [("shop", Captured)]);
        assert_eq!(shown(&registry), [old, ambient("captured", 1)]);
        metrics.set_pod_counts("sidecar", []);
        metrics.set_pod_counts("ambient", []);
        assert!(shown(&registry).is_empty());
    }
}
