//! Publisher of queued Events.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use model::{EventSubject, Notice, Pod, PodName};
use tokio::{sync::Notify, time::timeout};
use tracing::debug;

use super::{
    EventObject, MAX_MESSAGE,
    queue::{EventQueue, NextEvent, WaitingEvent},
    series::EventSeries,
    truncate_text,
};
use crate::{ApiErrorKind, Error, KubeClient, client::LIMIT};

/// Publishes Events of one node: a repeated one increments the count of the published Event, and one that cannot be published
/// immediately is queued, the newest of each subject and reason.
///
/// Three classes have budgets of 20 Events at a time and one more in ten seconds: Events about the node, those about pods that
/// bypass the mesh, and all others about pods; within each, a namespace has 10 at a time.
pub struct EventRecorder {
    client: KubeClient,
    node: String,
    agent: Option<PodName>,
    queue: Mutex<EventQueue>,
    added: Notify,
}

/// State of a run.
struct Publication<'a> {
    recorder: &'a EventRecorder,
    series: EventSeries,
    /// The agent's pod, once it was looked up; inner `None`: there is no such pod.
    agent: Option<Option<EventObject>>,
}

impl EventRecorder {
    /// Returns a recorder that has published nothing yet. `node`: its name; `agent`: the agent's pod, if known.
    pub fn new(client: KubeClient, node: &str, agent: Option<PodName>) -> EventRecorder {
        let queue = Mutex::new(EventQueue::new(Instant::now()));
        EventRecorder { client, node: node.to_owned(), agent, queue, added: Notify::new() }
    }

    /// Queues an Event, replacing a queued one with the same subject and reason.
    pub fn submit(&self, mut notice: Notice, is_bypass: bool) {
        notice.message.truncate(truncate_text(&notice.message, MAX_MESSAGE).len());
        notice.message.shrink_to_fit();
        log_dropped(self.lock_queue().add(notice, is_bypass, Instant::now()));
        self.added.notify_one();
    }

    /// Publishes queued Events, until it is dropped. `report` receives the result of each attempt. An Event that fails because the
    /// API server is unavailable is retried for an hour, each attempt within the budgets.
    pub async fn run(&self, mut report: impl FnMut(Result<(), Error>)) {
        let mut publication = Publication { recorder: self, series: EventSeries::default(), agent: None };
        loop {
            let next = self.lock_queue().next_event(Instant::now());
            match next {
                NextEvent::Publish(waiting) => {
                    let result = publication.publish_event(&waiting).await;
                    if result.as_ref().is_err_and(|error| error.kind() == ApiErrorKind::Unavailable) {
                        log_dropped(self.lock_queue().requeue_event(waiting, Instant::now()));
                    }
                    report(result);
                }
                NextEvent::At(when) => {
                    let left = when.saturating_duration_since(Instant::now());
                    drop(timeout(left, self.added.notified()).await); // both outcomes lead to another check of the queue
                }
                NextEvent::Idle => self.added.notified().await,
            }
        }
    }

    fn lock_queue(&self) -> MutexGuard<'_, EventQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn find_agent(&self) -> Result<Option<EventObject>, Error> {
        let Some(name) = &self.agent else { return Ok(None) };
        match self.client.get::<Pod>("our own pod", &name.api_path(), LIMIT).await {
            Ok(pod) => Ok(Some(EventObject::Pod { name: name.clone(), uid: pod.metadata.uid })),
            Err(error) if error.kind() == ApiErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Publication<'_> {
    /// Creates the Event, or increments the count of a published one with the same content.
    async fn publish_event(&mut self, waiting: &WaitingEvent) -> Result<(), Error> {
        let Some(subject) = self.resolve_subject(&waiting.notice.about).await? else { return Ok(()) };
        let EventRecorder { client, node, .. } = self.recorder;
        let (key, times) = ((subject, waiting.notice.clone()), waiting.times);
        if let Some((name, count)) = self.series.find_published(&key, times, Instant::now()) {
            match client.count_event(&name, &key.0, count).await {
                // Another component deleted it.
                Err(error) if error.kind() == ApiErrorKind::NotFound => {}
                counted => {
                    counted?;
                    self.series.record_published(key, name, count, Instant::now());
                    return Ok(());
                }
            }
        }
        let name = client.create_event(node, &key.0, &key.1, times).await?;
        self.series.record_published(key, name, times, Instant::now());
        Ok(())
    }

    /// Returns the object that the Event refers to; `None` if it does not exist.
    async fn resolve_subject(&mut self, subject: &EventSubject) -> Result<Option<EventObject>, Error> {
        let node = || EventObject::Node(self.recorder.node.clone());
        let or_node = match subject {
            EventSubject::Node => return Ok(Some(node())),
            EventSubject::Pod { name, uid } => {
                return Ok(Some(EventObject::Pod { name: name.clone(), uid: uid.clone() }));
            }
            EventSubject::Agent { or_node } => *or_node,
        };
        if self.agent.is_none() {
            self.agent = Some(self.recorder.find_agent().await?);
        }
        Ok(self.agent.clone().flatten().or_else(|| or_node.then(node)))
    }
}

fn log_dropped(waiting: Option<WaitingEvent>) {
    if let Some(WaitingEvent { notice: Notice { about, reason, message, .. }, .. }) = waiting {
        debug!(target: "install", subject = ?about, reason, text = message, "Event queue full; one dropped");
    }
}
