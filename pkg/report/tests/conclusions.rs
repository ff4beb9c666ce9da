//! The fields of the document that follow from others, for every fixture; and a check that the screenshot in the documentation is
//! of the current page.
#![expect(clippy::disallowed_methods, reason = "a test of a pure crate may read the documentation")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

#[path = "page/fixtures.rs"]
mod fixtures;
#[path = "page/picture.rs"]
mod picture;

use std::{collections::BTreeSet, fs};

use report::{CaptureState, PAGE, Severity, StatePart, StateReport, Unobserved, ZtunnelState, tables};

fn concluded(mut state: StateReport) -> StateReport {
    state.fill_conclusions();
    state
}

#[test]
fn the_picture_in_the_documentation_is_of_this_page() {
    let digest = fs::read_to_string(picture::digest_path()).unwrap_or_default();
    assert!(
        digest == picture::digest(),
        "{} is of another page; after hack/setup, make it anew by MILLRACE_UPDATE_SCREENSHOT=1 cargo test --workspace \
         --test node-level -- a_screenshot_can_be_taken",
        picture::path().display()
    );
}

#[test]
fn the_page_is_one_small_file() {
    assert!(PAGE.len() < 60_000, "{} bytes", PAGE.len());
    assert_eq!((PAGE.matches("</style").count(), PAGE.matches("</script").count()), (1, 1));
    for part in
        ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "http://", "https://"]
    {
        assert!(!PAGE.contains(part), "{part}");
    }
}

#[test]
fn the_worst_pods_come_first_grouped_by_cause() {
    let state = concluded(fixtures::two_causes());
    let causes: Vec<_> = state
        .causes
        .iter()
        .map(|cause| (cause.capture, cause.severity, cause.pods.len(), cause.message.as_str()))
        .collect();
    let error = Some(Severity::Error);
    let expected = [
        (
            CaptureState::Bypassing,
            error,
            4,
            "The address of the pod is missing in the set of captured addresses, so its traffic bypasses the mesh",
        ),
        (
            CaptureState::Bypassing,
            error,
            1,
            "The pod could not be enrolled: its link is a bridge's, not a veth of its own",
        ),
        (CaptureState::Captured, None, 6, "its namespace is labelled istio.io/dataplane-mode=ambient"),
        (CaptureState::Outside, None, 1, "it uses the node's network namespace (hostNetwork)"),
    ];
    assert_eq!(causes, expected);
    assert!(state.causes.iter().all(|cause| cause.advice.is_empty() == cause.severity.is_none()));
}

#[test]
fn every_pod_has_one_cause_and_the_message_of_the_command_line() {
    let mut states: Vec<_> = fixtures::all().into_iter().map(|(_, state)| state).collect();
    for capture in CaptureState::WORST_FIRST {
        for mut state in [fixtures::well(), fixtures::in_pod(), fixtures::no_ztunnel_in_pod()] {
            state.pods[..6].iter_mut().for_each(|pod| pod.capture = capture);
            states.push(state);
        }
    }
    for state in states.into_iter().map(concluded) {
        let caused: BTreeSet<_> = state.causes.iter().flat_map(|cause| &cause.pods).collect();
        let count: usize = state.causes.iter().map(|cause| cause.pods.len()).sum();
        assert_eq!((count, caused.len()), (state.pods.len(), state.pods.len()));
        for pod in &state.pods {
            let cause = state.causes.iter().find(|cause| cause.pods.contains(&pod.title())).unwrap();
            let explained = report::explain_pod(&state, &pod.namespace, &pod.name);
            let is_well = cause.severity.is_none();
            assert!(cause.capture == pod.capture && (is_well || cause.code == explained.code), "{cause:?}");
            assert!(!cause.message.contains(&pod.title()), "{}", cause.message);
            assert!(
                tables::pods_table(&state, &[pod], false, false).contains(&pod.message),
                "{}",
                pod.message
            );
        }
    }
}

#[test]
fn a_missing_ztunnel_is_a_finding_in_every_mode() {
    let mut silent = fixtures::no_ztunnel_in_pod();
    silent.ztunnels = vec![ZtunnelState { connected: Some(false), ..ZtunnelState::default() }];
    let mut without_mode = fixtures::no_ztunnel_in_pod();
    without_mode.node.mode = None;
    for (state, message) in [
        (fixtures::no_ztunnel_hold(), "No ztunnel is ready on this node."),
        (fixtures::no_ztunnel_open(), "No ztunnel is ready on this node."),
        (fixtures::no_ztunnel_in_pod(), "There is no ztunnel on this node."),
        (without_mode, "There is no ztunnel on this node."),
        (silent, "No ztunnel is connected to the agent."),
    ] {
        let first = concluded(state).findings.remove(0);
        let found = (first.severity, first.code.as_str(), first.message.as_str());
        assert_eq!(found, (Some(Severity::Error), "no-ztunnel", message));
        assert_eq!(
            first.advice[0],
            "Find out why no ztunnel of this node is ready: kubectl get pods -A -o wide -l app=ztunnel, and its log."
        );
    }
}

#[test]
fn faults_come_before_what_is_not_known() {
    let codes = |state| {
        let findings = concluded(state).findings.into_iter();
        findings.map(|finding| (finding.severity.unwrap(), finding.code)).collect::<Vec<_>>()
    };
    assert_eq!(codes(fixtures::well()), []);
    assert_eq!(codes(fixtures::unknown()), [(Severity::Unknown, "unobserved".to_owned())]);
    let mut stale = fixtures::well();
    stale.observation.unobserved = vec![Unobserved::new(StatePart::ApiObjects, "403")];
    let expected = ["watch-failed", "unobserved"].map(|code| (Severity::Unknown, code.to_owned()));
    assert_eq!(codes(stale), expected);
    let no_agent = codes(fixtures::no_agent());
    assert_eq!(no_agent[0], (Severity::Error, "agent-down".to_owned()));
    assert!(no_agent.is_sorted_by(|one, next| one.0 >= next.0), "{no_agent:?}");
}
