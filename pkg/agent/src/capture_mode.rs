//! A capture mode: what the reconciler does with pods that belong to ambient mode.

use std::{net::IpAddr, time::Instant};

use model::{ContainerId, PodUid};
use netns::Netns;
use planner::node::ZtunnelFallback;

use crate::{
    agent_state::AgentState,
    inpod::JobResult,
    ledger::PodAttachment,
    reconciler::{ReconcileScope, ReplySender},
    snapshot::CaptureSnapshot,
};

/// Why something is not as it should be, in a sentence.
pub(crate) type TroubleMessage = String;

/// A pod that an ADD is about.
#[derive(Debug)]
pub(crate) struct PodEnrolment {
    /// The container that the runtime names.
    pub(crate) container: ContainerId,
    /// UID and addresses.
    pub(crate) attachment: PodAttachment,
    /// The pod's network namespace, where the caller told it.
    pub(crate) netns: Option<Netns>,
    /// When it has failed if it is not done.
    pub(crate) deadline: Instant,
    /// The pod, as the API knows it.
    pub(crate) pod: Box<model::Pod>,
}

/// A capture mode. All runs on the reconciler's thread, in the node's network namespace.
pub(crate) trait CaptureMode: Send {
    /// Looks, does, and looks again. Answers with what is wrong although pods can be enrolled, if anything; an error
    /// means that they cannot.
    fn reconcile(
        &mut self,
        core: &mut AgentState,
        scope: ReconcileScope,
    ) -> Result<Option<TroubleMessage>, TroubleMessage>;

    /// Whether somebody waits for the next turn.
    fn is_awaited(&self) -> bool;

    /// Answers those who wait for a turn; `trouble`: why nobody can be enrolled.
    fn answer(&mut self, trouble: Option<&str>);

    /// Enrols a pod.
    fn enrol(
        &mut self,
        core: &mut AgentState,
        enrolment: PodEnrolment,
        reply: ReplySender<Result<(), String>>,
    );

    /// Notes the addresses of a pod outside of ambient mode. If an earlier pod is still captured by one of them, this
    /// ends that.
    fn pass_by(
        &mut self,
        core: &mut AgentState,
        container: &ContainerId,
        attachment: PodAttachment,
        reply: ReplySender<Result<(), String>>,
    );

    /// A container has gone, and these addresses are nobody's any more.
    fn release(
        &mut self,
        core: &mut AgentState,
        container: &ContainerId,
        gone: PodAttachment,
    ) -> Result<(), String>;

    /// Compares with the kernel.
    fn check(
        &mut self,
        core: &mut AgentState,
        uid: &PodUid,
        ips: &[IpAddr],
        reply: ReplySender<Result<(), String>>,
    );

    /// Ends what was begun: when this returns, nothing changes the kernel any more. After it, the way is only dropped, or
    /// forgets all pods.
    fn settle(&mut self);

    /// What happens while no ztunnel is ready. True if that is another thing than before.
    fn set_fallback(&mut self, fallback: ZtunnelFallback) -> bool;

    /// Something that was begun has ended, or ztunnel said something.
    fn done(&mut self, core: &mut AgentState, done: JobResult);

    /// What it knows, for people who ask.
    fn snapshot(&self) -> CaptureSnapshot;

    /// When it wants a turn without anything having come.
    fn due(&self) -> Option<Instant>;
}
