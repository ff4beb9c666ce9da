//! Interface of the capture modes: operations of the reconciler on ambient pods.

use std::{net::IpAddr, sync::mpsc::Sender, time::Instant};

use model::{ContainerId, PodUid, Reason};
use netns::{Netns, NetnsId};
use node_plan::ZtunnelFallback;

use crate::{
    agent_state::AgentState, ledger::PodAttachment, reconciler::ReconcileScope, snapshot::CaptureSnapshot,
};

/// Result of an operation on a pod; the error has the operation and its cause.
pub type CaptureResult = Result<(), Reason>;

/// Sends the result of an operation to the thread that requested it, which may have given up.
pub type CaptureReply = Sender<CaptureResult>;

/// A pod whose ADD is handled.
#[derive(Debug)]
pub struct PodEnrolment {
    /// Container named by the runtime.
    pub container: ContainerId,
    /// UID and addresses.
    pub attachment: PodAttachment,
    /// The pod's network namespace, if the caller passed it.
    pub netns: Option<Netns>,
    /// Deadline, after which the enrolment fails.
    pub deadline: Instant,
    /// Pod as shown by the API.
    pub pod: Box<model::Pod>,
}

/// A capture mode. All methods run on the reconciler's thread, in the node's network namespace.
pub trait CaptureMode: Send {
    /// Observes, applies and verifies. Returns a problem despite which pods can be enrolled, if any; an error means that they
    /// cannot.
    fn reconcile(&mut self, core: &mut AgentState, scope: ReconcileScope) -> Result<Option<Reason>, Reason>;

    /// Whether a request waits for the next pass.
    fn is_awaited(&self) -> bool {
        false
    }

    /// Answers the requests that wait for a pass; `problem`: the reason why no pod can be enrolled.
    fn answer_requests(&mut self, _problem: Option<&Reason>) {}

    /// Enrols a pod.
    fn enrol_pod(&mut self, core: &mut AgentState, enrolment: PodEnrolment, reply: CaptureReply);

    /// Records the addresses of a pod outside of ambient mode. If an earlier pod is still captured by one of them, that capture is
    /// removed.
    fn skip_pod(
        &mut self,
        core: &mut AgentState,
        container: &ContainerId,
        attachment: PodAttachment,
        reply: CaptureReply,
    );

    /// Handles the deletion of a container whose addresses belong to no pod any more. `is_last`: the pod has no other known
    /// container.
    fn release_pod(
        &mut self,
        core: &mut AgentState,
        container: &ContainerId,
        gone: PodAttachment,
        is_last: bool,
    ) -> CaptureResult;

    /// Returns false if this is certainly not the network namespace of the pod with this UID.
    fn may_have_netns(&self, _uid: &PodUid, _netns: NetnsId) -> bool {
        true // node-level capture knows none
    }

    /// Compares a pod with the kernel. An error: the pod is known to bypass the mesh.
    fn check_pod(&mut self, core: &mut AgentState, uid: &PodUid, ips: &[IpAddr], reply: CaptureReply);

    /// Completes pending work: once it returns, the kernel is not changed any more. Afterwards the mode is only dropped, or told to
    /// forget all pods.
    fn finish_work(&mut self) {} // in other modes all work has ended when its method returns

    /// Sets the policy that applies while no ztunnel is ready. Returns whether it changed.
    fn set_fallback(&mut self, _fallback: ZtunnelFallback) -> bool {
        false // only node-level capture depends on it
    }

    /// Handles one result of work on another thread, announced by [`AgentHandle::work_completed`].
    ///
    /// [`AgentHandle::work_completed`]: crate::AgentHandle::work_completed
    fn work_completed(&mut self, _core: &mut AgentState) {}

    /// Returns the state of the capture mode, for the debug state.
    fn capture_snapshot(&self) -> CaptureSnapshot {
        CaptureSnapshot::None
    }

    /// Returns when a pass is needed even without an event. The pass has to postpone this time.
    fn next_wakeup(&self) -> Option<Instant> {
        None
    }
}
