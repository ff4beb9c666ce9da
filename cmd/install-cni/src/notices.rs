//! What people who look at the cluster are told: Events about pods, about our own pod, and about the node. What cannot be
//! told is in our log all the same.

use agent::{AgentHandle, HistoryEntry};
use daemon_settings::{DaemonSettings, PodSource};
use kubeio::{Error, EventRecorder, KubeClient, KubeEvent};
use model::{EventLevel, EventSubject};
use repair::RepairEvent;
use retry::LastError;
use tokio::sync::mpsc::Receiver;
use tracing::{info, warn};

/// Notices that wait to be queued as Events: more than one pass over all pods has. More are dropped, and are in the log.
pub(crate) const NOTICES: usize = 1024;

/// Sources of the notices that are published.
pub(crate) struct NoticeReceivers {
    /// The installer.
    pub(crate) installer: Receiver<installer::InstallerNotice>,
    /// The agent, which has none without ambient mode.
    pub(crate) agent: Receiver<agent::AgentNotice>,
    /// The components that watch pods with a sidecar.
    pub(crate) sidecar_drift: Receiver<agent::AgentNotice>,
    /// The repair of broken pods.
    pub(crate) repairs: Receiver<RepairEvent>,
    /// The agent that keeps the history, in which repairs are entered.
    pub(crate) history: AgentHandle,
}

/// Something to be published, and about whom.
enum PublishedEvent {
    /// The installation: about the node, and our pod.
    Installer(installer::InstallerNotice),
    Agent(agent::AgentNotice),
    Repair(RepairEvent),
}

impl NoticeReceivers {
    /// The next notice; none when nobody is left who could tell one.
    async fn next_notice(&mut self) -> Option<PublishedEvent> {
        let NoticeReceivers { installer, agent, sidecar_drift, repairs, history } = self;
        tokio::select! {
            Some(notice) = installer.recv() => Some(PublishedEvent::Installer(notice)),
            Some(notice) = agent.recv() => Some(PublishedEvent::Agent(notice)),
            Some(notice) = sidecar_drift.recv() => Some(PublishedEvent::Agent(notice)),
            Some(repair) = repairs.recv() => {
                if let Some(entry) = history_entry(&repair) {
                    history.note_change(entry);
                }
                Some(PublishedEvent::Repair(repair))
            }
            else => None,
        }
    }
}

/// `None`: nothing was changed.
fn history_entry(repair: &RepairEvent) -> Option<HistoryEntry> {
    let (cause, what) = (repair.cause()?.to_owned(), repair.message.clone());
    Some(HistoryEntry { cause, what, pod: Some(repair.name.to_string()), took: repair.took, error: None })
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
            for (subject, event) in to_kube_events(notice) {
                if has_pods || !matches!(subject, EventSubject::Pod { .. }) {
                    recorder.submit(subject, event);
                }
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

/// The Events of a notice.
fn to_kube_events(notice: PublishedEvent) -> Vec<(EventSubject, KubeEvent)> {
    match notice {
        PublishedEvent::Installer(installer::InstallerNotice { reason, message }) => {
            let event = KubeEvent { level: EventLevel::Warning, reason, is_bypass: false, message };
            vec![(EventSubject::Node, event.clone()), (EventSubject::Agent { or_node: false }, event)]
        }
        PublishedEvent::Agent(agent::AgentNotice { about, level, reason, message }) => {
            vec![(about, KubeEvent { level, reason, is_bypass: is_bypass(level, reason), message })]
        }
        PublishedEvent::Repair(RepairEvent { name, uid, level, reason, message, .. }) => {
            let event = KubeEvent { level, reason, is_bypass: is_bypass(level, reason), message };
            vec![(EventSubject::Pod { name, uid }, event)]
        }
    }
}

/// Each warning about a pod is about traffic that bypasses the mesh, or may; except that a pod is refused, which any author can
/// cause with an annotation, as often as pods can be created, and that a pod that does not run was deleted or labelled.
fn is_bypass(level: EventLevel, reason: &str) -> bool {
    level == EventLevel::Warning && !matches!(reason, "RefusedByMesh" | "DeleteBrokenPod" | "LabelBrokenPod")
}

#[cfg(test)]
mod tests {
    use model::PodName;

    use super::*;

    fn of_agent(level: EventLevel, reason: &'static str) -> PublishedEvent {
        let about =
            EventSubject::Pod { name: PodName { namespace: "a".into(), name: "b".into() }, uid: "c".into() };
        PublishedEvent::Agent(agent::AgentNotice { about, level, reason, message: String::new() })
    }

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
            let bypasses: Vec<bool> = to_kube_events(of_agent(level, reason))
                .into_iter()
                .map(|(_, event)| event.is_bypass)
                .collect();
            assert_eq!(bypasses, [expected], "{reason}");
        }
    }

    #[test]
    fn notices_of_the_installer_are_about_the_node_and_its_own_pod_if_there_is_one() {
        let notice = installer::InstallerNotice { reason: "CNIConfigConflict", message: "a".to_owned() };
        let subjects: Vec<EventSubject> = to_kube_events(PublishedEvent::Installer(notice))
            .into_iter()
            .map(|(subject, _)| subject)
            .collect();
        assert_eq!(subjects, [EventSubject::Node, EventSubject::Agent { or_node: false }]);
    }
}
