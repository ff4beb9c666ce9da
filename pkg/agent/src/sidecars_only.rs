//! Mode of an agent without ambient mode, which captures nothing and only identifies pods for the plugin.

use std::net::IpAddr;

use model::{ContainerId, PodUid, Reason};

use crate::{
    AgentState, CaptureMode, CaptureReply, CaptureResult, PodAttachment, PodEnrolment, ReconcileScope,
};

const OFF: &str = "ambient mode is off on this node";

/// Captures nothing, and stores nothing about pods. The plugin redirects pods with a sidecar by itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct SidecarsOnly;

impl CaptureMode for SidecarsOnly {
    fn reconcile(&mut self, _: &mut AgentState, _: ReconcileScope) -> Result<Option<Reason>, Reason> {
        Ok(None)
    }

    fn enrol_pod(&mut self, _: &mut AgentState, _: PodEnrolment, reply: CaptureReply) {
        drop(reply.send(Err(OFF.into()))); // the caller may have given up
    }

    fn skip_pod(&mut self, _: &mut AgentState, _: &ContainerId, _: PodAttachment, reply: CaptureReply) {
        drop(reply.send(Ok(())));
    }

    fn release_pod(
        &mut self,
        _: &mut AgentState,
        _: &ContainerId,
        _: PodAttachment,
        _: bool,
    ) -> CaptureResult {
        Ok(())
    }

    fn check_pod(&mut self, _: &mut AgentState, _: &PodUid, _: &[IpAddr], reply: CaptureReply) {
        drop(reply.send(Err(OFF.into())));
    }
}
