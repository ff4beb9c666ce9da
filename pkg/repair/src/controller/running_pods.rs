//! The rules of running pods with a sidecar: what was missing of them, and that it was restored.

use std::{collections::BTreeMap, sync::Arc};

use model::{PodName, PodUid};
use pod_identity::KnownPods;
use tracing::{info, warn};

use super::{RepairController, RepairEvent};
use crate::{
    rule_keeper::{RuleKeeper, RulesReport},
    sidecar_pods::SidecarPod,
};

impl RepairController {
    /// Restores what is missing of the rules of running pods.
    pub(super) async fn keep_rules(&mut self, all: KnownPods, pods: BTreeMap<PodUid, Arc<SidecarPod>>) {
        let new = || RuleKeeper::new(self.in_place.clone(), self.options.dry_run);
        let mut keeper = self.keeper.take().unwrap_or_else(new);
        let pass = tokio::task::spawn_blocking(move || {
            let reports = keeper.pass(&all, &pods).map_err(|error| error.to_string());
            (keeper, reports)
        });
        let reports = match pass.await {
            Ok((keeper, reports)) => {
                self.keeper = Some(keeper);
                reports
            }
            Err(error) => Err(format!("defect: {error}")),
        };
        match reports {
            Ok(reports) => {
                self.last_pass.clear();
                for report in reports {
                    self.report_rules(report).await;
                }
            }
            Err(error) if self.last_pass.replace(&error) => {
                warn!(target: "repair", error, "cannot compare the rules of running pods");
            }
            Err(_) => {}
        }
    }

    async fn report_rules(&self, report: RulesReport) {
        let RulesReport { name, uid, result } = report;
        let (PodName { namespace, name: pod }, dry_run) = (&name, self.options.dry_run);
        let (code, reason, message) = match result {
            Ok(missing) if dry_run => {
                let missing = missing.join("; ");
                info!(target: "repair", %namespace, %pod, %uid, missing, "dry run: rules of a running pod would be restored");
                ("skip", "RepairSkipped", format!("dry run: its rules would be restored: {missing}"))
            }
            Ok(missing) => {
                let missing = missing.join("; ");
                warn!(target: "repair", %namespace, %pod, %uid, missing, "rules of a running pod were missing and are restored");
                let message = format!(
                    "Rules that redirect its traffic to its sidecar were missing and have been restored: {missing}"
                );
                ("success", "SidecarRulesRestored", message)
            }
            Err(error) => {
                warn!(target: "repair", %namespace, %pod, %uid, error, "cannot restore the rules of a running pod");
                ("fail", "RepairFailed", format!("its rules cannot be compared and restored: {error}"))
            }
        };
        self.metrics.rules(code);
        self.publish(RepairEvent { name, uid, is_warning: true, reason, message }).await;
    }
}
