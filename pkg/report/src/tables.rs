//! Tables for terminals: aligned, the worst first, never truncated. Colours are optional, and only repeat what the text expresses.

mod layout;
mod summary;

use std::fmt::Write as _;

use pod_status::{CaptureState, RedirectionMode};

use crate::{
    compare::DifferenceKind,
    conclusions::add_exceptions,
    explain::captured_fault,
    findings::Severity,
    pod::PodState,
    simulation::{
        MembershipEffect, NodeSimulation, SimulatedChange, SimulatedPod, SimulatedProblem, simulation_notes,
    },
    state::{ChangeRecord, NOT_SYNCED, Observer, StatePart, StateReport, Unobserved},
    text::{sanitize_text, to_clause, to_sentence},
};
pub use layout::{Cell, Colour, paint, render_table};
pub use summary::render_summary;

/// Text for an empty list that could not be determined.
const UNKNOWN: &str = "Unknown: the node could not be observed completely.\n";

/// Renders pods of a node, one line each, the worst first and then by name. `wide`: with addresses, network namespace and UID.
pub fn pods_table(state: &StateReport, pods: &[&PodState], wide: bool, colour: bool) -> String {
    if pods.is_empty() {
        return if empty_list_doubts(state).is_empty() { "No pods.\n" } else { UNKNOWN }.to_owned();
    }
    let mut pods = pods.to_vec();
    pods.sort_by_key(|pod| (capture_rank(pod.capture), &pod.namespace, &pod.name));
    let more: &[&str] = if wide { &["IPS", "NETNS", "UID"] } else { &[] };
    let titles = [&["POD", "CAPTURE", "MODE", "SINCE"], more, &["WHY"]].concat();
    let rows = pods.into_iter().map(|pod| {
        let netns = pod.kernel.netns.map(|netns| format!("net:[{}]", netns.inode)).unwrap_or_default();
        let more = [joined_ips(pod), netns, pod.uid.to_string()];
        pod_row(pod, if wide { &more } else { &[] })
    });
    render_table(&titles, rows, colour)
}

/// Renders pods of a node before and after a simulated change, one line each: first those affected by it. Then the resulting
/// problems, and what is not simulated.
pub fn simulation_table(change: &SimulatedChange, simulation: &NodeSimulation, colour: bool) -> String {
    if !simulation.mistakes.is_empty() {
        let mistakes = simulation.mistakes.iter().map(|mistake| format!("  {}\n", sanitize_text(mistake)));
        return format!("An agent with these settings would not start:\n{}", mistakes.collect::<String>());
    }
    let mut text = match simulation.mode {
        None => "Ambient mode is off on this node: no label brings a pod into it.\n".to_owned(),
        Some(_) => String::new(),
    };
    let mut pods: Vec<&SimulatedPod> = simulation.pods.iter().collect();
    pods.sort_by_key(|pod| (pod.effect(), &pod.namespace, &pod.name));
    if !pods.is_empty() {
        let rows = pods.iter().map(|pod| Vec::from(simulated_row(pod, pod.effect())));
        text.push_str(&render_table(&SIMULATED, rows, colour));
    } else if simulation.mode.is_some() {
        text.push_str("No pods.\n"); // without ambient mode, no pods are listed
    }
    for note in simulation_notes(change, simulation.pods.iter()) {
        text.push_str(&format!("{note}\n"));
    }
    for SimulatedProblem { pod, message, .. } in simulation.problems() {
        let title =
            pod.map_or_else(|| "Node".to_owned(), |pod| format!("Pod {}/{}", pod.namespace, pod.name));
        text.push_str(&format!("{}.\n", sanitize_text(&format!("{title}: {}", to_clause(&message)))));
    }
    for left_out in &simulation.not_simulated {
        text.push_str(&format!("Not simulated: {}.\n", sanitize_text(left_out)));
    }
    text
}

/// Column titles of [`simulated_row`].
const SIMULATED: [&str; 6] = ["POD", "EFFECT", "NOW", "THEN", "CONNECTIONS", "WHY"];

