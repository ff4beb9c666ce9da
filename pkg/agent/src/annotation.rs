//! Updates of pod annotations.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use enrolment::ambient::AMBIENT_REDIRECTION;
use model::{Pod, PodName, PodUid};
use pod_status::Redirection;
use retry::{Attempts, Backoff};

use crate::ChangedPods;

/// Delay before an annotation that the API does not show is submitted again; doubled each time.
const FIRST_AGAIN: Duration = Duration::from_secs(20);
const LAST_AGAIN: Duration = Duration::from_secs(600);
const AGAIN: Backoff = Backoff::new(FIRST_AGAIN, LAST_AGAIN);

/// An update of a pod's redirection annotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnotationUpdate {
    /// Name of the pod.
    pub pod: PodName,
    /// UID of the pod: a successor of the same name must not be annotated.
    pub uid: PodUid,
    /// Desired value.
    pub redirection: Redirection,
}

impl AnnotationUpdate {
    /// Returns the update that sets a pod's annotation to this value; `None` if it has that value already.
    pub(crate) fn for_pod(pod: &Pod, redirection: Redirection) -> Option<AnnotationUpdate> {
        let shown = pod.metadata.annotations.get(AMBIENT_REDIRECTION).map(String::as_str);
        // Other values are set by the user, with another meaning.
        let shown = shown.filter(|value| Redirection::VALUES.contains(value));
        (shown != redirection.annotation_value()).then(|| AnnotationUpdate {
            pod: pod.name(),
            uid: pod.metadata.uid.clone(),
            redirection,
        })
    }
}

/// Queues an update for the API server; must not block.
pub type AnnotationSink = Box<dyn Fn(AnnotationUpdate) + Send>;

/// A submitted annotation, and when to submit it again if the API does not show it.
#[derive(Debug)]
struct SubmittedAnnotation {
    redirection: Redirection,
    again: Instant,
    attempts: Attempts,
}

/// Submitted annotations that the API may not show yet.
pub(crate) struct AnnotationPublisher {
    sink: AnnotationSink,
    submitted: BTreeMap<PodUid, SubmittedAnnotation>,
}

impl AnnotationPublisher {
    pub(crate) fn new(sink: AnnotationSink) -> AnnotationPublisher {
        AnnotationPublisher { sink, submitted: BTreeMap::new() }
    }

    /// Submits an update unconditionally.
    pub(crate) fn submit(&self, update: AnnotationUpdate) {
        (self.sink)(update);
    }

    /// Submits annotations that the API does not show: each once, and again while it is still missing.
    pub(crate) fn publish_updates(
        &mut self,
        only: Option<&ChangedPods>,
        marks: Vec<AnnotationUpdate>,
        now: Instant,
    ) {
        let desired: BTreeMap<&PodUid, Redirection> =
            marks.iter().map(|mark| (&mark.uid, mark.redirection)).collect();
        let is_other = |uid: &PodUid| only.is_some_and(|changed| !changed.pods.contains_key(uid));
        self.submitted.retain(|uid, before| is_other(uid) || desired.get(uid) == Some(&before.redirection));
        for mark in marks {
            let AnnotationUpdate { uid, redirection, .. } = mark.clone();
            let new = || SubmittedAnnotation { redirection, again: now, attempts: AGAIN.start_attempts() };
            let submitted = self.submitted.entry(uid).or_insert_with(new);
            if submitted.again <= now {
                submitted.again = now + submitted.attempts.record_failure();
                (self.sink)(mark);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_annotation_that_the_api_does_not_show_is_submitted_at_growing_intervals() {
        let (sender, submitted) = std::sync::mpsc::channel();
        let sink = Box::new(move |update| drop(sender.send(update)));
        let mut publisher = AnnotationPublisher::new(sink);
        let start = Instant::now();
        let mut is_submitted = |redirection, second| {
            let update = AnnotationUpdate { pod: PodName::default(), uid: "1".into(), redirection };
            publisher.publish_updates(None, vec![update], start + Duration::from_secs(second));
            submitted.try_recv().is_ok()
        };
        let times: Vec<u64> =
            (0..2500).filter(|second| is_submitted(Redirection::Pending, *second)).collect();
        assert_eq!(times, [0, 20, 60, 140, 300, 620, 1220, 1820, 2420]);
        assert!(is_submitted(Redirection::Enabled, 2500), "another value does not wait");
        assert!(!is_submitted(Redirection::Enabled, 2519) && is_submitted(Redirection::Enabled, 2520));
    }
}
