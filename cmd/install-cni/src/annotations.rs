//! Pod annotations: patched concurrently, but one request at a time per pod, so that the newest value is written last.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    future::Future,
    sync::{Arc, Mutex, PoisonError},
};

use agent::AnnotationUpdate;
use daemon_settings::{DaemonSettings, PodSource};
use enrolment::ambient::AMBIENT_REDIRECTION;
use futures_util::{StreamExt as _, stream::FuturesUnordered};
use kube_api::KubeClient;
use model::PodUid;
use retry::LastError;
use tokio::sync::mpsc::Receiver;
use tracing::{debug, info, warn};

use crate::{cluster::connect_to_api, supervise::restart_on_panic};

/// Capacity of the channel, and of the queue: more than a node has pods, because an uninstallation annotates all of them at the
/// same time. The reconciler submits dropped updates again.
pub(crate) const UPDATES: usize = 4096;
/// Concurrent requests: 250 pods take 16 round trips, which must fit into the two seconds of a shutdown.
const REQUESTS: usize = 16;

/// Pending updates, the newest of each pod, and the pods with a request in flight.
#[derive(Debug, Default)]
struct UpdateQueue {
    updates: BTreeMap<PodUid, AnnotationUpdate>,
    /// Pods with an update and no request in flight, oldest first.
    order: VecDeque<PodUid>,
    requested: BTreeSet<PodUid>,
}

impl UpdateQueue {
    fn has_room(&self) -> bool {
        self.updates.len() < UPDATES
    }

    /// Adds an update; replaces an older one of the same pod.
    fn add_update(&mut self, update: AnnotationUpdate) {
        let uid = update.uid.clone();
        let is_new = self.updates.insert(uid.clone(), update).is_none();
        if is_new && !self.requested.contains(&uid) {
            self.order.push_back(uid);
        }
    }

    /// Returns the next update to write, if another request is allowed; its pod counts as in flight until
    /// [`UpdateQueue::complete_request`].
    fn next_update(&mut self) -> Option<AnnotationUpdate> {
        if self.requested.len() >= REQUESTS {
            return None;
        }
        let uid = self.order.pop_front()?;
        let update = self.updates.remove(&uid)?;
        self.requested.insert(uid);
        Some(update)
    }

    fn complete_request(&mut self, uid: &PodUid) {
        self.requested.remove(uid);
        if self.updates.contains_key(uid) {
            self.order.push_back(uid.clone());
        }
    }
}

/// Annotates pods until the channel is closed and all updates are written. The reconciler submits failed updates again.
pub(crate) async fn write_annotations(settings: Arc<DaemonSettings>, updates: Receiver<AnnotationUpdate>) {
    restart_on_panic("the annotations of pods", updates, |updates| {
        Box::pin(write_to_api(Arc::clone(&settings), updates))
    })
    .await;
}

async fn write_to_api(settings: Arc<DaemonSettings>, updates: &mut Receiver<AnnotationUpdate>) {
    let source = settings.ambient.as_ref().map(|ambient| &ambient.source);
    let (Some(PodSource::Api), Some(connection)) = (source, &settings.api) else {
        while updates.recv().await.is_some() {} // no API server has these pods
        return;
    };
    let client = connect_to_api(connection).await;
    let last = Mutex::new(LastError::default());
    write_each(updates, |update| annotate_pod(client.clone(), &last, update)).await;
}

/// `last`: the kind of the last error, of any pod. Two hundred pods that must not be annotated are one log line.
async fn annotate_pod(
    client: KubeClient,
    last: &Mutex<LastError>,
    AnnotationUpdate { pod, uid, redirection }: AnnotationUpdate,
) {
    let written =
        client.annotate_pod_status(&pod, &uid, AMBIENT_REDIRECTION, redirection.annotation_value()).await;
    let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
    match written {
        Ok(()) => {
            last.clear();
            // The agent has logged that the pod is captured or released.
            let value = redirection.annotation_value().unwrap_or("removed");
            info!(target: "ambient", namespace = %pod.namespace, pod = %pod.name, annotation = AMBIENT_REDIRECTION, value, "pod annotated");
        }
        Err(error) if last.replace(&format_args!("{:?}", error.kind())) => {
            warn!(target: "ambient", namespace = %pod.namespace, pod = %pod.name, %error, "cannot annotate the pod");
        }
        Err(error) => {
            debug!(target: "ambient", namespace = %pod.namespace, pod = %pod.name, %error, "cannot annotate the pod");
        }
    }
}