/// Returns the row of a pod before and after a simulated change.
pub fn simulated_row(pod: &SimulatedPod, effect: MembershipEffect) -> [Cell; 6] {
    let outside = if effect == MembershipEffect::Unknown { "-" } else { "outside" };
    let mode = |mode: Option<RedirectionMode>| Cell::plain(mode.map_or(outside, RedirectionMode::as_str));
    let shade = match effect {
        MembershipEffect::Joins => Colour::Green,
        MembershipEffect::Leaves | MembershipEffect::Changes => Colour::Yellow,
        MembershipEffect::Unknown | MembershipEffect::Unchanged => Colour::Dim,
    };
    let why = add_exceptions(pod.reason.message.clone(), &pod.exceptions);
    let changes = pod.changes.iter().map(|change| format!("; {change}"));
    let outcome = if pod.resets_connections { " (reset)" } else { "" };
    [
        Cell::plain(&sanitize_text(&format!("{}/{}", pod.namespace, pod.name))),
        Cell::coloured(effect.as_str(), shade),
        mode(pod.before),
        mode(pod.after),
        Cell::plain(&pod.connections.map_or_else(|| "-".to_owned(), |count| format!("{count}{outcome}"))),
        Cell::plain(&sanitize_text(&format!("{why}{}", changes.collect::<String>()))),
    ]
}

/// Returns the position of a state in a list that begins with the worst.
pub fn capture_rank(capture: CaptureState) -> usize {
    let states = CaptureState::WORST_FIRST;
    states.iter().position(|other| *other == capture).unwrap_or(states.len())
}

/// Returns the row of a pod: its name, state and mode, since when, `more` columns, and why.
pub fn pod_row(pod: &PodState, more: &[String]) -> Vec<Cell> {
    let mut row = vec![
        Cell::plain(&pod.title()),
        Cell::coloured(pod.capture.as_str(), capture_colour(pod.capture)),
        Cell::plain(pod.mode.map_or("-", |mode| mode.as_str())),
        Cell::plain(&truncate_to_seconds(pod.last_transition_time.as_deref().unwrap_or("-"))),
    ];
    row.extend(more.iter().map(|text| Cell::plain(if text.is_empty() { "-" } else { text })));
    row.push(Cell::plain(&pod.message));
    row
}

