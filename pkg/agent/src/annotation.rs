//! Annotations of pods that should change.

use model::{PodName, PodUid};
use pod_status::Redirection;

/// A pod whose redirection annotation should change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnotationUpdate {
    /// The pod's name.
    pub pod: PodName,
    /// The pod's UID: a successor of the same name must not be annotated.
    pub uid: PodUid,
    /// The desired value.
    pub redirection: Redirection,
}

/// Queues an update for the API server; must not block.
pub type AnnotationSink = Box<dyn Fn(AnnotationUpdate) + Send>;
