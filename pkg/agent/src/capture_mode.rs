//! A capture mode: what the reconciler does with pods that belong to ambient mode.

use std::{net::IpAddr, sync::mpsc::Sender, time::Instant};

use model::{ContainerId, PodUid, Reason};
use netns::Netns;
use planner::node::ZtunnelFallback;

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
    /// The pod's network namespace, where the caller told it.
    pub netns: Option<Netns>,
    /// When it has failed if it is not done.
    pub deadline: Instant,
    /// The pod, as the API knows it.
    pub pod: Box<model::Pod>,
}

/// A capture mode. All runs on the reconciler's thread, in the node's network namespace.
pub trait CaptureMode: Send {
    /// Looks, does, and looks again. Answers with what is wrong although pods can be enrolled, if anything; an error
    /// means that they cannot.
    fn reconcile(&mut self, core: &mut AgentState, scope: ReconcileScope) -> Result<Option<Reason>, Reason>;

    /// Whether somebody waits for the next turn.
    fn is_awaited(&self) -> bool;

    /// Answers those who wait for a turn; `trouble`: why nobody can be enrolled.
    fn answer(&mut self, trouble: Option<&Reason>);

    /// Enrols a pod.
    fn enrol(&mut self, core: &mut AgentState, enrolment: PodEnrolment, reply: CaptureReply);

    /// Notes the addresses of a pod outside of ambient mode. If an earlier pod is still captured by one of them, this
    /// ends that.
    fn skip(
        &mut self,
        core: &mut AgentState,
        container: &ContainerId,
        attachment: PodAttachment,
        reply: CaptureReply,
    );

    /// A container has gone, and these addresses are nobody's any more.
    fn release(
        &mut self,
        core: &mut AgentState,
        container: &ContainerId,
        gone: PodAttachment,
    ) -> CaptureResult;

    /// Compares with the kernel.
    fn check(&mut self, core: &mut AgentState, uid: &PodUid, ips: &[IpAddr], reply: CaptureReply);

    /// Ends what was begun: when this returns, nothing changes the kernel any more. After it, the way is only dropped, or
    /// forgets all pods.
    fn settle(&mut self);

    /// What happens while no ztunnel is ready. True if that is another thing than before.
    fn set_fallback(&mut self, fallback: ZtunnelFallback) -> bool;

    /// Takes one result of work on another thread, for which [`AgentHandle::work_completed`] was called.
    ///
    /// [`AgentHandle::work_completed`]: crate::AgentHandle::work_completed
    fn work_completed(&mut self, core: &mut AgentState);

    /// What it knows, for people who ask.
    fn snapshot(&self) -> CaptureSnapshot;

    /// When it wants a turn without anything having come.
    fn due(&self) -> Option<Instant>;
}
