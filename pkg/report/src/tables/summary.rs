//! The node at one glance.

use pod_status::CaptureState;

use super::{Cell, Colour, not_known, seconds, table};
use crate::{
    state::{Observer, StateReport},
    text::{clean, count},
};

/// The node at one glance.
#[must_use]
pub fn summary(state: &StateReport, colour: bool) -> String {
    let paint = |ok: bool| if ok { Colour::Green } else { Colour::Red };
    let node = &state.node;
    let by = match state.seen.by {
        Observer::Agent => format!("the agent ({})", clean(&state.version)),
        Observer::Command => "this command: the agent does not run".to_owned(),
    };
    let way = match (node.way, node.ambient) {
        (Some(way), _) => format!("captures {way} (chosen: {})", clean(&node.chosen)),
        (None, true) => "no way in use".to_owned(),
        (None, false) => "off".to_owned(),
    };
    let differences = state.differences();
    let mut rows = vec![
        vec![Cell::plain("Node"), Cell::plain(&node.name)],
        vec![Cell::plain("Seen"), Cell::plain(&format!("{} by {by}", seconds(&state.seen.at)))],
        vec![Cell::plain("Ambient mode"), Cell::plain(&way)],
        vec![
            Cell::plain("Pods"),
            Cell::coloured(&pod_counts(state), paint(!state.pods.iter().any(|pod| pod.capture.is_wrong()))),
        ],
        vec![
            Cell::plain("Ztunnel"),
            Cell::coloured(
                &ztunnels(state),
                paint(state.ztunnels.iter().any(|ztunnel| ztunnel.ready) || !node.ambient),
            ),
        ],
        vec![
            Cell::plain("Differences"),
            Cell::coloured(&differences.len().to_string(), paint(differences.is_empty())),
        ],
        vec![Cell::plain("To be done"), Cell::plain(&count(state.plan.len(), "step"))],
    ];
    if let Some(started) = &node.started {
        rows.insert(2, vec![Cell::plain("Agent since"), Cell::plain(&seconds(started))]);
    }
    if node.ambient && !node.synced {
        rows.push(vec![
            Cell::plain("Facts"),
            Cell::coloured("not read whole since the agent's start", Colour::Red),
        ]);
    }
    rows.extend(
        node.trouble.iter().map(|why| vec![Cell::plain("Trouble"), Cell::coloured(why, Colour::Red)]),
    );
    for part in &state.health {
        let words = if part.ok { "well" } else { part.why.as_str() };
        rows.push(vec![
            Cell::plain(&format!("Health, {}", part.part)),
            Cell::coloured(words, paint(part.ok)),
        ]);
    }
    for file in &state.installation {
        let words = format!("{}: {}", file.path, file.detail);
        rows.push(vec![Cell::plain(&format!("File, {}", file.kind)), Cell::coloured(&words, paint(file.ok))]);
    }
    rows.extend(
        state
            .network
            .foreign
            .iter()
            .map(|what| vec![Cell::plain("Foreign"), Cell::coloured(what, Colour::Red)]),
    );
    rows.extend(
        not_known(state)
            .iter()
            .map(|what| vec![Cell::plain("Not known"), Cell::coloured(what, Colour::Yellow)]),
    );
    table(&[], &rows, colour)
}

fn pod_counts(state: &StateReport) -> String {
    let number = |capture: &CaptureState| state.pods.iter().filter(|pod| pod.capture == *capture).count();
    let counts =
        CaptureState::ALL.iter().map(|capture| (number(capture), capture)).filter(|(number, _)| *number > 0);
    let counts: Vec<String> = counts.map(|(number, capture)| format!("{number} {capture}")).collect();
    if counts.is_empty() { "none".to_owned() } else { counts.join(", ") }
}

fn ztunnels(state: &StateReport) -> String {
    let all = state.ztunnels.iter().map(|ztunnel| {
        let words = [
            (ztunnel.active, "active"),
            (ztunnel.ready, "ready"),
            (!ztunnel.ready, "not ready"),
            (ztunnel.connected == Some(true), "connected"),
            (ztunnel.synced == Some(false), "snapshot not acknowledged"),
            (ztunnel.connected == Some(false), "not connected"),
            (ztunnel.terminating, "ending"),
        ];
        let words: Vec<&str> = words.into_iter().filter_map(|(holds, word)| holds.then_some(word)).collect();
        format!("{} ({})", ztunnel.name, words.join(", "))
    });
    let all: Vec<String> = all.collect();
    if all.is_empty() { "none".to_owned() } else { all.join("; ") }
}