async fn write_each<W: Future<Output = ()>>(
    updates: &mut Receiver<AnnotationUpdate>,
    write: impl Fn(AnnotationUpdate) -> W,
) {
    let (mut queue, mut requests) = (UpdateQueue::default(), FuturesUnordered::new());
    let mut is_open = true;
    while is_open || !requests.is_empty() {
        tokio::select! {
            update = updates.recv(), if is_open && queue.has_room() => match update {
                Some(update) => queue.add_update(update),
                None => is_open = false,
            },
            Some(uid) = requests.next() => queue.complete_request(&uid),
        }
        while let Some(update) = queue.next_update() {
            let (uid, request) = (update.uid.clone(), write(update));
            requests.push(async move {
                request.await;
                uid
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        cell::{Cell, RefCell},
        time::{Duration, Instant},
    };

    use model::PodName;
    use pod_status::Redirection;
    use tokio::{sync::mpsc, time::sleep};

    use super::*;

    fn update(number: usize, redirection: Redirection) -> AnnotationUpdate {
        let pod = PodName { namespace: "shop".to_owned(), name: number.to_string() };
        AnnotationUpdate { pod, uid: number.to_string().as_str().into(), redirection }
    }

    /// API server stub that records written updates.
    #[derive(Default)]
    struct Stub {
        in_flight: RefCell<BTreeSet<PodUid>>,
        most: Cell<usize>,
        written: RefCell<Vec<AnnotationUpdate>>,
    }

    impl Stub {
        async fn write(&self, update: AnnotationUpdate) {
            let is_alone = self.in_flight.borrow_mut().insert(update.uid.clone());
            assert!(is_alone, "two requests for {}", update.pod);
            self.most.set(self.most.get().max(self.in_flight.borrow().len()));
            sleep(Duration::from_millis(45)).await;
            self.in_flight.borrow_mut().remove(&update.uid);
            self.written.borrow_mut().push(update);
        }
    }

    #[tokio::test]
    async fn a_thousand_pods_are_annotated_sixteen_at_a_time() {
        let (sender, mut updates) = mpsc::channel(UPDATES);
        for number in 0..1000 {
            sender.try_send(update(number, Redirection::Enabled)).unwrap();
        }
        drop(sender);
        let (stub, began) = (Stub::default(), Instant::now());
        write_each(&mut updates, |update| stub.write(update)).await;
        let took = began.elapsed();
        assert_eq!((stub.written.borrow().len(), stub.most.get()), (1000, REQUESTS));
        // Sequentially it would take 45 s.
        assert!(took < Duration::from_secs(15), "{took:?}");
    }

    #[tokio::test]
    async fn the_newest_value_of_a_pod_is_written_last_and_values_between_are_left_out() {
        let (sender, mut updates) = mpsc::channel(UPDATES);
        let values = [Redirection::Pending, Redirection::Enabled, Redirection::None];
        for round in 0..30 {
            (0..40).for_each(|number| sender.try_send(update(number, values[(round + number) % 3])).unwrap());
        }
        drop(sender);
        let stub = Stub::default();
        write_each(&mut updates, |update| stub.write(update)).await;
        let written = stub.written.borrow();
        assert!(written.len() < 120, "{}", written.len());
        for number in 0..40 {
            let newest = written.iter().rfind(|update| update.pod.name == number.to_string());
            assert_eq!(newest, Some(&update(number, values[(29 + number) % 3])), "{number}");
        }
    }
}
