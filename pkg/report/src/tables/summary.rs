//! Summary of the node.

use pod_status::CaptureState;

use super::{
    Cell, Colour, capture_colour, capture_rank, empty_list_doubts, not_known, render_table,
    truncate_to_seconds,
};
use crate::{
    pod::PodState,
    state::{Observer, StateReport},
    text::{format_count, sanitize_text},
};

/// Renders the summary.
pub fn render_summary(state: &StateReport, colour: bool) -> String {
    let rows = [node_rows(state), pod_rows(state), agent_rows(state), file_rows(state)];
    render_table(&[], rows.into_iter().flatten(), colour)
}

fn summary_row(of: &str, cell: Cell) -> Vec<Cell> {
    vec![Cell::plain(of), cell]
}

fn health_color(is_well: bool) -> Colour {
    if is_well { Colour::Green } else { Colour::Red }
}

fn node_rows(state: &StateReport) -> Vec<Vec<Cell>> {
    let node = &state.node;
    let by = match state.observation.observer {
        Observer::Agent => format!("the agent ({})", sanitize_text(&state.version)),
        Observer::Command => "this command: no agent answers".to_owned(),
    };
    let mode = match (node.mode, node.ambient_enabled) {
        (Some(mode), _) => format!("captures {mode} (configured: {})", sanitize_text(&node.configured_mode)),
        (None, true) => "no mode in use".to_owned(),
        (None, false) => "off".to_owned(),
    };
    let observed = format!("{} by {by}", truncate_to_seconds(&state.observation.observed_at));
    let started = node.agent_started_at.iter().map(|started| ("Agent since", truncate_to_seconds(started)));
    let rows = [("Node", node.name.clone()), ("Observed", observed)].into_iter().chain(started);
    rows.chain([("Ambient mode", mode)]).map(|(of, text)| summary_row(of, Cell::plain(&text))).collect()
}

fn pod_rows(state: &StateReport) -> Vec<Vec<Cell>> {
    let has_ztunnel = state.ztunnels.iter().any(|ztunnel| ztunnel.ready) || !state.node.ambient_enabled;
    let differences = state.differences().len();
    let is_partial = !empty_list_doubts(state).is_empty();
    let unknown = || Cell::coloured("unknown", Colour::Yellow);
    let worst = state.pods.iter().map(|pod| pod.capture).min_by_key(|capture| capture_rank(*capture));
    let pods = match worst {
        None if is_partial => unknown(),
        worst => Cell::coloured(&state_counts(&state.pods), worst.map_or(Colour::None, capture_colour)),
    };
    let differing = match differences {
        0 if is_partial => unknown(),
        _ => Cell::coloured(&differences.to_string(), health_color(differences == 0)),
    };
    let planned = match state.knows_plan() {
        true => Cell::plain(&format_count(state.plan.len(), "step")),
        false => unknown(),
    };
    vec![
        summary_row("Pods", pods),
        summary_row("Ztunnel", Cell::coloured(&ztunnel_states(state), health_color(has_ztunnel))),
        summary_row("Differences", differing),
        summary_row("Planned", planned),
    ]
}

/// Returns the rows for faults of the agent, and for the health of its components.
fn agent_rows(state: &StateReport) -> Vec<Vec<Cell>> {
    let node = &state.node;
    let facts = (node.ambient_enabled && !node.synced)
        .then(|| summary_row("Facts", Cell::coloured("not synced since the agent's start", Colour::Red)));
    let problem = node.problem.iter().map(|why| summary_row("Problem", Cell::coloured(why, Colour::Red)));
    let health = state.health.iter().map(|part| {
        let message = if part.healthy { "healthy" } else { part.message.as_str() };
        summary_row(
            &format!("Health, {}", part.component),
            Cell::coloured(message, health_color(part.healthy)),
        )
    });
    facts.into_iter().chain(problem).chain(health).collect()
}

/// Returns the rows for the installation's files, relevant foreign rules, and what is unknown.
fn file_rows(state: &StateReport) -> Vec<Vec<Cell>> {
    let files = state.installation.iter().map(|file| {
        let message = format!("{}: {}", file.path, file.message);
        summary_row(&format!("File, {}", file.kind), Cell::coloured(&message, health_color(file.correct)))
    });
    let foreign = state.network.conflicts();
    let foreign = foreign.map(|what| summary_row("Foreign", Cell::coloured(what, Colour::Red)));
    let unknown = not_known(state);
    let unknown = unknown.iter().map(|what| summary_row("Unknown", Cell::coloured(what, Colour::Yellow)));
    files.chain(foreign).chain(unknown).collect()
}

/// Counts the pods in each state, the worst first.
fn state_counts(pods: &[PodState]) -> String {
    let number = |capture| pods.iter().filter(|pod| pod.capture == capture).count();
    let counts = CaptureState::WORST_FIRST.map(|capture| (number(capture), capture));
    let counts = counts.iter().filter(|(number, _)| *number > 0);
    let counts: Vec<String> = counts.map(|(number, capture)| format!("{number} {capture}")).collect();
    if counts.is_empty() { "none".to_owned() } else { counts.join(", ") }
}

fn ztunnel_states(state: &StateReport) -> String {
    let all = state.ztunnels.iter().map(|ztunnel| {
        let states = [
            (ztunnel.active, "active"),
            (ztunnel.ready, "ready"),
            (!ztunnel.ready, "not ready"),
            (ztunnel.connected == Some(true), "connected"),
            (ztunnel.synced == Some(false), "snapshot not acknowledged"),
            (ztunnel.connected == Some(false), "not connected"),
            (ztunnel.terminating, "ending"),
        ];
        let states: Vec<&str> =
            states.into_iter().filter_map(|(holds, word)| holds.then_some(word)).collect();
        format!("{} ({})", ztunnel.name, states.join(", "))
    });
    let all: Vec<String> = all.collect();
    if all.is_empty() { "none".to_owned() } else { all.join("; ") }
}
