//! State document of a node without an agent.

use std::time::Instant;

use anyhow::{Context as _, Result};
use daemon_settings::{AmbientOptions, DaemonSettings};
use netns::Netns;
use report::{MAX_DOCUMENT, NetworkState, Observer, StatePart, StateReport, Unobserved};

use crate::{alone, local, preflight::is_container, records, sidecar::SidecarCache, stamp_report};

/// Compares the kernel and the files of this node with the last agent's desired state, if it was recorded and can be read, without
/// conclusions. Blocks.
pub(super) fn observe_without_agent(settings: &DaemonSettings) -> StateReport {
    let began = Instant::now();
    let path = settings.last_state();
    let (mut last, why) = match last_state(settings) {
        Ok(Some(last)) => {
            let at = &last.observation.observed_at;
            let why =
                format!("the agent does not answer; its desired state is from its last record, of {at}");
            (Some(last), why)
        }
        Ok(None) => {
            (None, format!("the agent does not answer, and there is no record of it ({})", path.display()))
        }
        Err(error) => {
            let (path, error) = (path.display(), model::describe_error(&*error));
            (None, format!("the agent does not answer, and its last record, {path}, cannot be used: {error}"))
        }
    };
    let records = settings.records.read_records();
    if let Some(last) = &mut last {
        records::add_later_pods(&records, last);
    }
    let is_ambient =
        last.as_ref().is_some_and(|last| last.node.ambient_enabled) || settings.ambient.is_some();
    let is_recorded = last.is_some();
    let mut state = match (&settings.ambient, last) {
        (Some(ambient), last) => observe_ambient(ambient, last),
        (None, Some(last)) if is_ambient => unobserved_report(last, NO_SETTINGS.to_owned()),
        (None, _) => records::observe_recorded(settings, &[], None, &records, &mut SidecarCache::default()),
    };
    stamp_report(&mut state, began, Observer::Command);
    records::add_failures(&records, &mut state);
    if is_ambient || !is_recorded {
        state.observation.unobserved.push(Unobserved::new(StatePart::Desired, why));
    }
    state.health.clear();
    state.preflight.clear();
    for ztunnel in &mut state.ztunnels {
        (ztunnel.connected, ztunnel.synced) = (None, None); // to and by an agent
    }
    judge_files(settings, &mut state);
    local::complete_report(&mut state, settings);
    state.node.ambient_enabled = is_ambient;
    state
}

/// Checks the files. In a shell on the node they are at other paths than in the agent's container.
fn judge_files(settings: &DaemonSettings, state: &mut StateReport) {
    state.installation.clear();
    if let Err(why) = is_container(&settings.installer.conf_dir) {
        return state.observation.unobserved.push(Unobserved::new(StatePart::Installation, why));
    }
    state.installation = installer::inspect_installation(&settings.installer, settings.config_map.is_none());
    state.installation.extend(local::shared_config(settings));
}

fn observe_ambient(ambient: &AmbientOptions, last: Option<StateReport>) -> StateReport {
    match open_node(ambient) {
        Ok(node) => alone::compare_with_last(&ambient.agent, node.as_ref(), last),
        Err(error) => {
            unobserved_report(last.unwrap_or_else(local::empty_report), model::describe_error(&*error))
        }
    }
}

/// Reason why nothing is observed for an agent in ambient mode whose settings are missing here.
const NO_SETTINGS: &str =
    "the command was called without the agent's settings (ambient-enabled), so it has observed nothing";

/// Returns the last agent's record without what would have to be observed, and why it was not.
fn unobserved_report(mut state: StateReport, why: String) -> StateReport {
    alone::forget_pod_states(&mut state.pods, &why);
    state.observation.unobserved = vec![Unobserved::new(StatePart::Network, why)];
    state.node.agent_started_at = None;
    state.network = NetworkState::default();
    state.plan.clear();
    state
}

/// Returns the document recorded by the last agent; `None`: none was recorded.
///
/// # Errors
/// The document cannot be read, or is of another version.
pub fn last_state(settings: &DaemonSettings) -> Result<Option<StateReport>> {
    match hostfs::read(&settings.last_state(), MAX_DOCUMENT) {
        Err(error) if error.is_missing() => Ok(None),
        text => Ok(Some(StateReport::parse(&text?)?)),
    }
}

/// Opens the node's network namespace; `None`: the process's own.
///
/// # Errors
/// The namespace cannot be opened.
pub fn open_node(options: &AmbientOptions) -> Result<Option<Netns>> {
    let node = options.host_network.as_ref().map(Netns::open).transpose();
    node.context("cannot open the node's network namespace")
}
