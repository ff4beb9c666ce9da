//! Overall health of the agent, for the kubelet's probes, the node's condition and the state document.

use std::sync::Arc;

use agent::AgentStatus;
use installer::InstallerStatus;
use model::Reason;
use telemetry::http::HealthCheck;

use crate::{condition, preflight::PreflightOutcome};

/// Health of installer and agent.
#[derive(Clone)]
pub(crate) struct HealthProbe {
    pub(crate) installer: Arc<InstallerStatus>,
    pub(crate) agent: Arc<AgentStatus>,
    pub(crate) preflight: Arc<PreflightOutcome>,
    /// Whether ambient mode is on; without it, the agent must be alive, and readiness does not wait for it.
    pub(crate) is_ambient: bool,
}

impl HealthProbe {
    /// Returns `Ok` if the plugin's files match the desired state and the installer is running.
    pub(crate) fn installer_health(&self) -> Result<(), Reason> {
        self.installer.check_live().and_then(|()| self.installer.check_ready())
    }

    /// Returns `Ok` if the node's network matches the desired state and the agent is running; `None` without ambient mode.
    pub(crate) fn agent_health(&self) -> Option<Result<(), Reason>> {
        let check = || self.preflight.capture_readiness().and_then(|()| self.agent.check_readiness());
        self.is_ambient.then(check)
    }

    /// Returns `Ok` if pods are captured as desired, or ambient mode is off.
    pub(crate) fn agent_readiness(&self) -> Result<(), Reason> {
        self.agent_health().unwrap_or(Ok(()))
    }
}

impl HealthCheck for HealthProbe {
    fn check_liveness(&self) -> Result<(), Reason> {
        self.installer.check_live().and_then(|()| self.agent.check_liveness())
    }

    fn check_readiness(&self) -> Result<(), Reason> {
        match (self.installer.check_ready(), self.agent_readiness()) {
            (Err(installer), Err(agent)) => Err(format!("{installer}; {agent}").into()),
            (installer, agent) => installer.and(agent),
        }
    }

    fn unready_reason(&self) -> &'static str {
        match (self.installer.check_ready(), self.agent_readiness()) {
            (Err(_), _) => condition::NOT_INSTALLED,
            (Ok(()), Err(_)) => condition::NETWORK_NOT_READY,
            (Ok(()), Ok(())) => "",
        }
    }
}
