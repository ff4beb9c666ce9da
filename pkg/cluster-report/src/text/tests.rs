use std::collections::BTreeMap;

use report::StateReport;

use super::*;
use crate::{Cluster, check, verify_cluster};

const BYPASSING: report::CaptureState = report::CaptureState::Bypassing;

fn cluster() -> Cluster {
    let mut state =
        StateReport { network: report::NetworkState::nothing_desired(), ..StateReport::default() };
    state.node.problem = Some("iptables cannot be run\u{1b}[31m".to_owned());
    let mut answers = BTreeMap::from([("n00".to_owned(), Ok(state))]);
    for at in 1..=12 {
        answers.insert(format!("n{at:02}"), Err("no answer within 5s".to_owned()));
    }
    Cluster { answers, agents: vec![crate::Pod::default()], ..Cluster::default() }
}

#[test]
fn a_check_shows_marks_findings_and_where_to_read_on() {
    let report = check(&cluster());
    let text = check_text(&report, false, false);
    for part in [
        "agents\n------\n× every agent is ready\n",
        "? every agent answers\n    node n01: no answer within 5s\n    node n02:",
        "    and 2 more: -o wide shows all\n    The state of the pods of this node is unknown",
        "\n    see docs/millrace.md#agent-silent for hints\n",
        "× every node can capture pods\n    node n00: iptables cannot be run\\u{1b}[31m\n",
        "? no pod bypasses the mesh\n    unknown: 12 of 13 agents did not answer\n",
        "√ labels of pods do not contradict their sidecars\n",
        "checks could not be determined, or only in part\n",
        "0 nodes, 1 agent, 1 of which answered; 0 pods, 0 captured, 0 bypassing the mesh\nThe result is partial",
        "Status check results are × unhealthy\n",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    assert!(check_text(&report, true, false).contains("node n12"));
    let coloured = check_text(&report, false, true);
    assert!(coloured.contains("\u{1b}[31m×\u{1b}[0m") && coloured.contains("\u{1b}[32m√\u{1b}[0m"));
}

#[test]
fn a_check_names_pods_with_traffic_outside_by_intent() {
    let mut cluster = cluster();
    let state = cluster.answers.get_mut("n00").unwrap().as_mut().unwrap();
    let pod = |name: &str| report::PodState {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        capture: report::CaptureState::Captured,
        exceptions: vec!["outbound TCP ports 5432".to_owned(), "DNS".to_owned()],
        ..report::PodState::default()
    };
    state.pods = ["e", "d", "b", "a", "c"].map(pod).to_vec();
    state.pods[0].exceptions.clear();
    let report = check(&cluster);
    assert_eq!((report.counts.captured, report.counts.excepted, report.excepted.len()), (5, 4, 4));
    let text = check_text(&report, false, false);
    let part = "5 captured (4 with traffic outside by intent), 0 bypassing the mesh\n    \
                shop/a: outside by intent: outbound TCP ports 5432; DNS\n    shop/b: outside by intent: outbound TCP ports 5432; DNS\n    \
                shop/c: outside by intent: outbound TCP ports 5432; DNS\n    and 1 more: millrace list shows";
    assert!(text.contains(part), "{text}");
}

#[test]
fn without_an_answer_no_pod_is_counted() {
    let unread = vec![crate::UnreadObjects { what: "nodes".into(), why: "forbidden".into() }];
    for (cluster, nodes) in [
        (Cluster::default(), "0 nodes"),
        (Cluster { unread, ..Cluster::default() }, "an unknown number of nodes"),
    ] {
        let text = check_text(&check(&cluster), false, false);
        let counts = format!("{nodes}, 0 agents, 0 of which answered; nothing is known of their pods");
        assert!(text.lines().any(|line| line == counts), "{text}");
    }
}

#[test]
fn what_is_missing_is_said_beside_the_answer() {
    let report = verify_cluster(&cluster());
    assert_eq!((report.status(), report.equal, report.partial), (2, false, true));
    let text = partial_text(&report.unanswered);
    assert!(text.starts_with("partial: 12 nodes did not answer\n  n01: no answer within 5s\n"), "{text}");
    assert!(text.ends_with("  and 2 more\n"));
    assert_eq!(partial_text(&[]), "");
    assert_eq!(
        list_text(&crate::pod_list(&cluster(), None), false, false),
        "Unknown: not every node answered.\n"
    );
}

/// A node that answered may have pods that it does not know.
#[test]
fn no_pod_is_no_answer_while_some_may_be_missing() {
    let node = |change: &dyn Fn(&mut StateReport)| {
        let mut state =
            StateReport { network: report::NetworkState::nothing_desired(), ..StateReport::default() };
        (state.node.ambient_enabled, state.node.synced) = (true, true);
        change(&mut state);
        Cluster { answers: BTreeMap::from([("n1".to_owned(), Ok(state))]), ..Cluster::default() }
    };
    let status = |cluster: &Cluster| {
        let (all, bypassing) = (crate::pod_list(cluster, None), crate::pod_list(cluster, Some(BYPASSING)));
        let verified = verify_cluster(cluster);
        (all.status(false), bypassing.status(true), all.partial, not_known_text(&all.unknown), verified.equal)
    };
    let pod = |capture| report::PodState {
        namespace: "shop".into(),
        name: "web".into(),
        capture,
        ..report::PodState::default()
    };
    assert_eq!(status(&node(&|_| {})), (0, 0, false, String::new(), true));
    let captured = node(&|state| state.pods = vec![pod(report::CaptureState::Captured)]);
    assert_eq!(status(&captured), (0, 0, false, String::new(), true));
    let unread = crate::UnreadObjects { what: "nodes".to_owned(), why: "forbidden".to_owned() };
    let unread = Cluster { unread: vec![unread], ..captured };
    assert_eq!(status(&unread), (2, 2, true, String::new(), false));
    let unsynced = node(&|state| {
        state.node.synced = false;
        state.pods = vec![pod(report::CaptureState::Captured)];
    });
    let (all, bypassing, partial, text, equal) = status(&unsynced);
    assert_eq!((all, bypassing, partial, equal), (2, 2, true, false));
    assert!(text.starts_with("unknown:\n  n1: Which pods belong to the mesh: "), "{text}");
    let unknown = node(&|state| state.pods = vec![pod(report::CaptureState::Unknown)]);
    let (all, bypassing, partial, text, equal) = status(&unknown);
    assert_eq!((all, bypassing, partial, equal), (0, 2, false, false));
    assert_eq!(text, "unknown:\n  n1: Pod shop/web: not observed yet.\n");
}
