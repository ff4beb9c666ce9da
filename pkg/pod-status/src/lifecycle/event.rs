//! What happens to a pod that is captured in-pod, and what is to be done about it.

use model::Reason;

use super::AgentTime;

/// Something that happens to the pod. `N` identifies a network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodEvent<N> {
    /// The plugin's ADD waits for an answer until the deadline.
    Added {
        /// The namespace that the plugin handed over.
        netns: Option<N>,
        /// When the ADD has failed if it is not answered.
        deadline: AgentTime,
    },
    /// The pod belongs to the mesh, maybe again. `changed`: it asks for other rules than before.
    Joined {
        /// Other rules than before.
        changed: bool,
    },
    /// From now on its rules let its traffic go on because no ztunnel is there (`true`), or redirect it.
    Opened(bool),
    /// The pod does not belong to the mesh any more, and why.
    Left(Reason),
    /// The pod is outside of the mesh, but rules of ours are in its namespace: it left while no agent was here.
    LeftMeanwhile,
    /// The pod's namespace was found. `captured`: with rules of ours in it.
    Found {
        /// The namespace.
        netns: N,
        /// Rules of ours are in it.
        captured: bool,
    },
    /// A search has ended. `there`: it found a process of the pod.
    DiscoveryDone {
        /// A process of it was found.
        there: bool,
    },
    /// [`PodAction::Capture`] has ended, in that namespace; `Ok(true)`: something had to be changed.
    Captured(N, Result<bool, Reason>),
    /// [`PodAction::Observe`] has ended, in that namespace; by now its rules are in place. `Ok(true)`: something was missing,
    /// and was restored.
    Observed(N, Result<bool, Reason>),
    /// [`PodAction::Observe`] has ended, in that namespace: something was missing and was restored, and another component has removed
    /// it again before it could be observed. False: others had restored it.
    Contested(N, bool),
    /// The kernel reports that another component changed rules, routes, addresses or links of that namespace, and no action that
    /// has begun observes the result.
    Changed(N),
    /// [`PodAction::Release`] has ended.
    Released(Result<(), Reason>),
    /// ztunnel serves it in that namespace.
    Accepted(N),
    /// ztunnel refuses to serve it in that namespace, and why.
    Refused(N, Reason),
    /// The deadline of an ADD has passed, and what it waited for.
    Expired(Reason),
}

/// Something to be done for the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodAction {
    /// Put its rules in place.
    Capture,
    /// Observe its rules, and restore what is missing.
    Observe,
    /// Remove its rules.
    Release,
    /// Have ztunnel serve it.
    Serve,
    /// Answer the ADDs that wait.
    Answer(Result<(), Reason>),
    /// Another namespace than before is its namespace now.
    Moved,
    /// Announce that the pod is captured, and was not before.
    Announce,
    /// Forget it, and have ztunnel drop it.
    Forget(Reason),
}
