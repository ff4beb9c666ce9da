use super::*;
use crate::{
    Comparison, InstalledFile, LabelChange, NodeState, PartHealth, PlanStep, PreflightCheck, RedirectionMode,
    StateDifference, StatePart, StateReason, Unobserved, ZtunnelState,
};

fn pod(name: &str, capture: CaptureState) -> PodState {
    PodState {
        namespace: "shop".into(),
        name: name.into(),
        phase: "Running".into(),
        capture,
        mode: Some(RedirectionMode::Node),
        reason: StateReason { code: "c".into(), message: "its namespace is labelled".into() },
        last_transition_time: Some("2026-11-21T01:00:00.123456Z".into()),
        ..PodState::default()
    }
}

fn node() -> StateReport {
    let mut bad = pod("bad", CaptureState::Bypassing);
    bad.kernel.differences = vec!["a rule is missing.".into(), "é\x1b".into()];
    let mut state = StateReport {
        node: NodeState {
            name: "node-1".into(),
            ambient_enabled: true,
            synced: true,
            ..NodeState::default()
        },
        ztunnels: vec![ZtunnelState {
            name: "zt".into(),
            ready: true,
            active: true,
            ..ZtunnelState::default()
        }],
        pods: vec![
            pod("a", CaptureState::Captured),
            bad,
            PodState { mode: None, last_transition_time: None, ..pod("b", CaptureState::Outside) },
        ],
        ..StateReport::default()
    };
    state.fill_conclusions();
    state
}

#[test]
fn pods_are_aligned_the_worst_first_and_nothing_is_cut_off() {
    let state = node();
    let all: Vec<&PodState> = state.pods.iter().collect();
    let expected = "\
POD       CAPTURE    MODE  SINCE                 WHY
shop/bad  bypassing  node  2026-11-21T01:00:00Z  a rule is missing; é\\u{1b}
shop/a    captured   node  2026-11-21T01:00:00Z  its namespace is labelled
shop/b    outside    -     -                     its namespace is labelled
";
    assert_eq!(pods_table(&state, &all, false, false), expected);
    let wide = pods_table(&state, &all, true, false);
    let titles: Vec<&str> = wide.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(titles, ["POD", "CAPTURE", "MODE", "SINCE", "IPS", "NETNS", "UID", "WHY"]);
    let coloured = pods_table(&state, &all, false, true);
    let begins = ["shop/bad  \x1b[31mbypassing\x1b[0m  node  ", "shop/a    \x1b[32mcaptured\x1b[0m   node  "];
    assert!(coloured.lines().skip(1).zip(begins).all(|(line, begin)| line.starts_with(begin)), "{coloured}");
    assert_eq!(pods_table(&StateReport::default(), &[], false, true), "No pods.\n");
}

