//! What people who look at the cluster are told: Events about pods, about our own pod, and about the node. What cannot be
//! told is in our log all the same.

use agent::{AgentHandle, HistoryEntry};
use daemon_settings::{DaemonSettings, PodSource};
use kubeio::{Error, EventRecorder, KubeClient};
use model::{EventLevel, EventSubject, Notice};
use repair::{RepairReport, RepairedPod};
use retry::LastError;
use tokio::sync::mpsc::Receiver;
use tracing::{info, warn};

/// Notices that wait to be queued as Events: more than one pass over all pods has. More are dropped, and are in the log.
pub(crate) const NOTICES: usize = 1024;

/// Sources of the notices that are published.
pub(crate) struct NoticeReceivers {
    /// The installer.
    pub(crate) installer: Receiver<Notice>,
    /// The agent, which has none without ambient mode.
    pub(crate) agent: Receiver<Notice>,
    /// The components that watch pods with a sidecar.
    pub(crate) sidecar_drift: Receiver<Notice>,
    /// The repair of broken pods.
    pub(crate) repairs: Receiver<RepairReport>,
    /// The agent that keeps the history, in which repairs are entered.
    pub(crate) history: AgentHandle,
}

impl NoticeReceivers {
    /// The next notice; none when nobody is left who could tell one.
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

/// Publishes until nobody is left who could report.
pub(crate) async fn publish_events(
    client: &KubeClient,
    settings: &DaemonSettings,
    mut sources: NoticeReceivers,
) {
    let identity = &settings.identity;
    let recorder = EventRecorder::new(client.clone(), &identity.node, identity.own_pod());
    // The API server has the pods that the agent reports.
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
    // Whoever waits for the API server must not keep others from being queued.
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

/// Each warning about a pod is about traffic that bypasses the mesh, or may; except that a pod is refused, which any author can
/// cause with an annotation, as often as pods can be created, and that a pod that does not run was deleted or labelled.
fn is_bypass(level: EventLevel, reason: &str) -> bool {
    level == EventLevel::Warning && !matches!(reason, "RefusedByMesh" | "DeleteBrokenPod" | "LabelBrokenPod")
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
            (EventLevel::Warning, "DeleteBrokenPod", false),
            (EventLevel::Warning, "LabelBrokenPod", false),
            (EventLevel::Normal, "RefusedByMesh", false),
            (EventLevel::Normal, "JoinedMesh", false),
        ] {
            assert_eq!(is_bypass(level, reason), expected, "{reason}");
        }
    }
}
