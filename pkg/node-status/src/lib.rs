//! Comparison of the agent's knowledge with the kernel: the document that all diagnostics show.
//!
//! The reconciler only provides a copy of its state (`agent::AgentSnapshot`). The kernel is queried on the caller's thread, so no
//! pod waits for it. Reading changes nothing: no rule, no file. A proof ([`NodeInspector::prove_pod`]) sends packets. Called by
//! `install-cni` alone.

mod alone;
mod client;
mod firewall;
mod inpod;
mod local;
mod node;
mod pods;
mod preflight;
mod probe_source;
mod proof;
mod records;
mod sidecar;
mod sidecar_drift;
mod simulation;
mod standalone;
mod steps;

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use agent::{AgentHandle, AgentSnapshot, CaptureSnapshot, to_milliseconds};
use agent_protocol::PodRecord;
use anyhow::Result;
use capture_modes::{CaptureConfig, CaptureSettings};
use daemon_settings::{DaemonSettings, ProcessEnvironment, SettingsErrors};
use model::Reason;
use netns::Netns;
use node_plan::DesiredState;
use pod_status::PodLife;
use report::{
    NodeSimulation, NodeState, Observer, PodState, RedirectionMode, SIMULATION_SCHEMA, SimulatedChange,
    StatePart, StateReport, Unobserved,
};

pub use client::{
    FetchError, LIMIT, explain_pod, fetch, from_agent, obtain_report, prove_pod, send_put, simulate_change,
};
pub use local::{complete_report, shared_config};
pub use preflight::{check_node, preflight_agent, taken_ports};
pub use probe_source::detect_probe_sources;
pub use proof::NODE_LEVEL;
pub use records::add_failures;
pub use sidecar::add_repairs;
pub use sidecar_drift::{SidecarDriftChecker, SidecarDriftMetrics};
pub use standalone::{last_state, open_node};

/// Timeout of the reconciler, which answers between two messages; a pass takes less than a second, unless a tool hangs.
const PATIENCE: Duration = Duration::from_secs(10);

/// Collects the state of a node with an agent, one observation at a time. Caches its observations of pods with a sidecar, so that
/// repeating them is cheap.
#[derive(Debug)]
pub struct NodeInspector {
    settings: Arc<DaemonSettings>,
    handle: AgentHandle,
    /// Network namespace of the node; `None`: the process's own.
    node: Option<Netns>,
    sidecars: Mutex<sidecar::SidecarCache>,
    /// Time of the agent's start.
    started: String,
}

impl NodeInspector {
    /// Returns an inspector for an agent that starts now, to which `handle` sends.
    ///
    /// # Errors
    /// The node's network namespace cannot be opened.
    pub fn open(settings: Arc<DaemonSettings>, handle: AgentHandle) -> Result<NodeInspector> {
        let node = settings.ambient.as_ref().map(open_node).transpose()?.flatten();
        let started = agent_protocol::rfc3339(SystemTime::now());
        Ok(NodeInspector { settings, handle, node, sidecars: Mutex::default(), started })
    }

    /// Compares the reconciler's state with the kernel. Returns everything of [`StateReport`] but version, health, installation and
    /// configuration, which the caller adds. Observes the node once, and each pod with a sidecar briefly. For pods with in-pod
    /// redirection it shows the reconciler's last observation. `excluded`: namespaces that the plugin's entry excludes. Blocks.
    ///
    /// # Errors
    /// In ambient mode: the reconciler does not answer.
    pub fn observe(&self, records: &[Arc<PodRecord>], excluded: &[String]) -> Result<StateReport, Reason> {
        let began = Instant::now();
        let snapshot = self.agent_snapshot();
        let cache = &mut *self.sidecars.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = match &self.settings.ambient {
            None => {
                records::observe_recorded(&self.settings, excluded, snapshot.ok().as_deref(), records, cache)
            }
            Some(ambient) => {
                let snapshot = snapshot?;
                self.in_node(|| observe_ambient(&ambient.agent, &snapshot, records, cache))?
            }
        };
        state.node.agent_started_at = Some(self.started.clone());
        stamp_report(&mut state, began, Observer::Agent);
        Ok(state)
    }

