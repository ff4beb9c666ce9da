//! Health of the agent as a whole, for the kubelet's probes, the node's condition and the state document.

use std::sync::Arc;

use agent::AgentStatus;
use installer::InstallerStatus;
use model::Reason;
use report::PreflightCheck;
use telemetry::http::HealthCheck;

use crate::{condition, preflight::PreflightOutcome};

/// Health of installer and agent, for probes.
#[derive(Clone)]
pub(crate) struct HealthProbe {
    pub(crate) installer: Arc<InstallerStatus>,
    pub(crate) agent: Arc<AgentStatus>,
    pub(crate) preflight: Arc<PreflightOutcome>,
    /// Without ambient mode the agent must be alive, and nothing waits for it to be ready.
    pub(crate) is_ambient: bool,
}

impl HealthProbe {
    /// Whether the plugin's files are as they should be, and looked after.
    pub(crate) fn installer(&self) -> Result<(), Reason> {
        self.installer.live().and_then(|()| self.installer.ready())
    }

    /// How often something has changed that people are shown of the node's network.
    pub(crate) fn changes(&self) -> u64 {
        self.agent.changes()
    }

    /// Whether the node's network is as it should be, and looked after; `None` without ambient mode.
    pub(crate) fn agent(&self) -> Option<Result<(), Reason>> {
        self.is_ambient.then(|| self.agent.live().and_then(|()| self.agent_ready()))
    }

    /// Checks of the node at the start.
    pub(crate) fn preflight(&self) -> Vec<PreflightCheck> {
        self.preflight.checks()
    }

    fn agent_ready(&self) -> Result<(), Reason> {
        if self.is_ambient { self.preflight.ready().and_then(|()| self.agent.ready()) } else { Ok(()) }
    }
}

impl HealthCheck for HealthProbe {
    fn live(&self) -> Result<(), Reason> {
        self.installer.live().and_then(|()| self.agent.live())
    }

    fn ready(&self) -> Result<(), Reason> {
        match (self.installer.ready(), self.agent_ready()) {
            (Err(installer), Err(agent)) => Err(format!("{installer}; {agent}").into()),
            (installer, agent) => installer.and(agent),
        }
    }

    fn reason(&self) -> &'static str {
        match (self.installer.ready(), self.agent_ready()) {
            (Err(_), _) => condition::NOT_INSTALLED,
            (Ok(()), Err(_)) => condition::NETWORK_NOT_READY,
            (Ok(()), Ok(())) => "",
        }
    }
}
