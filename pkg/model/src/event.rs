//! Events of the Kubernetes API, as seen by the parts of the agent that report.

use std::time::Duration;

use crate::{PodName, PodUid};

/// Interval at which a persistent problem is reported again: the API server deletes Events after an hour.
pub const NOTICE_INTERVAL: Duration = Duration::from_secs(1800);

/// Level of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EventLevel {
    /// Informational.
    Normal,
    /// Requires attention of an operator.
    Warning,
}

/// Subject of an Event.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EventSubject {
    /// Node.
    Node,
    /// Agent: its pod.
    Agent {
        /// Whether the Event is about the node if there is no such pod; otherwise it is then not published.
        or_node: bool,
    },
    /// A pod of the node.
    Pod {
        /// Namespace and name.
        name: PodName,
        /// UID of the pod, by which `kubectl describe` finds its Events.
        uid: PodUid,
    },
}

/// A notice for people who look at the cluster, published as an Event.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Notice {
    /// Subject of the notice.
    pub about: EventSubject,
    /// Level of the Event.
    pub level: EventLevel,
    /// Reason: one CamelCase word, for filters.
    pub reason: &'static str,
    /// Message, in sentences. The API server accepts 1024 bytes; longer ones are truncated.
    pub message: String,
}
