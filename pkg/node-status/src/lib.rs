//! What the agent knows and what the kernel shows, side by side: the document that all diagnostics show.
//!
//! The reconciler only provides a copy of what it knows (`agent::AgentSnapshot`). The kernel is queried on the thread of
//! the caller, so no pod waits for it. Reading changes nothing: no rule, no file. Called by `install-cni` alone.

mod alone;
mod client;
mod firewall;
mod inpod;
mod local;
mod node;
mod pods;
mod records;
mod sidecar;
mod sidecar_drift;
mod standalone;
mod steps;

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use agent::{AgentHandle, AgentSnapshot, CaptureSnapshot, milliseconds};
use capture_modes::{CaptureConfig, CaptureSettings};
use daemon_settings::DaemonSettings;
use model::Reason;
use netns::Netns;
use planner::{EnrolmentPolicy, node::DesiredState};
use pod_status::PodLife;
use report::{
    ChangeRecord, NodeState, Observer, PodState, Provenance, RedirectionMode, StateReport, Unobserved,
};
use wire::PodRecord;

pub use client::{FetchError, LIMIT, change, error_text, explain, fetch, from_agent, obtain};
pub use local::{complete, empty, look_plain, shared_config};
pub use records::add_failures;
pub use sidecar_drift::{SidecarDriftChecker, SidecarDriftMetrics};
pub use standalone::{last as last_state, open_node, state as standalone_state};

/// The reconciler answers between two messages; a pass takes less than a second, unless a tool hangs.
const PATIENCE: Duration = Duration::from_secs(10);

/// Collects the state of a node that has an agent, one observation at a time.
#[derive(Debug)]
pub struct NodeInspector {
    settings: Arc<CaptureSettings>,
    handle: AgentHandle,
    node: Option<Netns>,
    sidecars: Mutex<sidecar::SidecarCache>,
}

impl NodeInspector {
    /// `node`: the node's network namespace; `None`: the process's own.
    #[must_use]
    pub fn new(settings: Arc<CaptureSettings>, handle: AgentHandle, node: Option<Netns>) -> NodeInspector {
        NodeInspector { settings, handle, node, sidecars: Mutex::default() }
    }

    /// Compares what the reconciler knows with the kernel. Returns everything of [`StateReport`] but version, health,
    /// installation and configuration, which the caller adds. It observes the node once, and each pod with a sidecar
    /// briefly. Of pods with in-pod redirection it shows the reconciler's last observation. Blocks.
    ///
    /// # Errors
    /// The reconciler does not answer.
    pub fn look(&self, records: &[Arc<PodRecord>]) -> Result<StateReport, Reason> {
        let (began, at) = (Instant::now(), SystemTime::now());
        let snapshot = self.snapshot()?;
        let mut state = StateReport::default();
        let mut blind = Vec::new();
        self.in_node(|| self.observe(&snapshot, records, &mut state, &mut blind))?;
        state.schema = report::SCHEMA.to_owned();
        state.history = snapshot.history;
        let took_ms = milliseconds(began.elapsed());
        state.seen = Provenance { at: wire::rfc3339(at), took_ms, by: Observer::Agent, blind };
        Ok(state)
    }

    /// Observes a pod of the last [`NodeInspector::look`] more closely: with in-pod redirection, its rules one by one; for
    /// others that observation was complete. Blocks.
    ///
    /// # Errors
    /// The reconciler does not answer.
    pub fn look_closely(&self, pod: &mut PodState) -> Result<(), Reason> {
        let Some(chosen) = self.settings.capture.in_pod().filter(|_| pod.way == Some(RedirectionMode::InPod))
        else {
            return Ok(());
        };
        let snapshot = self.snapshot()?;
        if let CaptureSnapshot::InPod { enrolled, .. } = &snapshot.way
            && let Some(enrolled_pod) = enrolled.get(&pod.uid)
        {
            let known = snapshot.pods.iter().find(|known| known.pod.metadata.uid == pod.uid);
            let life = known.map_or(PodLife::Ending, pods::life_of);
            inpod::verify(enrolled_pod, chosen, &self.settings.tools, life, pod);
        }
        Ok(())
    }

    fn snapshot(&self) -> Result<Box<AgentSnapshot>, String> {
        let limit = PATIENCE.as_secs();
        self.handle
            .snapshot(PATIENCE)
            .ok_or_else(|| format!("the agent's loop has not answered for {limit} s"))
    }

    fn in_node<T: Send>(&self, act: impl FnOnce() -> T + Send) -> Result<T, String> {
        match &self.node {
            None => Ok(act()),
            Some(node) => node.run_in(act).map_err(|error| error.to_string()),
        }
    }

