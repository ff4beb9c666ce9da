//! Events of the Kubernetes API, as far as the parts of the agent that report something know of them.

use std::time::Duration;

use crate::{PodName, PodUid};

/// Interval at which a problem that persists is reported again: the API server deletes Events after an hour.
pub const NOTICE_INTERVAL: Duration = Duration::from_secs(1800);

/// Level of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EventLevel {
    /// For the record.
    Normal,
    /// An operator should look into it.
    Warning,
}

/// Subject of an Event.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EventSubject {
    /// The node.
    Node,
    /// The agent: its pod.
    Agent {
        /// Whether the Event is about the node if there is no such pod; else it is not published then.
        or_node: bool,
    },
    /// A pod of the node.
    Pod {
        /// Namespace and name.
        name: PodName,
        /// UID of the pod: `kubectl describe` finds its Events by it.
        uid: PodUid,
    },
}

/// A notice for people who look at the cluster, which is published as an Event.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Notice {
    /// Subject of the notice.
    pub about: EventSubject,
    /// Level of the Event.
    pub level: EventLevel,
    /// The reason: one word in CamelCase, for filters.
    pub reason: &'static str,
    /// The message, in sentences. The API server takes 1024 bytes; what is longer is cut.
    pub message: String,
}
