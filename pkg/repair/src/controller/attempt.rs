//! One attempt to handle a broken pod, which labels it, deletes it or repairs it in place.

use std::{sync::Arc, time::Duration};

use enrolment::{PodDecision, SidecarRedirect, SkipReason};
use kube_api::ApiErrorKind;
use model::{EventLevel, Pod};
use pod_identity::KnownPods;

use super::RepairController;
use crate::{ObservedPod, RepairMode, RepairTask};

/// Time limit of one request.
const LIMIT: Duration = Duration::from_secs(10);

/// The result of an attempt.
pub(super) enum Attempt {
    /// The attempt succeeded, with the Event's type and reason.
    Done {
        level: EventLevel,
        reason: &'static str,
        message: String,
    },
    Unchanged,
    /// With the reason.
    Skipped(String),
    /// With the error.
    Failed(String),
    /// The pod has changed since it was observed.
    Outdated,
    Gone,
}

impl RepairController {
    /// Handles the pod according to the mode. `known`: all known pods. `is_excluded`: the plugin skips this pod because
    /// of its namespace.
    pub(super) async fn attempt_repair(
        &self,
        task: &RepairTask,
        known: KnownPods,
        is_excluded: bool,
    ) -> Attempt {
        match &self.options.mode {
            RepairMode::Label { key, value } => self.label_pod(task, key, value).await,
            RepairMode::Delete => self.delete_pod(task, is_excluded).await,
            RepairMode::InPlace => self.repair_in_place(task, known, is_excluded).await,
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
                reason: "LabelBrokenPod", // Istio's, and a Warning there, too, so rules on it hold
                message: format!("{}; labelled {key}={value}", task.breakage),
            },
            Err(error) => self.judge_failure(&task.pod, &error).await,
        }
    }

    async fn delete_pod(&self, task: &RepairTask, is_excluded: bool) -> Attempt {
        let ObservedPod { name, uid, version, .. } = &task.pod;
        if task.pod.is_finished && !task.pod.has_controller {
            let why = "it has ended, and nothing would replace it";
            return Attempt::Skipped(format!("{}; {why}", task.breakage));
        }
        if let Err(attempt) = self.read_redirected(task, is_excluded).await {
            return attempt;
        }
        let effect = if task.pod.has_controller {
            "deleted, so that its controller replaces it"
        } else {
            "deleted; it has no controller that replaces it"
        };
        match self.client.delete_pod(name, uid, version).await {
            Ok(()) => Attempt::Done {
                level: EventLevel::Warning,
                reason: "DeleteBrokenPod", // as above
                message: format!("{}; {effect}", task.breakage),
            },
            Err(error) => self.judge_failure(&task.pod, &error).await,
        }
    }

    async fn repair_in_place(&self, task: &RepairTask, known: KnownPods, is_excluded: bool) -> Attempt {
        if task.pod.is_finished {
            return Attempt::Skipped(format!("{}; it has ended and does not start again", task.breakage));
        }
        let (pod, redirect) = match self.read_redirected(task, is_excluded).await {
            Ok(found) => found,
            Err(attempt) => return attempt,
        };
        let in_place = self.in_place.clone();
        let done = tokio::task::spawn_blocking(move || in_place.repair_pod(&pod, redirect, &known)).await;
        match done {
            Ok(Ok(differences)) if differences.is_empty() => Attempt::Unchanged,
            Ok(Ok(differences)) => Attempt::Done {
                level: EventLevel::Normal,
                reason: "BrokenPodRepaired",
                message: format!(
                    "{}; the rules that redirect its traffic to its sidecar are in place now ({})",
                    task.breakage,
                    differences.join("; ")
                ),
            },
            Ok(Err(error)) => Attempt::Failed(format!("{}; {error}", task.breakage)),
            Err(error) => Attempt::Failed(format!("{}; defect: {error}", task.breakage)),
        }
    }

    /// Reads the pod's current state, and decides about it as the plugin would. A pod that it does not redirect is
    /// skipped: its replacement would be broken, too.
    async fn read_redirected(
        &self,
        task: &RepairTask,
        is_excluded: bool,
    ) -> Result<(Pod, Arc<SidecarRedirect>), Attempt> {
        let skipped =
            |reason: SkipReason| Attempt::Skipped(format!("{}; not redirected: {reason}", task.breakage));
        if is_excluded {
            return Err(skipped(SkipReason::ExcludedNamespace));
        }
        let pod = self.read_pod(&task.pod).await?;
        match enrolment::decide(&pod, None, &self.options.policy) {
            Ok(PodDecision::Sidecar(redirect)) => Ok((pod, Arc::from(redirect))),
            Ok(PodDecision::Skip(reason)) => Err(skipped(reason)),
            Ok(PodDecision::Ambient(_)) => Err(skipped(SkipReason::NotInjected)),
            Err(invalid) => Err(Attempt::Failed(format!("{}; {invalid}", task.breakage))),
        }
    }

    /// Reads the pod's current state.
    async fn read_pod(&self, observed: &ObservedPod) -> Result<Pod, Attempt> {
        let ObservedPod { name, uid, .. } = observed;
        match self.client.get::<Pod>(&format!("pod {name}"), &name.api_path(), LIMIT).await {
            Ok(pod) if pod.metadata.uid == *uid => Ok(pod),
            Ok(_) => Err(Attempt::Gone), // another pod has its name
            Err(error) if error.kind() == ApiErrorKind::NotFound => Err(Attempt::Gone),
            Err(error) => Err(Attempt::Failed(error.to_string())),
        }
    }

    /// Determines the outcome of a failed request that had the observed version of the pod as its precondition.
    async fn judge_failure(&self, observed: &ObservedPod, error: &kube_api::Error) -> Attempt {
        let failed = Attempt::Failed(error.to_string());
        match error.kind() {
            ApiErrorKind::NotFound => Attempt::Gone,
            ApiErrorKind::Conflict => match self.read_pod(observed).await {
                // A changed pod was not the reason.
                Ok(pod) if pod.metadata.resource_version == observed.version => failed,
                Ok(_) => Attempt::Outdated,
                Err(other) => other,
            },
            _ => failed,
        }
    }
}