    fn observe(
        &self,
        snapshot: &AgentSnapshot,
        records: &[Arc<PodRecord>],
        state: &mut StateReport,
        blind: &mut Vec<Unobserved>,
    ) {
        state.node = self.node_state(snapshot);
        let mut holding = None;
        match &snapshot.way {
            CaptureSnapshot::Node { desired, .. } => {
                let seen = node::look(&self.settings, desired.as_ref());
                let active = seen.observed.as_ref().and_then(|seen| node::active(&self.settings, seen));
                state.node.active_slot = active.map(planner::node::ZtunnelSlot::number);
                // A slot that could not be built carries no traffic, and nothing bypasses the mesh for lack of it.
                if let Some(desired) = desired.as_ref().filter(|desired| desired.active != active) {
                    let held = DesiredState { slots: [None, None], active: None, ..desired.clone() };
                    let mut without = StateReport::default();
                    node::show(&self.settings, Some(&held), seen.clone(), &mut without, &mut Vec::new());
                    holding = Some(without.network);
                }
                node::show(&self.settings, desired.as_ref(), seen, state, blind);
            }
            CaptureSnapshot::InPod { members, .. } => {
                inpod::show(&self.settings, members, state, blind);
            }
            CaptureSnapshot::None => {}
        }
        state.ztunnels = pods::ztunnels(snapshot, state.node.active_slot);
        let (pods, redirects) = pods::pods(snapshot, state, holding.as_ref(), &self.settings);
        state.pods = pods;
        if let CaptureSnapshot::InPod { enrolled, .. } = &snapshot.way {
            state.plan = inpod::plan(state, enrolled);
        }
        let mut cache = self.sidecars.lock().unwrap_or_else(PoisonError::into_inner);
        let netns_directory = self.settings.netns_directory.clone();
        let places = sidecar::NetnsPaths { netns_directory, proc: None };
        let adds = records::RecordedAdds::of(records, &redirects);
        let (recorded, namespaces) = (&adds.rules, &adds.namespaces);
        let means = sidecar::CompareContext { places: &places, recorded, namespaces };
        sidecar::show(means, &redirects, &mut cache, &mut state.pods);
    }

    fn node_state(&self, snapshot: &AgentSnapshot) -> NodeState {
        let (way, fallback) = match &snapshot.way {
            CaptureSnapshot::Node { fallback, .. } => {
                (Some(RedirectionMode::Node), Some(fallback.to_string()))
            }
            CaptureSnapshot::InPod { .. } => (Some(RedirectionMode::InPod), None),
            CaptureSnapshot::None => (None, None),
        };
        NodeState {
            name: String::new(),
            started: Some(wire::rfc3339(snapshot.started)),
            ambient: true,
            way,
            chosen: chosen(&self.settings).to_owned(),
            fallback,
            active_slot: None, // the kernel shows it
            trouble: snapshot.trouble.clone(),
            synced: snapshot.synced,
        }
    }
}

fn chosen(settings: &CaptureSettings) -> &'static str {
    match settings.capture {
        CaptureConfig::Node => "node",
        CaptureConfig::InPod(_) => "in-pod",
        CaptureConfig::Auto(_) => "auto",
    }
}

/// The pods of a node whose agent takes no part in ambient mode: the plugin's records of ADDs, the pods that the agent
/// follows, and what the kernel shows of pods with a sidecar. Remembers its observations, so that repeating them is cheap.
#[derive(Debug)]
pub struct SidecarNodeInspector {
    places: sidecar::NetnsPaths,
    agent: Option<AgentHandle>,
    policy: EnrolmentPolicy,
    sidecars: Mutex<sidecar::SidecarCache>,
}

/// The pods that [`SidecarNodeInspector::look`] found.
#[derive(Debug)]
pub struct SidecarNodeLook {
    /// By namespace and name.
    pub pods: Vec<PodState>,
    /// No pod of the node is missing: the agent follows them all.
    pub is_complete: bool,
    /// Namespaces of pods that nothing is known of.
    pub unrecorded: Option<Unobserved>,
    /// The last changes that the agent knows, the newest first.
    pub history: Vec<ChangeRecord>,
}

impl SidecarNodeInspector {
    /// `agent`: the agent that answers the plugin on this node and follows its pods, if its role permits that; `None`: the
    /// records alone count.
    #[must_use]
    pub fn new(settings: &DaemonSettings, agent: Option<AgentHandle>) -> SidecarNodeInspector {
        let places = sidecar::NetnsPaths {
            netns_directory: settings.netns_directory.clone(),
            proc: Some(settings.host_proc.clone()),
        };
        let policy = EnrolmentPolicy {
            excluded_namespaces: settings.ambient_traces.agent.policy.excluded_namespaces.clone(),
            ..EnrolmentPolicy::default()
        };
        SidecarNodeInspector { places, agent, policy, sidecars: Mutex::default() }
    }

    /// Returns the pods that were found, and what cannot be determined. Blocks.
    #[must_use]
    pub fn look(&self, records: &[Arc<PodRecord>]) -> SidecarNodeLook {
        let snapshot = self.agent.as_ref().and_then(|agent| agent.snapshot(PATIENCE));
        let known = snapshot.as_ref().filter(|snapshot| snapshot.has_pods);
        let known = known.map(|snapshot| snapshot.pods.as_slice());
        let mut cache = self.sidecars.lock().unwrap_or_else(PoisonError::into_inner);
        let look = records::pods(records, known, &self.policy, &self.places, &mut cache);
        let history = snapshot.map(|snapshot| snapshot.history).unwrap_or_default();
        SidecarNodeLook { history, ..look }
    }
}

/// Observes the node without an agent: compares the kernel with the last agent's record, as far as that goes, and lists
/// what it cannot determine. `last`: the last agent's document; `node`: the node's network namespace; `None`: the process's
/// own. Blocks.
#[must_use]
pub fn look_alone(
    settings: &CaptureSettings,
    node: Option<&Netns>,
    last: Option<StateReport>,
) -> StateReport {
    alone::look(settings, node, last)
}
