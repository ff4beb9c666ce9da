//! What Prometheus sees of the installer. Names and labels of the first two are Istio's.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

use crate::InstallStep;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ResultLabel {
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct CauseLabel {
    cause: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct FileLabel {
    file: &'static str,
}

/// The installer's metrics; clones count together.
#[derive(Clone, Debug)]
pub struct InstallerMetrics {
    installs: Family<ResultLabel, Counter>,
    ready: Gauge,
    restores: Family<CauseLabel, Counter>,
    conflicts: Family<FileLabel, Counter>,
    updates: Family<ResultLabel, Counter>,
    rotations: Counter,
    polled: Gauge,
    duration: Histogram,
}

/// Upper bounds in seconds: a pass over files that nobody touched takes under a millisecond, a slow disk seconds.
const DURATIONS: [f64; 9] = [0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0];

impl InstallerMetrics {
    /// Registers everything, so that it is there before the first pass.
    pub fn register(registry: &mut Registry) -> InstallerMetrics {
        let metrics = InstallerMetrics {
            installs: Family::default(),
            ready: Gauge::default(),
            restores: Family::default(),
            conflicts: Family::default(),
            updates: Family::default(),
            rotations: Counter::default(),
            polled: Gauge::default(),
            duration: Histogram::new(DURATIONS),
        };
        // The library adds the full stop of each help text, and `_total` to the name of each counter.
        registry.register(
            "istio_cni_installs",
            "Total number of CNI plugins installed by the Istio CNI installer",
            metrics.installs.clone(),
        );
        registry.register(
            "istio_cni_install_ready",
            "Whether the CNI plugin installation is ready or not",
            metrics.ready.clone(),
        );
        registry.register(
            "istio_cni_restores",
            "Repairs of the plugin's installation, by cause",
            metrics.restores.clone(),
        );
        registry.register(
            "istio_cni_conflicts",
            "Conflicts with another program that keeps reverting the installation, by file",
            metrics.conflicts.clone(),
        );
        registry.register(
            "istio_cni_config_updates",
            "Changes of the plugin's configuration, by result: applied or refused",
            metrics.updates.clone(),
        );
        registry.register(
            "istio_cni_token_rotations",
            "Rotations of the service account token, each written to the kubeconfig",
            metrics.rotations.clone(),
        );
        registry.register(
            "istio_cni_polled_directories",
            "Directories that are polled because the kernel cannot watch them",
            metrics.polled.clone(),
        );
        registry.register(
            "istio_cni_install_duration_seconds",
            "Duration of an installation pass, in seconds",
            metrics.duration.clone(),
        );
        metrics
    }

    pub(crate) fn installed(&self) {
        self.installs.get_or_create(&ResultLabel { result: "SUCCESS" }).inc();
    }

    pub(crate) fn failed(&self, step: InstallStep) {
        let result = match step {
            InstallStep::Binaries => "COPY_BINARIES_FAILURE",
            InstallStep::Kubeconfig => "CREATE_KUBECONFIG_FAILURE",
            InstallStep::Conf => "CREATE_CNI_CONFIG_FAILURE",
        };
        self.installs.get_or_create(&ResultLabel { result }).inc();
    }

    pub(crate) fn set_ready(&self, ready: bool) {
        self.ready.set(i64::from(ready));
    }

    pub(crate) fn restored(&self, cause: &'static str) {
        self.restores.get_or_create(&CauseLabel { cause }).inc();
    }

    pub(crate) fn conflict(&self, file: &'static str) {
        self.conflicts.get_or_create(&FileLabel { file }).inc();
    }

    pub(crate) fn update(&self, applied: bool) {
        let result = if applied { "applied" } else { "refused" };
        self.updates.get_or_create(&ResultLabel { result }).inc();
    }

    pub(crate) fn rotated(&self) {
        self.rotations.inc();
    }

    pub(crate) fn set_polled(&self, directories: usize) {
        self.polled.set(i64::try_from(directories).unwrap_or(i64::MAX));
    }

    pub(crate) fn took(&self, seconds: f64) {
        self.duration.observe(seconds);
    }
}
