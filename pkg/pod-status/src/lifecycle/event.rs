//! Events and actions of the life cycle of a pod with in-pod capture.

use model::Reason;

use super::AgentTime;

/// Event of a pod. `N` identifies a network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodEvent<N> {
    /// The plugin's ADD waits for a response until the deadline.
    Added {
        /// Namespace passed by the plugin.
        netns: N,
        /// Time after which the ADD has failed without a response.
        deadline: AgentTime,
    },
    /// The pod belongs to the mesh, possibly again. `changed`: it requests other rules than before.
    Joined {
        /// Whether other rules are requested.
        changed: bool,
    },
    /// Rules change to let the traffic pass because no ztunnel is available (`true`), or to redirect it.
    Opened(bool),
    /// The pod no longer belongs to the mesh, for this reason.
    Left(Reason),
    /// The pod is outside of the mesh, but has our rules in its namespace, or the annotation of an earlier agent: it left while no
    /// agent ran.
    LeftMeanwhile,
    /// The pod's namespace was found. `captured`: with our rules in it.
    Found {
        /// Namespace of the pod.
        netns: N,
        /// Whether it has our rules.
        captured: bool,
    },
    /// A search has ended. `there`: it found a process of the pod.
    DiscoveryDone {
        /// Whether a process was found.
        there: bool,
    },
    /// [`PodAction::Capture`] has ended, in that namespace; `Ok(true)`: changes were needed.
    Captured(N, Result<bool, Reason>),
    /// [`PodAction::Observe`] has ended, in that namespace; its rules are in place now. `Ok(true)`: rules were missing, and were
    /// restored.
    Observed(N, Result<bool, Reason>),
    /// [`PodAction::Observe`] has ended, in that namespace: rules were missing and were restored, and another component has removed
    /// them again before they could be observed. False: another component had restored them.
    Contested(N, bool),
    /// The kernel reports that another component changed rules, routes, addresses or links of that namespace, and no running action
    /// observes the result.
    Changed(N),
    /// [`PodAction::Release`] has ended, in that namespace.
    Released(N, Result<(), Reason>),
    /// ztunnel serves it in that namespace.
    Accepted(N),
    /// ztunnel refuses to serve it in that namespace, for this reason.
    Refused(N, Reason),
    /// The deadline of an ADD has passed; what it waited for.
    Expired(Reason),
}

/// Action to be executed for the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodAction {
    /// Apply its rules.
    Capture,
    /// Observe its rules, and restore missing ones.
    Observe,
    /// Remove its rules.
    Release,
    /// Make ztunnel serve it.
    Serve,
    /// Respond to the waiting ADDs.
    Answer(Result<(), Reason>),
    /// The network namespace of the pod has changed.
    Moved,
    /// Announce that the pod is newly captured.
    Announce,
    /// Forget it, and make ztunnel drop it.
    Forget(Reason),
}