/// Returns the addresses of a pod, separated by commas.
pub fn joined_ips(pod: &PodState) -> String {
    pod.ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// Returns the colour of a state.
pub fn capture_colour(capture: CaptureState) -> Colour {
    match capture {
        CaptureState::Outside => Colour::Dim,
        _ => Colour::for_severity(Severity::from_capture(capture)),
    }
}

/// Removes fractions of a second from a time.
pub fn truncate_to_seconds(time: &str) -> String {
    match time.split_once('.') {
        Some((seconds, rest)) if rest.ends_with('Z') => format!("{seconds}Z"),
        _ => time.to_owned(),
    }
}

/// Returns what could not be observed, as sentences. Unless empty, the state cannot be called healthy.
pub fn not_known(state: &StateReport) -> Vec<String> {
    let mut unknown = unobserved_parts(state);
    let is_listed = |one: &Unobserved| matches!(one.part, StatePart::Agent | StatePart::Desired);
    let is_alone = state.observation.observer == Observer::Command;
    if is_alone && !state.observation.unobserved.iter().any(is_listed) {
        unknown.push(to_sentence("the agent's health: no agent answers"));
    }
    unknown
}

/// Returns [`not_known`] without the agent's health.
pub fn unobserved_parts(state: &StateReport) -> Vec<String> {
    let is_unknown = |pod: &PodState| pod.capture == CaptureState::Unknown || pod.kernel.unobserved.is_some();
    unknown_parts(state, is_unknown)
}

fn unknown_parts(state: &StateReport, is_unknown: impl Fn(&PodState) -> bool) -> Vec<String> {
    let describe = |one: &Unobserved| format!("{}: {}", to_clause(&one.description), to_clause(&one.message));
    let mut all: Vec<String> = state.observation.unobserved.iter().map(describe).collect();
    let network = &state.network;
    for (kind, part, is_unobserved) in [
        ("ipsets", StatePart::Ipsets, network.ipsets.lacks_observation()),
        ("rules", StatePart::Network, network.rules.lacks_observation()),
        ("routes", StatePart::Network, network.routes.lacks_observation()),
        ("links", StatePart::Network, network.links.lacks_observation()),
        ("sysctls", StatePart::Network, network.sysctls.lacks_observation()),
        ("firewall", StatePart::Firewall, network.firewall.lacks_observation()),
    ] {
        let is_listed = |unobserved: &Unobserved| [part, StatePart::Network].contains(&unobserved.part);
        if is_unobserved && !state.observation.unobserved.iter().any(is_listed) {
            all.push(format!("{kind}: the kernel could not be queried"));
        }
    }
    let is_reported = state.health.iter().any(|part| part.message == NOT_SYNCED);
    let is_unread =
        state.observation.observer == Observer::Agent && state.node.ambient_enabled && !state.node.synced;
    if is_unread && !is_reported {
        all.push("which pods belong to the mesh: the agent has not synced since its start".to_owned());
    }
    all.extend(state.pods.iter().filter(|pod| is_unknown(pod)).map(|pod| {
        let why = pod.kernel.unobserved.as_deref().map_or_else(|| "not observed yet".to_owned(), to_clause);
        format!("pod {}: {why}", sanitize_text(&pod.title()))
    }));
    all.iter().map(|text| to_sentence(text)).collect()
}

/// Returns why an empty list of pods, or an empty plan, may be incomplete, as sentences; empty: everything was observed, so it is
/// complete. These are [`unobserved_parts`], without pods whose state is known nevertheless, such as terminating ones, and without lists
/// not received yet, which [`verification_findings`] reports as an error.
pub fn empty_list_doubts(state: &StateReport) -> Vec<String> {
    let mut doubts = unknown_parts(state, |pod| pod.capture == CaptureState::Unknown);
    if doubts.is_empty() && !state.knows_all_pods() {
        doubts.push(to_sentence(NOT_SYNCED));
    }
    doubts
}

impl StateReport {
    /// Whether the plan is valid: not empty, or no action is needed, because everything was observed. Nothing is planned for parts
    /// that were not.
    pub fn knows_plan(&self) -> bool {
        !self.plan.is_empty() || empty_list_doubts(self).is_empty()
    }
}

/// Returns pods with a fault although the kernel matches the desired state, each with the fault: mesh pods that bypass the mesh or
/// reach nothing, as without a ztunnel, and captured ones such as those whose annotation is missing.
fn faulty_pods(state: &StateReport) -> impl Iterator<Item = (&PodState, String)> {
    let pods = state.pods.iter().filter(|pod| pod.kernel.differences.is_empty());
    pods.filter_map(|pod| match captured_fault(state, pod) {
        Some(fault) => Some((pod, to_clause(&fault))),
        None => pod.capture.is_wrong().then(|| (pod, pod.message.clone())),
    })
}

/// Returns errors of the agent and of the node other than differences, each with its name: unhealthy components, and errors of the
/// check at the agent's start.
fn node_errors(state: &StateReport) -> impl Iterator<Item = (&str, String)> {
    let unhealthy = state.health.iter().filter(|part| !part.healthy);
    let unhealthy = unhealthy.map(|part| (part.component.as_str(), part.message.clone()));
    let errors = state.preflight.iter().filter(|check| check.severity == Some(Severity::Error));
    let errors = errors.map(|check| (check.code.as_str(), format!("{}, see {}", check.message, check.link)));
    unhealthy.chain(errors)
}

/// Returns the findings of a verification: [`StateReport::differences`], pods with a fault although the kernel matches the desired
/// state, and faults of the agent and the node.
pub fn verification_findings(state: &StateReport) -> Vec<String> {
    let pods =
        faulty_pods(state).map(|(pod, fault)| format!("pod {}: {}: {fault}", pod.title(), pod.capture));
    let errors = node_errors(state).map(|(name, message)| format!("error: {name}: {message}"));
    state.differences().into_iter().chain(pods).chain(errors).collect()
}

/// Renders [`verification_findings`] as a table, and what is unknown.
pub fn differences_table(state: &StateReport, colour: bool) -> String {
    let files = state.installation.iter().filter(|file| !file.correct);
    let files = files.map(|file| {
        difference_row("changed", Colour::Red, &file.kind, &format!("{}: {}", file.path, file.message))
    });
    let network = state.network.differences().map(|(kind, found)| {
        let colour = if found.kind == DifferenceKind::Unexpected { Colour::Yellow } else { Colour::Red };
        difference_row(&found.kind.to_string(), colour, kind, &found.object)
    });
    let pods = state.pods.iter().flat_map(|pod| {
        let found = pod.kernel.differences.iter();
        found.map(move |what| difference_row("pod", Colour::Red, &pod.title(), what))
    });
    let faulty = faulty_pods(state)
        .map(|(pod, fault)| difference_row(pod.capture.as_str(), Colour::Red, &pod.title(), &fault));
    let errors =
        node_errors(state).map(|(name, message)| difference_row("error", Colour::Red, name, &message));
    let rows: Vec<Vec<Cell>> = files.chain(network).chain(pods).chain(faulty).chain(errors).collect();
    let unknown: String = not_known(state).iter().map(|what| format!("Unknown: {what}\n")).collect();
    match (rows.is_empty(), unknown.is_empty()) {
        (true, true) => "The kernel and the files match the desired state.\n".to_owned(),
        (true, false) => format!("No difference was found, but not everything could be observed.\n{unknown}"),
        (false, _) => render_table(&["DIFFERENCE", "OF", "WHAT"], rows, colour) + &unknown,
    }
}

fn difference_row(difference: &str, colour: Colour, of: &str, what: &str) -> Vec<Cell> {
    vec![Cell::coloured(difference, colour), Cell::plain(of), Cell::plain(what)]
}

/// Renders changes as a table, a line each, in the given order.
pub fn history_table(changes: &[ChangeRecord], colour: bool) -> String {
    if changes.is_empty() {
        return "No changes.\n".to_owned();
    }
    let rows = changes.iter().map(build_history_row);
    render_table(&["WHEN", "POD", "TOOK", "CAUSE", "WHAT"], rows, colour)
}

fn build_history_row(change: &ChangeRecord) -> Vec<Cell> {
    let (mut what, of_outcome) = match &change.error {
        Some(error) => (format!("{}: {error}", change.action), Colour::Red),
        None => (change.action.clone(), Colour::None),
    };
    if let Some(times) = change.repeats_text() {
        what = format!("{times}: {what}");
    }
    vec![
        Cell::plain(&truncate_to_seconds(&change.started_at)),
        Cell::plain(change.pod.as_deref().unwrap_or("-")),
        Cell::plain(&format!("{:.0} ms", change.duration_ms)),
        Cell::plain(&change.cause),
        Cell::coloured(&what, of_outcome),
    ]
}

/// Renders the current plan: each step as text, and its operations below.
pub fn render_plan(state: &StateReport, colour: bool) -> String {
    if state.plan.is_empty() {
        return if state.knows_plan() { "Nothing to do.\n" } else { UNKNOWN }.to_owned();
    }
    let mut text = String::new();
    for (at, step) in state.plan.iter().enumerate() {
        let head = paint(&sanitize_text(&step.message), Colour::Bold, colour);
        let _ = writeln!(text, "{}. {head} [{}]", at + 1, sanitize_text(&step.kind));
        for operation in step.operations.iter().flat_map(|operation| operation.lines()) {
            let _ = writeln!(text, "     {}", sanitize_text(operation));
        }
    }
    text
}

#[cfg(test)]
mod tests;
