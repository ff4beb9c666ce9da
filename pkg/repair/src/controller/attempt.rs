//! One attempt at a broken pod, which labels it, deletes it or repairs it in place.

use std::time::Duration;

use enrolment::SkipReason;
use kubeio::ApiErrorKind;
use model::{EventLevel, Pod};

use super::RepairController;
use crate::{ObservedPod, RepairMode, RepairTask, in_place::InPlaceReport, sidecar_pods::SidecarPods};

/// For one request.
const LIMIT: Duration = Duration::from_secs(10);

/// Istio's names; both are Warnings there, too, so rules on them hold.
pub(super) const LABELLED: &str = "LabelBrokenPod";
pub(super) const DELETED: &str = "DeleteBrokenPod";

/// The result of an attempt.
pub(super) enum Attempt {
    /// With the Event's type and reason.
    Done {
        level: EventLevel,
        reason: &'static str,
        message: String,
    },
    Unchanged,
    Skipped {
        message: String,
    },
    Failed {
        message: String,
    },
    Gone,
}

impl RepairController {
    pub(super) async fn attempt_repair(&self, task: &RepairTask, pods: &SidecarPods) -> Attempt {
        match &self.options.mode {
            RepairMode::Label { key, value } => self.label_pod(task, key, value).await,
            RepairMode::Delete => self.delete_pod(task).await,
            RepairMode::InPlace => self.repair_in_place(task, pods).await,
        }
    }

    async fn label_pod(&self, task: &RepairTask, key: &str, value: &str) -> Attempt {
        let ObservedPod { name, uid, version, labels, .. } = &task.pod;
        if labels.iter().any(|label| label == key) {
            return Attempt::Unchanged;
        }
        match self.client.label_pod_status(name, uid, version, key, value).await {
            Ok(()) => Attempt::Done {
                level: EventLevel::Warning,
                reason: LABELLED,
                message: format!("{}; labelled {key}={value}", task.breakage),
            },
            Err(error) => failed_attempt(&error),
        }
    }

    async fn delete_pod(&self, task: &RepairTask) -> Attempt {
        let ObservedPod { name, uid, version, .. } = &task.pod;
        if task.pod.is_finished && !task.pod.has_controller {
            let message = format!("{}; it has ended, and nothing would replace it", task.breakage);
            return Attempt::Skipped { message };
        }
        match self.client.delete_pod(name, uid, version).await {
            Ok(()) => Attempt::Done {
                level: EventLevel::Warning,
                reason: DELETED,
                message: format!("{}; deleted, so that its controller replaces it", task.breakage),
            },
            Err(error) => failed_attempt(&error),
        }
    }

    async fn repair_in_place(&self, task: &RepairTask, pods: &SidecarPods) -> Attempt {
        let ObservedPod { name, uid, .. } = &task.pod;
        if task.pod.is_finished {
            let message = format!("{}; it has ended and does not start again", task.breakage);
            return Attempt::Skipped { message };
        }
        if pods.is_excluded(name) {
            let reason = SkipReason::ExcludedNamespace;
            return Attempt::Skipped { message: format!("{}; not redirected: {reason}", task.breakage) };
        }
        let pod = match self.client.get::<Pod>(&format!("pod {name}"), &name.api_path(), LIMIT).await {
            Ok(pod) if pod.metadata.uid == *uid => pod,
            Ok(_) => return Attempt::Gone, // another pod has its name
            Err(error) => return failed_attempt(&error),
        };
        let (in_place, pods) = (self.in_place.clone(), pods.known_pods());
        let done = tokio::task::spawn_blocking(move || in_place.repair_pod(&pod, &pods)).await;
        match done {
            Ok(Ok(InPlaceReport::Repaired(differences))) => Attempt::Done {
                level: EventLevel::Normal,
                reason: "BrokenPodRepaired",
                message: format!(
                    "{}; the rules that redirect its traffic to its sidecar are in place now ({})",
                    task.breakage,
                    differences.join("; ")
                ),
            },
            Ok(Ok(InPlaceReport::Unchanged)) => Attempt::Unchanged,
            Ok(Ok(InPlaceReport::NotRedirected(reason))) => {
                Attempt::Skipped { message: format!("{}; not redirected: {reason}", task.breakage) }
            }
            Ok(Err(error)) => Attempt::Failed { message: format!("{}; {error}", task.breakage) },
            Err(error) => Attempt::Failed { message: format!("{}; defect: {error}", task.breakage) },
        }
    }
}

fn failed_attempt(error: &kubeio::Error) -> Attempt {
    match error.kind() {
        ApiErrorKind::NotFound => Attempt::Gone,
        _ => Attempt::Failed { message: error.to_string() },
    }
}
