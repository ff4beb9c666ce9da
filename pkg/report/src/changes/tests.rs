use crate::{DifferenceKind, RedirectionMode, StateDifference, StateReason, ZtunnelState};

use super::*;

fn pod(name: &str, capture: CaptureState) -> PodState {
    PodState {
        namespace: "shop".into(),
        name: name.into(),
        uid: "u".into(),
        phase: "Running".into(),
        capture,
        mode: Some(RedirectionMode::Node),
        reason: StateReason { code: "c".into(), message: "its namespace is labelled".into() },
        ..PodState::default()
    }
}

fn change(what: &str, error: Option<&str>) -> ChangeRecord {
    ChangeRecord {
        started_at: what.into(),
        cause: "drift".into(),
        action: what.into(),
        pod: None,
        duration_ms: 1.0,
        outcome: if error.is_some() { ChangeStatus::Failed } else { ChangeStatus::Succeeded },
        error: error.map(str::to_owned),
        ..ChangeRecord::default()
    }
}

fn lines(before: Option<&StateReport>, now: &StateReport) -> Vec<String> {
    let mut now = now.clone();
    now.fill_conclusions();
    let all = state_changes(before, &now);
    all.iter().map(|event| event.to_line("T").split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn nothing_is_said_of_what_is_the_same() {
    let mut state = StateReport { pods: vec![pod("a", CaptureState::Captured)], ..StateReport::default() };
    state.history = vec![change("x", None)];
    assert_eq!(lines(Some(&state), &state), Vec::<String>::new());
    let later = StateReport {
        observation: crate::Provenance { observed_at: "later".into(), ..Default::default() },
        ..state.clone()
    };
    assert_eq!(lines(Some(&state), &later), Vec::<String>::new());
}

#[test]
fn it_begins_with_what_is_wrong() {
    let mut state = StateReport {
        pods: vec![pod("a", CaptureState::Captured), pod("b", CaptureState::Held)],
        ..StateReport::default()
    };
    state.node.name = "n".into();
    state.node.problem = Some("no ipset".into());
    let said = lines(None, &state);
    assert_eq!(
        said,
        [
            "T node watching n: 2 pods, 1 captured",
            "T node problem: no ipset",
            "T pod shop/b: held (node): No ztunnel is ready on this node, so the pod has no proxy: its \
             connections are held back until one is",
        ]
    );
}

#[test]
fn every_change_has_its_line() {
    let names =
        |names: &[&str]| names.iter().map(|name| pod(name, CaptureState::Captured)).collect::<Vec<_>>();
    let mut before = StateReport {
        pods: names(&["same", "worse", "gone", "again", "why", "ill"]),
        ..StateReport::default()
    };
    before.ztunnels = vec![ZtunnelState { name: "z".into(), ready: true, ..ZtunnelState::default() }];
    before.history = vec![change("old", None)];
    let mut now = before.clone();
    now.pods.remove(2);
    now.pods[1].capture = CaptureState::Bypassing;
    now.pods[1].kernel.differences = vec!["a rule is missing".into()];
    now.pods[2].uid = "v".into();
    now.pods[3].reason.message = "it is labelled itself".into();
    now.pods[4].problem = Some("refused".into());
    now.pods.push(pod("new\x1b", CaptureState::Pending));
    now.ztunnels[0].active = true;
    now.network.links.differences =
        vec![StateDifference { kind: DifferenceKind::Missing, family: None, object: "link x".into() }];
    now.history = vec![change("newer", Some("no")), change("new", None), change("old", None)];
    now.node.agent_started_at = Some("S".into());
    assert_eq!(
        lines(Some(&before), &now),
        [
            "T agent the agent was started at S",
            "T pod shop/worse: captured -> bypassing (node): a rule is missing",
            "T pod shop/again: another one of that name, captured (node): its namespace is labelled",
            "T pod shop/why: still captured (node): it is labelled itself",
            "T pod shop/ill: problem: refused",
            "T pod shop/new\\u{1b}: new, pending (node): The pod has no address yet, so there \
             is nothing to capture",
            "T pod shop/gone: gone, was captured",
            "T ztunnel - z ready",
            "T ztunnel + z ready, active",
            "T difference + links: missing: link x",
            "T difference + pod shop/worse: a rule is missing",
            "T history new [drift] (1.0 ms)",
            "T history newer [drift] (failed: no)",
        ]
    );
    assert!(lines(Some(&now), &before).contains(&"T difference - links: missing: link x".to_owned()));
}
