//! Prometheus metrics of the installer. Names and labels of the first two are Istio's.

use metrics::Labelled;
use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

use crate::InstallStep;

metrics::metric_set! {
    /// Metrics of the installer; clones share their values.
    pub struct InstallerMetrics, fn register_all() {
        installs: Labelled<Counter> = "istio_cni_installs",
            "Total number of CNI plugins installed by the Istio CNI installer";
        ready: Gauge = "istio_cni_install_ready",
            "Whether the CNI plugin installation is ready or not";
        restores: Labelled<Counter> = "istio_cni_restores",
            "Repairs of the plugin's installation, by cause";
        conflicts: Labelled<Counter> = "istio_cni_conflicts",
            "Conflicts with another program that keeps reverting the installation, by file";
        updates: Labelled<Counter> = "istio_cni_config_updates",
            "Changes of the plugin's configuration, by result: applied or refused";
        rotations: Counter = "istio_cni_token_rotations",
            "Rotations of the service account token, each written to the kubeconfig";
        polled: Gauge = "istio_cni_polled_directories",
            "Directories that are polled because the kernel cannot watch them";
        duration: Histogram = "istio_cni_install_duration_seconds",
            "Duration of an installation pass, in seconds",
            Histogram::new(DURATIONS);
    }
}

/// Upper bounds in seconds: a pass over untouched files takes under a millisecond, one on a slow disk seconds.
const DURATIONS: [f64; 9] = [0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0];

impl InstallerMetrics {
    /// Registers all metrics before the first pass, including the label values that alerts use, because Prometheus sees no increase
    /// in a series that did not exist before.
    pub fn register(registry: &mut Registry) -> InstallerMetrics {
        let metrics = InstallerMetrics::register_all(registry);
        for step in InstallStep::ALL {
            drop(metrics.installs.get_or_create(&[("result", failure_code(step))]));
            drop(metrics.conflicts.get_or_create(&[("file", step.as_str())]));
        }
        drop(metrics.updates.get_or_create(&[("result", "refused")]));
        metrics
    }

    pub(crate) fn count_failure(&self, step: InstallStep) {
        self.installs.get_or_create(&[("result", failure_code(step))]).inc();
    }

    pub(crate) fn set_ready(&self, ready: bool) {
        self.ready.set(i64::from(ready));
    }

    pub(crate) fn count_conflict(&self, file: &'static str) {
        self.conflicts.get_or_create(&[("file", file)]).inc();
    }

    pub(crate) fn count_update(&self, applied: bool) {
        let result = if applied { "applied" } else { "refused" };
        self.updates.get_or_create(&[("result", result)]).inc();
    }
}

const fn failure_code(step: InstallStep) -> &'static str {
    match step {
        InstallStep::Binaries => "COPY_BINARIES_FAILURE",
        InstallStep::Kubeconfig => "CREATE_KUBECONFIG_FAILURE",
        InstallStep::Conf => "CREATE_CNI_CONFIG_FAILURE",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_is_an_increase() {
        let mut registry = Registry::default();
        let metrics = InstallerMetrics::register(&mut registry);
        let samples = || {
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
            let is_alert = |line: &&str| {
                ["installs", "conflicts", "config_updates"]
                    .iter()
                    .any(|name| line.starts_with(&format!("istio_cni_{name}_total")))
            };
            let mut samples: Vec<String> = text.lines().filter(is_alert).map(str::to_owned).collect();
            samples.sort();
            samples
        };
        let all = [
            r#"istio_cni_config_updates_total{result="refused"}"#,
            r#"istio_cni_conflicts_total{file="binary"}"#,
            r#"istio_cni_conflicts_total{file="kubeconfig"}"#,
            r#"istio_cni_conflicts_total{file="network configuration"}"#,
            r#"istio_cni_installs_total{result="COPY_BINARIES_FAILURE"}"#,
            r#"istio_cni_installs_total{result="CREATE_CNI_CONFIG_FAILURE"}"#,
            r#"istio_cni_installs_total{result="CREATE_KUBECONFIG_FAILURE"}"#,
        ];
        assert_eq!(samples(), all.map(|sample| format!("{sample} 0")));
        metrics.count_update(false);
        InstallStep::ALL.into_iter().for_each(|step| {
            metrics.count_failure(step);
            metrics.count_conflict(step.as_str());
        });
        assert_eq!(samples(), all.map(|sample| format!("{sample} 1")));
    }
}
