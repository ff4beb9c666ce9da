//! Publication of Events about pods, about our own pod, and about the node. Notices that cannot be published are in the log all the
//! same.

use agent::{AgentHandle, HistoryEntry};
use daemon_settings::{DaemonSettings, PodSource};
use kube_api::{Error, EventRecorder, KubeClient};
use model::{EventLevel, EventSubject, Notice};
use repair::{RepairReport, RepairedPod};
use retry::LastError;
use tokio::sync::mpsc::Receiver;
use tracing::{info, warn};

/// Capacity for notices that are not queued as Events yet: more than one pass over all pods produces. Further ones are dropped, and
/// are in the log.
pub(crate) const NOTICES: usize = 1024;

/// Sources of the notices that are published.
pub(crate) struct NoticeReceivers {
    /// Notices of the installer.
    pub(crate) installer: Receiver<Notice>,
    /// Notices of the agent, which has none without ambient mode.
    pub(crate) agent: Receiver<Notice>,
    /// Notices of the components that watch pods with a sidecar.
    pub(crate) sidecar_drift: Receiver<Notice>,
    /// Reports of the repair of broken pods.
    pub(crate) repairs: Receiver<RepairReport>,
    /// Handle of the agent, in whose history repairs are recorded.
    pub(crate) history: AgentHandle,
}

impl NoticeReceivers {
    /// Returns the next notice; `None` when all senders are dropped.
    async fn next_notice(&mut self) -> Option<Notice> {
        let NoticeReceivers { installer, agent, sidecar_drift, repairs, history } = self;
        loop {
            return tokio::select! {
                Some(notice) = installer.recv() => Some(notice),
                Some(notice) = agent.recv() => Some(notice),
                Some(notice) = sidecar_drift.recv() => Some(notice),
                Some(report) = repairs.recv() => match report {
                    RepairReport::Event(notice) => Some(notice),
                    RepairReport::Change(RepairedPod { name, cause, what, took, undone }) => {
                        let (cause, pod, error) = (cause.to_owned(), Some(name.to_string()), undone.map(str::to_owned));
                        history.note_change(HistoryEntry { cause, what, pod, took, error });
                        continue;
                    }
                },
                else => None,
            };
        }
    }
}

/// Publishes until all senders are dropped.
pub(crate) async fn publish_events(
    client: &KubeClient,
    settings: &DaemonSettings,
    mut sources: NoticeReceivers,
) {
    let identity = &settings.identity;
    let recorder = EventRecorder::new(client.clone(), &identity.node, identity.own_pod());
    // Only with the API as source do the agent's pods exist on the API server.
    let has_pods = settings.ambient.as_ref().is_none_or(|ambient| ambient.source == PodSource::Api);
    let queue = async {
        while let Some(notice) = sources.next_notice().await {
            if has_pods || !matches!(notice.about, EventSubject::Pod { .. }) {
                let is_bypass = is_bypass(notice.level, notice.reason);
                recorder.submit(notice, is_bypass);
            }
        }
    };
    let mut last = LastError::default();
    let publish = recorder.run(|result| log_result(result, &mut last));
    // A request in flight must not keep further notices from being queued.
    tokio::select! {
        () = queue => {}
        () = publish => {}
    }
}

fn log_result(result: Result<(), Error>, last: &mut LastError) {
    match result {
        Ok(()) if last.clear() => info!(target: "install", "Events published again"),
        Ok(()) => {}
        Err(error) if last.replace(&error) => {
            warn!(target: "install", %error, "cannot publish Events");
        }
        Err(_) => {}
    }
}

/// Whether a notice is about traffic that bypasses the mesh, or may: every warning about a pod is, except that a pod or an exception
/// is refused, which any author can cause with an annotation, as often as pods can be created, and that a broken pod was deleted or labelled.
fn is_bypass(level: EventLevel, reason: &str) -> bool {
    level == EventLevel::Warning
        && !matches!(reason, "RefusedByMesh" | "ExceptionRefused" | "DeleteBrokenPod" | "LabelBrokenPod")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_about_pods_that_bypass_have_a_budget_that_refused_pods_do_not_use() {
        for (level, reason, expected) in [
            (EventLevel::Warning, "CanBypassMesh", true),
            (EventLevel::Warning, "CaptureOverruled", true),
            (EventLevel::Warning, "BypassesMesh", true),
            (EventLevel::Warning, "RefusedByMesh", false),
            (EventLevel::Warning, "ExceptionRefused", false),
            (EventLevel::Warning, "DeleteBrokenPod", false),
            (EventLevel::Warning, "LabelBrokenPod", false),
            (EventLevel::Normal, "RefusedByMesh", false),
            (EventLevel::Normal, "JoinedMesh", false),
        ] {
            assert_eq!(is_bypass(level, reason), expected, "{reason}");
        }
    }
}
