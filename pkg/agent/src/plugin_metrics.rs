//! Metrics of the plugin's requests, with and without ambient mode.

use std::time::Duration;

use metrics::{Labelled, histogram_family};
use prometheus_client::metrics::{counter::Counter, family::Family, histogram::Histogram};

use crate::metrics::DURATIONS;

metrics::metric_set! {
    /// Counter of requests by plugins, ours and Istio's; clones share their values.
    pub struct PluginMetrics, pub fn register() {
        requests: Family<[(&'static str, u16); 1], Counter> = "istio_cni_plugin_requests",
            "Requests of the CNI plugin, ours or Istio's, by response status";
        adds: Labelled<Histogram> = "istio_cni_ambient_add_seconds",
            "Duration of the plugin's ADD requests, by phase",
            histogram_family(|| Histogram::new(DURATIONS));
    }
}

impl PluginMetrics {
    /// Counts a response with this HTTP status, or its equivalent: 200 done, 400 invalid, 500 failed.
    pub fn count_response(&self, response_code: u16) {
        self.requests.get_or_create(&[("response_code", response_code)]).inc();
    }

    pub(crate) fn observe_add_phase(&self, phase: &'static str, took: Duration) {
        self.adds.get_or_create(&[("phase", phase)]).observe(took.as_secs_f64());
    }
}
