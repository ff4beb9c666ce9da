//! Creation of the capture mode from the settings.

use std::sync::Arc;

use crate::{
    CaptureConfig, Error, auto::AutoCapture, in_pod, in_pod::InPodCapture, node, node::NodeCapture,
    settings::CaptureSettings, uninstall,
};
use agent::{AgentHandle, AgentMetrics, CaptureMode, SidecarsOnly};

/// Opens the configured capture mode for the network namespace of the calling thread, which must be the node's, and
/// removes what the other mode left there. `settings`: `None` without ambient mode: nothing is captured or changed.
///
/// `agent` is woken when work on other threads is completed. The mode must be used on a thread in the same namespace.
///
/// # Errors
/// The kernel lacks a feature or refuses, the socket for ztunnel cannot be served, or a thread cannot be started.
pub fn open(
    settings: Option<&Arc<CaptureSettings>>,
    agent: &AgentHandle,
    metrics: &AgentMetrics,
) -> Result<Box<dyn CaptureMode>, Error> {
    let Some(settings) = settings else { return Ok(Box::new(SidecarsOnly)) };
    Ok(match &settings.capture {
        CaptureConfig::Node => {
            // Without a ztunnel that supports in-pod capture, a pod's own rules cut it off.
            uninstall::log_errors(&in_pod::uninstall(settings));
            Box::new(NodeCapture::open(settings, agent)?)
        }
        CaptureConfig::InPod(chosen) => {
            // An earlier agent may have used node-level capture, whose routes now lead nowhere.
            uninstall::log_errors(&node::uninstall(settings));
            Box::new(InPodCapture::open(settings, chosen, agent, metrics.clone())?)
        }
        CaptureConfig::Auto(chosen) => {
            Box::new(AutoCapture::open(settings, chosen, agent.clone(), metrics.clone())?)
        }
    })
}
