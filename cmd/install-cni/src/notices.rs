//! What people who look at the cluster are told: Events about pods, about our own pod, and about the node. What cannot be
//! told is in our log all the same.

use std::time::Duration;

use agent::{About, NoticeLevel};
use kubeio::{Client, Event, EventLevel, Kind, Publisher, Subject};
use model::{Pod, PodName};
use retry::LastError;
use tokio::sync::mpsc::Receiver;
use tracing::{info, warn};

use crate::{ambient::PodSource, settings::Settings};

/// For the question who we are.
const LIMIT: Duration = Duration::from_secs(10);

/// Whose notices are published.
pub(crate) struct Sources {
    /// The installer.
    pub(crate) installer: Receiver<installer::Notice>,
    /// The agent; none without ambient mode.
    pub(crate) agent: Option<Receiver<agent::Notice>>,
    /// Those who watch pods with a sidecar.
    pub(crate) sidecar_drift: Receiver<agent::Notice>,
}

/// Something to be published, and about whom.
enum PublishedEvent {
    /// The installation: about the node, and our pod.
    Installer(installer::Notice),
    Agent(agent::Notice),
}

impl Sources {
    /// The next notice; none when nobody is left who could tell one.
    async fn next(&mut self) -> Option<PublishedEvent> {
        let Sources { installer, agent, sidecar_drift } = self;
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
            else => None,
        }
    }
}

/// Publishes until nobody is left who could tell.
pub(crate) async fn publish(client: &Client, settings: &Settings, mut sources: Sources) {
    let identity = &settings.identity;
    let mut publisher = EventPublisher {
        publisher: Publisher::new(client.clone(), &identity.node),
        client,
        node: Subject::Node(identity.node.clone()),
        own: PodName { namespace: identity.namespace.clone(), name: identity.pod.clone() },
        known: None,
        has_pods: settings.ambient.as_ref().is_none_or(|ambient| ambient.source == PodSource::Api),
        said: LastError::default(),
    };
    while let Some(told) = sources.next().await {
        match told {
            PublishedEvent::Installer(notice) => publisher.installer(notice).await,
            PublishedEvent::Agent(notice) => publisher.agent(notice).await,
        }
    }
}

struct EventPublisher<'a> {
    publisher: Publisher,
    client: &'a Client,
    node: Subject,
    own: PodName,
    /// Our own pod, once that was asked; none inside: there is no such pod.
    known: Option<Option<Subject>>,
    /// The API server has the pods that the agent speaks of.
    has_pods: bool,
    said: LastError,
}

impl EventPublisher<'_> {
    async fn installer(&mut self, notice: installer::Notice) {
        let installer::Notice { reason, message } = notice;
        let event = Event { level: EventLevel::Warning, reason, message };
        self.tell(self.node.clone(), event.clone()).await;
        if let Some(pod) = self.own_pod().await {
            self.tell(pod, event).await;
        }
    }

    async fn agent(&mut self, notice: agent::Notice) {
        let agent::Notice { about, level, reason, message } = notice;
        let level = match level {
            NoticeLevel::Normal => EventLevel::Normal,
            NoticeLevel::Warning => EventLevel::Warning,
        };
        let subject = match about {
            About::Pod { .. } if !self.has_pods => return,
            About::Pod { name, uid } => Subject::Pod { name, uid },
            About::Agent => self.own_pod().await.unwrap_or_else(|| self.node.clone()),
        };
        self.tell(subject, Event { level, reason, message }).await;
    }

    async fn tell(&mut self, subject: Subject, event: Event) {
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
    async fn own_pod(&mut self) -> Option<Subject> {
        if let Some(known) = &self.known {
            return known.clone();
        }
        if self.own.namespace.is_empty() || self.own.name.is_empty() {
            return None;
        }
        let path = format!("/api/v1/namespaces/{}/pods/{}", self.own.namespace, self.own.name);
        match self.client.get::<Pod>("our own pod", &path, LIMIT).await {
            Ok(pod) => {
                let own = Subject::Pod { name: self.own.clone(), uid: pod.metadata.uid };
                self.known = Some(Some(own));
            }
            Err(error) if error.kind() == Kind::NotFound => self.known = Some(None),
            Err(_) => return None, // the next notice asks again
        }
        self.known.clone().flatten()
    }
}
