//! What people who look at the cluster are told: Events about pods, about our own pod, and about the node. What cannot be
//! told is in our log all the same.

use std::time::Duration;

use agent::{NoticeLevel, NoticeSubject};
use daemon_settings::{DaemonSettings, PodSource};
use kubeio::{ApiErrorKind, EventLevel, EventRecorder, EventSubject, KubeClient, KubeEvent};
use model::{Pod, PodName};
use repair::RepairEvent;
use retry::LastError;
use tokio::sync::mpsc::Receiver;
use tracing::{info, warn};

/// For the question who we are.
const LIMIT: Duration = Duration::from_secs(10);

/// Whose notices are published.
pub(crate) struct NoticeReceivers {
    /// The installer.
    pub(crate) installer: Receiver<installer::InstallerNotice>,
    /// The agent; none without ambient mode.
    pub(crate) agent: Option<Receiver<agent::AgentNotice>>,
    /// Those who watch pods with a sidecar.
    pub(crate) sidecar_drift: Receiver<agent::AgentNotice>,
    /// The repair of broken pods.
    pub(crate) repairs: Receiver<RepairEvent>,
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
    async fn next(&mut self) -> Option<PublishedEvent> {
        let NoticeReceivers { installer, agent, sidecar_drift, repairs } = self;
        let of_agent = async {
            match agent {
                Some(agent) => agent.recv().await,
                None => None,
            }
        };
        tokio::select! {
            Some(notice) = installer.recv() => Some(PublishedEvent::Installer(notice)),
            Some(notice) = of_agent => Some(PublishedEvent::Agent(notice)),
            Some(notice) = sidecar_drift.recv() => Some(PublishedEvent::Agent(notice)),
            Some(repair) = repairs.recv() => Some(PublishedEvent::Repair(repair)),
            else => None,
        }
    }
}

/// Publishes until nobody is left who could tell.
pub(crate) async fn publish(client: &KubeClient, settings: &DaemonSettings, mut sources: NoticeReceivers) {
    let identity = &settings.identity;
    let mut publisher = EventPublisher {
        publisher: EventRecorder::new(client.clone(), &identity.node),
        client,
        node: EventSubject::Node(identity.node.clone()),
        own: PodName { namespace: identity.namespace.clone(), name: identity.pod.clone() },
        known: None,
        has_pods: settings.ambient.as_ref().is_none_or(|ambient| ambient.source == PodSource::Api),
        said: LastError::default(),
    };
    while let Some(told) = sources.next().await {
        match told {
            PublishedEvent::Installer(notice) => publisher.installer(notice).await,
            PublishedEvent::Agent(notice) => publisher.agent(notice).await,
            PublishedEvent::Repair(repair) => publisher.repair(repair).await,
        }
    }
}

struct EventPublisher<'a> {
    publisher: EventRecorder,
    client: &'a KubeClient,
    node: EventSubject,
    own: PodName,
    /// Our own pod, once that was asked; none inside: there is no such pod.
    known: Option<Option<EventSubject>>,
    /// The API server has the pods that the agent speaks of.
    has_pods: bool,
    said: LastError,
}

impl EventPublisher<'_> {
    async fn installer(&mut self, notice: installer::InstallerNotice) {
        let installer::InstallerNotice { reason, message } = notice;
        let event = KubeEvent { level: EventLevel::Warning, reason, message };
        self.tell(self.node.clone(), event.clone()).await;
        if let Some(pod) = self.own_pod().await {
            self.tell(pod, event).await;
        }
    }

    async fn agent(&mut self, notice: agent::AgentNotice) {
        let agent::AgentNotice { about, level, reason, message } = notice;
        let level = match level {
            NoticeLevel::Normal => EventLevel::Normal,
            NoticeLevel::Warning => EventLevel::Warning,
        };
        let subject = match about {
            NoticeSubject::Pod { .. } if !self.has_pods => return,
            NoticeSubject::Pod { name, uid } => EventSubject::Pod { name, uid },
            NoticeSubject::Agent => self.own_pod().await.unwrap_or_else(|| self.node.clone()),
        };
        self.tell(subject, KubeEvent { level, reason, message }).await;
    }

    async fn repair(&mut self, repair: RepairEvent) {
        let RepairEvent { name, uid, is_warning, reason, message } = repair;
        let level = if is_warning { EventLevel::Warning } else { EventLevel::Normal };
        self.tell(EventSubject::Pod { name, uid }, KubeEvent { level, reason, message }).await;
    }

    async fn tell(&mut self, subject: EventSubject, event: KubeEvent) {
        match self.publisher.publish(&subject, event).await {
            Ok(()) if self.said.clear() => info!(target: "install", "Events published again"),
            Ok(()) => {}
            Err(error) if self.said.replace(&error) => {
                warn!(target: "install", %error, "cannot publish Events");
            }
            Err(_) => {}
        }
    }

    /// Our own pod, if there is one as far as is known.
    async fn own_pod(&mut self) -> Option<EventSubject> {
        if let Some(known) = &self.known {
            return known.clone();
        }
        if self.own.namespace.is_empty() || self.own.name.is_empty() {
            return None;
        }
        let path = format!("/api/v1/namespaces/{}/pods/{}", self.own.namespace, self.own.name);
        match self.client.get::<Pod>("our own pod", &path, LIMIT).await {
            Ok(pod) => {
                let own = EventSubject::Pod { name: self.own.clone(), uid: pod.metadata.uid };
                self.known = Some(Some(own));
            }
            Err(error) if error.kind() == ApiErrorKind::NotFound => self.known = Some(None),
            Err(_) => return None, // the next notice asks again
        }
        self.known.clone().flatten()
    }
}