    /// Observes a pod of the last [`NodeInspector::observe`] more closely: with in-pod capture, each of its rules; for others
    /// that observation was complete. Blocks.
    ///
    /// # Errors
    /// The reconciler does not answer.
    pub fn verify_pod(&self, pod: &mut PodState) -> Result<(), Reason> {
        let settings = self.settings.ambient.as_ref().map(|ambient| &ambient.agent);
        let settings = settings.filter(|_| pod.mode == Some(RedirectionMode::InPod));
        let Some((settings, chosen)) = settings.and_then(|all| Some((all, all.capture.in_pod()?))) else {
            return Ok(());
        };
        let snapshot = self.agent_snapshot()?;
        if let CaptureSnapshot::InPod { enrolled, .. } = &snapshot.capture
            && let Some(enrolled_pod) = enrolled.get(&pod.uid)
        {
            let known = snapshot.pods.iter().find(|known| known.pod.metadata.uid == pod.uid);
            let life = known.map_or(PodLife::Ending, |known| known.life);
            let node = self.in_node(|| inpod::node_sources(&pod.ips))?;
            inpod::verify_rules(enrolled_pod, chosen, &settings.tools, life, &node, pod);
        }
        Ok(())
    }

    /// Simulates the effect of a change on the node's pods, without changing anything. Blocks.
    ///
    /// # Errors
    /// The reconciler does not answer, or the pods' network namespaces cannot be reached.
    pub fn simulate_change(
        &self,
        records: &[Arc<PodRecord>],
        change: &SimulatedChange,
    ) -> Result<NodeSimulation, Reason> {
        let (ambient, without) = (self.settings.ambient.as_ref(), &self.settings.ambient_traces);
        let (settings, is_ambient) = (&ambient.unwrap_or(without).agent, ambient.is_some());
        let schema = SIMULATION_SCHEMA.to_owned();
        match change {
            SimulatedChange::Labels(_) if !is_ambient => {
                Ok(NodeSimulation { schema, synced: true, ..NodeSimulation::default() })
            }
            SimulatedChange::Labels(change) => {
                let snapshot = self.agent_snapshot()?;
                Ok(self.in_node(|| simulation::simulate_labels(settings, &snapshot, records, change))?)
            }
            SimulatedChange::Settings(change) => match self.settings.simulate(change, &ProcessEnvironment) {
                Ok(other) => {
                    let (snapshot, now) = (self.agent_snapshot()?, (settings, is_ambient));
                    Ok(self.in_node(|| simulation::simulate_settings(now, &snapshot, records, other))?)
                }
                Err(SettingsErrors(mistakes)) => {
                    Ok(NodeSimulation { schema, synced: true, mistakes, ..NodeSimulation::default() })
                }
            },
        }
    }

    fn agent_snapshot(&self) -> Result<Box<AgentSnapshot>, String> {
        let limit = PATIENCE.as_secs();
        self.handle
            .request_snapshot(PATIENCE)
            .ok_or_else(|| format!("the agent's loop has not answered for {limit} s"))
    }

    fn in_node<T: Send>(&self, act: impl FnOnce() -> T + Send) -> Result<T, String> {
        match &self.node {
            None => Ok(act()),
            Some(node) => node.run_in(act).map_err(|error| error.to_string()),
        }
    }
}

/// Records time and observer of an observation that began then.
fn stamp_report(state: &mut StateReport, began: Instant, by: Observer) {
    let took = began.elapsed();
    let at = SystemTime::now().checked_sub(took).unwrap_or(SystemTime::UNIX_EPOCH);
    state.observation.observed_at = agent_protocol::rfc3339(at);
    state.observation.duration_ms = to_milliseconds(took);
    state.observation.observer = by;
}