#[test]
fn the_summary_has_all_that_is_wrong() {
    let mut state = node();
    assert!(!render_summary(&state, false).contains('\x1b'));
    state.node.problem = Some("no ipset".into());
    state.node.synced = false;
    state.installation = vec![InstalledFile {
        kind: "entry".into(),
        path: "/e".into(),
        correct: false,
        message: "gone".into(),
    }];
    state.network.foreign = vec!["table 100 is another's".into()];
    let text = render_summary(&state, false);
    for part in [
        "1 bypassing, 1 captured, 1 outside",
        "zt (active, ready)",
        "Differences   3\n",
        "not synced",
        "no ipset",
        "/e: gone",
        "table 100 is another's",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn differences_and_what_is_not_known_are_told_apart() {
    let mut state = StateReport::default();
    assert_eq!(differences_table(&state, false), "The kernel and the files match the desired state.\n");
    state.observation.unobserved = vec![Unobserved::new(StatePart::Firewall, "no iptables-save.")];
    assert_eq!(
        differences_table(&state, false),
        "No difference was found, but not everything could be observed.\nUnknown: The node's firewall: no iptables-save.\n"
    );
    state.network.links.differences =
        vec![StateDifference { kind: DifferenceKind::Missing, family: None, object: "link x".into() }];
    state.pods = node().pods;
    let text = differences_table(&state, false);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[1], "missing     links     link x");
    assert_eq!(lines[2], "pod         shop/bad  a rule is missing.");
    assert!(lines.last().unwrap().starts_with("Unknown: "), "{text}");
}

/// No traffic reaches such a pod, and all rules are as desired.
#[test]
fn a_pod_that_is_held_without_a_difference_is_no_success() {
    let mut state = node();
    state.pods.retain(|pod| pod.kernel.differences.is_empty() && !pod.capture.is_wrong());
    assert_eq!((verification_findings(&state), state.differences()), (vec![], vec![]));
    let held = state.pods.first_mut().unwrap();
    (held.capture, held.mode) = (CaptureState::Held, Some(RedirectionMode::InPod));
    let (title, text) = (held.title(), differences_table(&state, false));
    assert!(text.lines().any(|line| line.starts_with("held") && line.contains(&title)), "{text}");
    let found = verification_findings(&state);
    assert!(found.len() == 1 && found[0].starts_with(&format!("pod {title}: held: ")), "{found:?}");
}

/// Nor is one whose annotation is missing, or whose DNS nothing answers.
#[test]
fn a_captured_pod_with_a_fault_is_no_success() {
    type FaultCase = (fn(&mut PodState), &'static str);
    let cases: [FaultCase; 3] = [
        (|pod| pod.kernel.dns_unanswered = true, "dns-unanswered"),
        (|pod| pod.redirection_annotation = None, "annotation-missing"),
        (|pod| pod.problem = Some("it cannot be observed".into()), "failed"),
    ];
    for (change, code) in cases {
        let mut state = node();
        state.observation.observed_at = "2026-11-21T01:02:00Z".into();
        state.pods.retain(|pod| pod.kernel.differences.is_empty());
        state.pods[0].redirection_annotation = Some("enabled".into());
        state.fill_conclusions();
        assert_eq!((verification_findings(&state), state.findings.len()), (vec![], 0));
        change(&mut state.pods[0]);
        state.fill_conclusions();
        let found = verification_findings(&state);
        assert!(found.len() == 1 && found[0].starts_with("pod shop/a: captured: "), "{found:?}");
        let text = differences_table(&state, false);
        assert!(text.lines().any(|line| line.starts_with("captured    shop/a  ")), "{text}");
        let codes: Vec<_> = state.findings.iter().map(|finding| finding.code.as_str()).collect();
        let cause = state.causes.iter().find(|cause| cause.pods == ["shop/a"]).unwrap();
        assert_eq!((codes.as_slice(), cause.code.as_str()), ([code].as_slice(), code));
        assert_ne!(state.pods[0].message, "its namespace is labelled");
    }
}

#[test]
fn nothing_is_healthy_without_an_agent() {
    let mut state = StateReport::default();
    state.observation.observer = Observer::Command;
    assert_eq!(not_known(&state), ["The agent's health: no agent answers."]);
    assert_eq!(empty_list_doubts(&state), Vec::<String>::new(), "the plugin's records name all pods");
    state.observation.unobserved = vec![Unobserved::new(StatePart::Desired, "the agent does not answer")];
    assert_eq!(not_known(&state).len(), 1, "said once");
}

#[test]
fn a_list_of_pods_whose_watch_fails_is_not_complete() {
    let mut state = StateReport::default();
    for (part, is_complete) in [(StatePart::Firewall, true), (StatePart::ApiObjects, false)] {
        state.observation.unobserved = vec![Unobserved::new(part, "403")];
        assert_eq!(state.knows_all_pods(), is_complete, "{part:?}");
    }
}

/// Nor is a node on which no pod can be captured, or an unhealthy agent. A warning of the check is.
#[test]
fn errors_of_agent_and_node_are_no_success() {
    let mut state = StateReport::default();
    let part = |component: &str, healthy, message: &str| PartHealth {
        component: component.to_owned(),
        healthy,
        message: message.to_owned(),
    };
    let check = |code: &str, severity| PreflightCheck {
        code: code.to_owned(),
        severity,
        message: "it is so".to_owned(),
        link: format!("docs/preflight.md#{code}"),
        ..PreflightCheck::default()
    };
    state.health = vec![part("live", true, "")];
    state.preflight = vec![check("few-files", Some(Severity::Warning)), check("clock", None)];
    assert_eq!(verification_findings(&state), Vec::<String>::new());
    state.health.push(part("ready", false, "it starts"));
    state.preflight.push(check("pod-rules", Some(Severity::Error)));
    let expected = ["error: ready: it starts", "error: pod-rules: it is so, see docs/preflight.md#pod-rules"];
    assert_eq!(verification_findings(&state), expected);
    let text = differences_table(&state, false);
    let lines: Vec<&str> = text.lines().skip(1).collect();
    let expected = [
        "error       ready      it starts",
        "error       pod-rules  it is so, see docs/preflight.md#pod-rules",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn what_was_wanted_and_not_looked_at_is_not_known() {
    let mut state = StateReport::default();
    assert_eq!(not_known(&state), Vec::<String>::new());
    state.network.sysctls = Comparison::without_observation(vec![crate::SysctlState {
        netns: "node".into(),
        name: "n".into(),
        value: "1".into(),
        previous_value: None,
    }]);
    state.pods = vec![pod("web", CaptureState::Unknown)];
    state.node.ambient_enabled = true;
    assert_eq!(
        not_known(&state),
        [
            "Sysctls: the kernel could not be queried.",
            "Which pods belong to the mesh: the agent has not synced since its start.",
            "Pod shop/web: not observed yet.",
        ]
    );
    let message = NOT_SYNCED.to_owned();
    state.health = vec![PartHealth { component: "agent".to_owned(), healthy: false, message }];
    assert_eq!(
        not_known(&state).len(),
        2,
        "said once, as an error of the agent: {:?}",
        verification_findings(&state)
    );
}

#[test]
fn an_empty_plan_of_a_node_that_was_not_observed_is_unknown() {
    let mut state = StateReport::default();
    state.node.ambient_enabled = true;
    let health = PartHealth { component: "agent".to_owned(), healthy: false, message: NOT_SYNCED.to_owned() };
    state.health = vec![health];
    assert_eq!(render_plan(&state, false), UNKNOWN, "the agent has not synced");
    let rows = |state: &StateReport| {
        let text = render_summary(state, false);
        let of =
            |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
        ["Pods", "Differences", "Planned"].map(of)
    };
    assert_eq!(rows(&state), ["unknown", "unknown", "unknown"]);
    state.node.synced = true;
    assert_eq!(render_plan(&state, false), "Nothing to do.\n");
    assert_eq!(rows(&state), ["none", "0", "0 steps"]);
    state.observation.unobserved = vec![Unobserved::new(StatePart::Firewall, "no iptables")];
    assert_eq!(render_plan(&state, false), UNKNOWN);
    state.observation.unobserved.clear();
    state.pods = vec![pod("web", CaptureState::Unknown), pod("db", CaptureState::Captured)];
    assert_eq!(render_plan(&state, false), UNKNOWN);
    let text = render_summary(&state, true);
    let pods = "\x1b[33m1 unknown, 1 captured\x1b[0m";
    assert!(text.lines().any(|line| line.ends_with(pods)), "not green: {text}");
}

#[test]
fn a_plan_is_told_in_words_and_operations() {
    let mut state = StateReport::default();
    assert_eq!(render_plan(&state, true), "Nothing to do.\n");
    let operations = vec!["ipset add s 10.0.0.7".into(), "*nat\n-A X".into()];
    state.plan = vec![PlanStep { kind: "members".into(), message: "adds 10.0.0.7".into(), operations }];
    assert_eq!(
        render_plan(&state, false),
        "1. adds 10.0.0.7 [members]\n     ipset add s 10.0.0.7\n     *nat\n     -A X\n"
    );
}

#[test]
fn a_simulation_names_all_that_would_be_wrong() {
    let change = SimulatedChange::Labels(
        LabelChange::parse("shop", None, ["istio.io/dataplane-mode=ambient", "istio.io/rev=x"]).unwrap(),
    );
    let (node, in_pod) = (Some(RedirectionMode::Node), Some(RedirectionMode::InPod));
    let pod = |name: &str, before, after| SimulatedPod {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        before,
        after,
        connections: Some(0),
        refused_exceptions: vec![format!("{name}: no effect"), "another".to_owned()],
        ..SimulatedPod::default()
    };
    let mut simulation = NodeSimulation {
        mode: in_pod,
        problem: Some("rules are missing.".to_owned()),
        pods: vec![
            SimulatedPod { taken_ports: vec![15001, 15008], ..pod("web", None, in_pod) },
            pod("db", in_pod, node),
            pod("out", None, None),
        ],
        ..NodeSimulation::default()
    };
    let lines = |simulation: &NodeSimulation| -> Vec<String> {
        simulation_table(&change, simulation, false).lines().skip(4).map(str::to_owned).collect()
    };
    let later = "Istio's injector reads istio.io/rev: these count for pods that are created later.";
    let expected = [
        later,
        "Node: its agent may not know all pods and namespaces as they are: some may be missing.",
        "Node: no ztunnel serves it, and 1 of its pods would join.",
        "Node: rules are missing.",
        "Pod shop/web: web: no effect; another.",
        "Pod shop/web: it has ports 15001, 15008, which ztunnel would open in it: ztunnel would refuse it, and its traffic would be held.",
        "Pod shop/db: db: no effect; another.",
    ];
    assert_eq!(lines(&simulation), expected);
    simulation.synced = true;
    drop(simulation.pods.drain(..2));
    simulation.pods.extend([pod("leaves", in_pod, None), pod("stays", node, node)]);
    let ends = "Connections through ztunnel of pods that would leave end; others go on.";
    assert_eq!(lines(&simulation), [ends, later], "nothing joins, and nothing is captured anew");
}
