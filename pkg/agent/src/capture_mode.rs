//! A capture mode: what the reconciler does with pods that belong to ambient mode.

use std::{net::IpAddr, sync::mpsc::Sender, time::Instant};

use model::{ContainerId, PodUid, Reason};
use netns::{Netns, NetnsId};
use node_plan::ZtunnelFallback;

use crate::{
    agent_state::AgentState, ledger::PodAttachment, reconciler::ReconcileScope, snapshot::CaptureSnapshot,
};

/// The result of an operation on a pod; the error says what failed and why.
pub type CaptureResult = Result<(), Reason>;

/// Returns the result of an operation to the thread that requested it, which may have given up.
pub type CaptureReply = Sender<CaptureResult>;

/// A pod that an ADD is about.
#[derive(Debug)]
pub struct PodEnrolment {
    /// The container that the runtime names.
    pub container: ContainerId,
    /// UID and addresses.
    pub attachment: PodAttachment,
    /// The pod's network namespace, if the caller passed it.
    pub netns: Option<Netns>,
    /// When it fails unless it has completed.
    pub deadline: Instant,
    /// The pod, as the API knows it.
    pub pod: Box<model::Pod>,
}

/// A capture mode. All runs on the reconciler's thread, in the node's network namespace.
pub trait CaptureMode: Send {
    /// Observes, applies and verifies. Returns what is wrong although pods can be enrolled, if anything; an error means
    /// that they cannot.
    fn reconcile(&mut self, core: &mut AgentState, scope: ReconcileScope) -> Result<Option<Reason>, Reason>;

    /// Whether a request waits for the next pass.
    fn is_awaited(&self) -> bool;

    /// Answers the requests that wait for a pass; `problem`: why no pod can be enrolled.
    fn answer_requests(&mut self, problem: Option<&Reason>);

    /// Enrols a pod.
    fn enrol_pod(&mut self, core: &mut AgentState, enrolment: PodEnrolment, reply: CaptureReply);

    /// Notes the addresses of a pod outside of ambient mode. If an earlier pod is still captured by one of them, that
    /// capture ends.
    fn skip_pod(
        &mut self,
        core: &mut AgentState,
        container: &ContainerId,
        attachment: PodAttachment,
        reply: CaptureReply,
    );

    /// A container was deleted, and these addresses belong to no pod any more. `is_last`: nor has the pod another container, as far as
    /// is known.
    fn release_pod(
        &mut self,
        core: &mut AgentState,
        container: &ContainerId,
        gone: PodAttachment,
        is_last: bool,
    ) -> CaptureResult;

    /// False if this is certainly not the network namespace of the pod with this UID.
    fn may_have_netns(&self, _uid: &PodUid, _netns: NetnsId) -> bool {
        true // node-level capture does not know any
    }

    /// Compares with the kernel. An error: the pod is known to bypass the mesh.
    fn check_pod(&mut self, core: &mut AgentState, uid: &PodUid, ips: &[IpAddr], reply: CaptureReply);

    /// Completes what has begun: when this returns, nothing changes the kernel any more. Afterwards the mode is only
    /// dropped, or forgets all pods.
    fn finish_work(&mut self);

    /// Sets what happens while no ztunnel is ready. Returns whether that is a change.
    fn set_fallback(&mut self, fallback: ZtunnelFallback) -> bool;

    /// Handles one result of work on another thread, for which [`AgentHandle::work_completed`] was called.
    ///
    /// [`AgentHandle::work_completed`]: crate::AgentHandle::work_completed
    fn work_completed(&mut self, core: &mut AgentState);

    /// Returns the state of the capture mode, for the debug state.
    fn capture_snapshot(&self) -> CaptureSnapshot;

    /// When it needs a pass even if no event occurs.
    fn next_wakeup(&self) -> Option<Instant>;
}
