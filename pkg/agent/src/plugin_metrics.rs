//! What the plugin asks the agent, with and without ambient mode.

use std::time::Duration;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};

use crate::metrics::DURATIONS;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResponseLabel {
    response_code: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabel {
    phase: &'static str,
}

/// Requests of plugins, ours and Istio's; clones share their values.
#[derive(Clone, Debug)]
pub struct PluginMetrics {
    requests: Family<ResponseLabel, Counter>,
    adds: Family<PhaseLabel, Histogram>,
}

impl Default for PluginMetrics {
    fn default() -> PluginMetrics {
        PluginMetrics {
            requests: Family::default(),
            adds: Family::new_with_constructor(|| Histogram::new(DURATIONS)),
        }
    }
}

impl PluginMetrics {
    /// Registers them.
    pub fn register(registry: &mut Registry) -> PluginMetrics {
        let metrics = PluginMetrics::default();
        let help = "Requests of the CNI plugin, ours or Istio's, by response status";
        registry.register("istio_cni_plugin_requests", help, metrics.requests.clone());
        let help = "Duration of the plugin's ADD requests, by phase";
        registry.register("istio_cni_ambient_add_seconds", help, metrics.adds.clone());
        metrics
    }

    /// A request was answered with this HTTP status, or what corresponds to it: 200 done, 400 not understood, 500 failed.
    pub fn answered(&self, response_code: u16) {
        self.requests.get_or_create(&ResponseLabel { response_code }).inc();
    }

    pub(crate) fn add(&self, phase: &'static str, took: Duration) {
        self.adds.get_or_create(&PhaseLabel { phase }).observe(took.as_secs_f64());
    }
}