/// Observes a node with ambient mode, in the calling thread's network namespace.
fn observe_ambient(
    settings: &CaptureSettings,
    snapshot: &AgentSnapshot,
    records: &[Arc<PodRecord>],
    cache: &mut sidecar::SidecarCache,
) -> StateReport {
    let mut state = StateReport { history: snapshot.history.clone(), ..local::empty_report() };
    state.node = node_state(settings, snapshot);
    state.observation.unobserved.extend(stale_collections(snapshot));
    let mut holding = None;
    match &snapshot.capture {
        CaptureSnapshot::Node { desired, .. } => {
            let observation = node::observe_node(settings, desired.as_ref());
            let active = observation
                .observed
                .as_ref()
                .and_then(|observation| node::active_slot(settings, observation));
            state.node.active_slot = active.map(node_plan::ZtunnelSlot::number);
            // A slot that could not be built has no traffic, and its absence makes nothing bypass the mesh.
            if let Some(desired) = desired.as_ref().filter(|desired| desired.active != active) {
                let held = DesiredState { slots: [None, None], active: None, ..desired.clone() };
                let mut without = StateReport::default();
                node::add_network(settings, Some(&held), observation.clone(), &mut without);
                holding = Some(without.network);
            }
            node::add_network(settings, desired.as_ref(), observation, &mut state);
        }
        CaptureSnapshot::InPod { members, .. } => inpod::observe_probes(settings, members, &mut state),
        CaptureSnapshot::None => {}
    }
    state.ztunnels = pods::ztunnel_states(snapshot, state.node.active_slot);
    let mut network = pods::NodeNetwork::from_state(&state.network);
    network.is_partial |=
        state.observation.unobserved.iter().any(|one| one.part == StatePart::ZtunnelNamespace);
    let active = state.ztunnels.iter().filter(|ztunnel| ztunnel.active && ztunnel.slot.is_some());
    network.served =
        active.flat_map(|ztunnel| ztunnel.ips.iter().copied().map(model::Family::from_ip)).collect();
    network.holding = holding.as_ref().map(|network| Box::new(pods::NodeNetwork::from_state(network)));
    let context = pods::PodContext { snapshot, network, settings, policy: &settings.policy };
    let mut redirects = pods::PodRedirects::new();
    state.pods = snapshot.pods.iter().map(|known| context.pod_state(known, &mut redirects)).collect();
    if let CaptureSnapshot::InPod { enrolled, .. } = &snapshot.capture {
        state.plan = inpod::plan_steps(&state, enrolled);
        if let Some(chosen) = settings.capture.in_pod() {
            inpod::observe_dns(chosen, enrolled, &mut state.pods);
        }
    }
    let places = sidecar::NetnsPaths { netns_directory: &settings.netns_directory, proc: None };
    sidecar::observe_sidecars(places, records, &redirects, cache, &mut state.pods);
    state
}

/// Returns what is unknown because watches fail.
fn stale_collections(snapshot: &AgentSnapshot) -> impl Iterator<Item = Unobserved> {
    snapshot.stale.iter().map(|stale| {
        let (resource, seconds) = (stale.collection.as_str(), stale.age.as_secs());
        let message = format!(
            "the watch of {resource} has failed for {seconds} s, so changes since are not known: {}",
            stale.error
        );
        Unobserved::new(StatePart::ApiObjects, message)
    })
}

/// Returns the mode in which ambient pods are captured; `None`: not captured.
fn redirection_mode(capture: &CaptureSnapshot) -> Option<RedirectionMode> {
    match capture {
        CaptureSnapshot::Node { .. } => Some(RedirectionMode::Node),
        CaptureSnapshot::InPod { .. } => Some(RedirectionMode::InPod),
        CaptureSnapshot::None => None,
    }
}

fn node_state(settings: &CaptureSettings, snapshot: &AgentSnapshot) -> NodeState {
    let no_ztunnel_policy = match &snapshot.capture {
        CaptureSnapshot::Node { fallback, .. } => Some(fallback.to_string()),
        CaptureSnapshot::InPod { .. } | CaptureSnapshot::None => None,
    };
    let configured_mode = match settings.capture {
        CaptureConfig::Node => "node",
        CaptureConfig::InPod(_) => "in-pod",
        CaptureConfig::Auto(_) => "auto",
    };
    NodeState {
        mode: redirection_mode(&snapshot.capture),
        configured_mode: configured_mode.to_owned(),
        no_ztunnel_policy,
        problem: snapshot.problem.clone(),
        synced: snapshot.synced,
        ..NodeState::default() // the active slot is read from the kernel
    }
}
