//! Rules of running pods with a sidecar: comparing and restoring them.

use std::{collections::BTreeMap, time::Duration};

use futures_util::{future::BoxFuture, stream::FuturesUnordered};
use model::{EventLevel, PodName, PodUid};
use netns_changes::{ChangeWatcher, NetnsDisturbance};
use pod_status::lifecycle::{UNDONE, UNSTABLE, describe_conflict, writer_clause};
use retry::LastError;
use tokio::{task::JoinError, time::Instant};
use tracing::{debug, info, warn};

use super::{RepairController, RepairReport, RepairedPod};
use crate::{
    sidecar_pods::SidecarPods,
    sidecar_rules::{Compared, RulesReport, SidecarRuleReconciler},
};

/// State of the rules of running pods.
#[derive(Default)]
pub(super) struct KeptRules {
    /// `None` before the first pass, and after a panic.
    reconciler: Option<SidecarRuleReconciler>,
    last_pass: LastError,
    /// Running comparisons.
    pub(super) running: FuturesUnordered<BoxFuture<'static, (PodUid, Result<Compared, JoinError>)>>,
}

impl KeptRules {
    /// Returns when rules are to be compared without a change, because they were restored before.
    pub(super) fn next_recheck(&self) -> Option<Instant> {
        self.reconciler.as_ref()?.next_recheck().map(Instant::from_std)
    }

    /// Queues comparisons of the rules of pods whose network namespaces changed, or that are due.
    pub(super) fn compare_changed(&mut self, changed: BTreeMap<PodUid, NetnsDisturbance>) {
        if let Some(reconciler) = &mut self.reconciler {
            reconciler.compare_changed(changed);
        }
    }

    /// Starts the comparisons that may start now.
    pub(super) fn start_comparisons(&mut self, pods: &SidecarPods) {
        let Some(reconciler) = &mut self.reconciler else { return };
        while let Some(comparison) = reconciler.next_comparison(pods) {
            let uid = comparison.uid.clone();
            let compared = tokio::task::spawn_blocking(move || comparison.run());
            self.running.push(Box::pin(async move { (uid, compared.await) }));
        }
    }
}

impl RepairController {
    /// Searches for running pods, so that later changes of their rules are noticed, and queues comparisons of the rules
    /// of all, or of `only_new` ones.
    pub(super) async fn keep_rules(
        &self,
        rules: &mut KeptRules,
        pods: &SidecarPods,
        watcher: Option<ChangeWatcher<PodUid>>,
        only_new: bool,
    ) {
        let (all, pods) = (pods.known_pods(), pods.all_pods());
        let new = || SidecarRuleReconciler::new(self.in_place.clone(), self.options.dry_run);
        let mut reconciler = rules.reconciler.take().unwrap_or_else(new);
        reconciler.watcher = watcher;
        let pass = tokio::task::spawn_blocking(move || {
            let reports = reconciler.pass(&all, &pods, only_new).map_err(|error| error.to_string());
            (reconciler, reports)
        });
        let reports = match pass.await {
            Ok((reconciler, reports)) => {
                self.unstable.send_replace(reconciler.unstable_pods());
                rules.reconciler = Some(reconciler);
                reports
            }
            Err(error) => Err(format!("defect: {error}")),
        };
        match reports {
            Ok(reports) => {
                rules.last_pass.clear();
                for report in reports {
                    self.report_rules(report).await;
                }
            }
            Err(error) if rules.last_pass.replace(&error) => {
                warn!(target: "repair", error, "cannot compare the rules of running pods");
            }
            Err(_) => {}
        }
    }

    /// Handles the result of a comparison.
    pub(super) async fn finish_comparison(
        &self,
        rules: &mut KeptRules,
        (uid, compared): (PodUid, Result<Compared, JoinError>),
    ) {
        let Some(reconciler) = &mut rules.reconciler else { return };
        if let Err(error) = &compared {
            warn!(target: "repair", %uid, %error, "defect: cannot compare the rules of a running pod");
        }
        let report = reconciler.finish_comparison(&uid, compared.ok());
        let now = reconciler.unstable_pods();
        self.unstable.send_if_modified(|unstable| {
            let is_other = *unstable != now;
            *unstable = now;
            is_other
        });
        if let Some(report) = report {
            self.report_rules(report).await;
        }
    }

    async fn report_rules(&self, report: RulesReport) {
        let RulesReport { name, uid, result, is_contested, is_unstable, conflict, disturbance } = report;
        let (PodName { namespace, name: pod }, dry_run) = (&name, self.options.dry_run);
        let (code, event) = match result {
            Ok(missing) if dry_run => {
                let missing = missing.join("; ");
                info!(target: "repair", %namespace, %pod, %uid, missing, "dry run: rules of a running pod would be restored");
                let message = format!("dry run: its rules would be restored: {missing}");
                ("skip", Some(("RepairSkipped", message)))
            }
            Ok(missing) => {
                let (writer, missing) =
                    (disturbance.as_ref().and_then(NetnsDisturbance::writer_name), missing.join("; "));
                let clause = writer_clause(writer.as_deref());
                let what = format!(
                    "Rules that redirect its traffic to its sidecar were missing and have been restored: {missing}{clause}"
                );
                let undone = is_contested.then_some(UNDONE);
                let event = match conflict {
                    Some(repairs) => {
                        warn!(target: "repair", %namespace, %pod, %uid, missing, writer, repairs, "rules of a running pod are removed repeatedly; the pod is pending until they stay in place");
                        let message = describe_conflict("its sidecar", &missing, writer.as_deref(), repairs);
                        Some((UNSTABLE, message))
                    }
                    None if is_unstable => {
                        debug!(target: "repair", %namespace, %pod, %uid, missing, writer, undone, "rules of a running pod restored");
                        None
                    }
                    None => {
                        warn!(target: "repair", %namespace, %pod, %uid, missing, writer, "rules of a running pod were missing and are restored");
                        Some(("SidecarRulesRestored", what.clone()))
                    }
                };
                let took = disturbance.as_ref().map_or(Duration::ZERO, |changes| changes.noticed.elapsed());
                if let Some(changes) = disturbance.filter(|_| !is_contested) {
                    self.metrics.drift_repaired(changes.metric_label(), took);
                }
                let change = RepairedPod { name: name.clone(), cause: "drift", what, took, undone };
                self.send_report(RepairReport::Change(change)).await;
                (if is_contested { "fail" } else { "success" }, event)
            }
            Err(error) => {
                warn!(target: "repair", %namespace, %pod, %uid, error, "cannot restore the rules of a running pod");
                let message = format!("its rules cannot be compared and restored: {error}");
                ("fail", Some(("RepairFailed", message)))
            }
        };
        self.metrics.restored.get_or_create(&[("result", code)]).inc();
        if let Some((reason, message)) = event {
            self.publish_event(&name, &uid, EventLevel::Warning, reason, message).await;
        }
    }
}
