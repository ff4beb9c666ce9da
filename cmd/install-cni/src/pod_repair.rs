//! Starts the repair of broken pods.

use std::{collections::BTreeMap, sync::Arc};

use cni_types::run_dir;
use daemon_settings::DaemonSettings;
use firewall::{FirewallOptions, NativeTables};
use model::PodUid;
use repair::{InPlaceRepair, RepairController, RepairMetrics, RepairReport};
use tokio::sync::{mpsc::Sender, watch};
use tracing::warn;

use crate::{cluster, health::HealthProbe, supervise::restart_on_panic};

/// Starts the repair, if configured; runs until the process ends.
pub(crate) fn start(
    settings: &DaemonSettings,
    metrics: RepairMetrics,
    probe: HealthProbe,
    reports: Sender<RepairReport>,
    unstable: watch::Sender<BTreeMap<PodUid, u32>>,
) {
    let Some(options) = settings.repair.clone() else { return };
    let Some(connection) = settings.api.clone() else {
        warn!(target: "repair", "no API server is known (KUBERNETES_SERVICE_HOST); broken pods are not repaired");
        return;
    };
    let native = NativeTables::by_setting(settings.native_nftables);
    let lock_directory = Some(settings.debug_socket.with_file_name(run_dir::LOCKS));
    let firewall = FirewallOptions { native, lock_directory, ..FirewallOptions::default() };
    let (index, proc) = (Arc::clone(&settings.records), settings.host_proc.clone());
    let records = Arc::new(move || index.read_records());
    let in_place = InPlaceRepair { proc, firewall, existing: options.existing, records };
    tokio::spawn(async move {
        let client = cluster::connect_to_api(&connection).await;
        let controller = RepairController { client, options, in_place, metrics, reports, unstable };
        restart_on_panic("repair of broken pods", controller, move |controller| {
            let probe = probe.clone();
            Box::pin(async move {
                let excluded = || probe.installer.excluded_namespaces();
                controller.run(|| probe.installer_health().is_ok(), excluded).await;
            })
        })
        .await;
    });
}
