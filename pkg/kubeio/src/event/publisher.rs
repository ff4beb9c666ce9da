//! Tells Events, each once.

use std::time::{Instant, SystemTime};

use tracing::debug;

use super::{
    EventSubject, KubeEvent, MAX_MESSAGE, cut,
    series::{EventKey, EventSeries, EventVerdict},
};
use crate::{ApiErrorKind, Error, KubeClient};

/// Publishes Events of one node: what happens again is counted at the Event that is there, and a flood is cut off.
pub struct EventRecorder {
    client: KubeClient,
    node: String,
    series: EventSeries,
}

impl EventRecorder {
    /// Has told nothing yet. `node`: where we are.
    #[must_use]
    pub fn new(client: KubeClient, node: &str) -> EventRecorder {
        EventRecorder { client, node: node.to_owned(), series: EventSeries::new(Instant::now()) }
    }

    /// Publishes an Event: creates it, counts the one that says the same, or leaves it out when there were more than 20
    /// at once and then one in ten seconds.
    ///
    /// # Errors
    /// The API server did not take it within ten seconds. It is not tried again.
    pub async fn publish(&mut self, subject: &EventSubject, mut event: KubeEvent) -> Result<(), Error> {
        event.message.truncate(cut(&event.message, MAX_MESSAGE).len());
        let key = (subject.clone(), event);
        match self.series.happened(&key, Instant::now()) {
            EventVerdict::New => self.create(key).await,
            EventVerdict::Suppressed => {
                debug!(target: "install", %subject, reason = key.1.reason, text = key.1.message, "Event suppressed by the rate limit");
                Ok(())
            }
            EventVerdict::Again { name, count } => {
                match self.client.count_event(&name, subject, count, SystemTime::now()).await {
                    // Somebody removed it.
                    Err(error) if error.kind() == ApiErrorKind::NotFound => self.create(key).await,
                    answer => answer,
                }
            }
        }
    }

    async fn create(&mut self, key: EventKey) -> Result<(), Error> {
        let name = self.client.create_event(&self.node, &key.0, &key.1, SystemTime::now()).await?;
        self.series.created(key, name, Instant::now());
        Ok(())
    }
}
