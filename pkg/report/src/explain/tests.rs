//! Every situation, created from a healthy one.

mod faults;

use enrolment::SkipReason;

use super::{Explanation, PodVerdict, explain_pod};
use crate::{
    CaptureState, ChangeRecord, ChangeStatus, Comparison, EffectiveSetting, NetnsRef, Observer, PodState,
    RedirectionMode, SCHEMA, SetMember, StatePart, StateReason, StateReport, Unobserved, ZtunnelState,
    ZtunnelView, tables,
};

/// A healthy node with one pod `shop/web` in this capture mode.
pub(crate) fn node(way: RedirectionMode) -> StateReport {
    let ip = "10.0.0.7".parse().unwrap();
    let member = SetMember { set: "ztunnel-pods-ips".into(), ip, uid: Some("u-1".into()) };
    let mut state = StateReport { schema: SCHEMA.into(), version: "0.1.0".into(), ..StateReport::default() };
    state.node.name = "node-1".into();
    state.node.agent_started_at = Some("2026-11-21T00:00:00Z".into());
    state.node.ambient_enabled = true;
    state.node.synced = true;
    state.node.mode = Some(way);
    state.node.no_ztunnel_policy = (way == RedirectionMode::Node).then(|| "hold".into());
    state.node.active_slot = (way == RedirectionMode::Node).then_some(0);
    state.observation.observed_at = "2026-11-21T03:00:00.5Z".into();
    state.ztunnels = vec![ZtunnelState {
        namespace: "istio-system".into(),
        name: "ztunnel-x".into(),
        ready: true,
        active: true,
        connected: (way == RedirectionMode::InPod).then_some(true),
        ..ZtunnelState::default()
    }];
    state.network.ipsets = Comparison::compare_sets(vec![member.clone()], vec![member]);
    let mut pod = PodState {
        namespace: "shop".into(),
        name: "web".into(),
        uid: "u-1".into(),
        ips: vec![ip],
        phase: "Running".into(),
        capture: CaptureState::Captured,
        mode: Some(way),
        reason: reason("ambient-namespace", "its namespace is labelled istio.io/dataplane-mode=ambient"),
        last_transition_time: Some("2026-11-21T01:00:00Z".into()),
        redirection_annotation: (way != RedirectionMode::Sidecar).then(|| "enabled".into()),
        ztunnel: (way == RedirectionMode::InPod).then_some(ZtunnelView { acknowledged: true, error: None }),
        ..PodState::default()
    };
    pod.kernel.observed_at = Some("2026-11-21T03:00:00Z".into());
    pod.kernel.netns = Some(NetnsRef { device: 4, inode: 17 });
    pod.kernel.observed = vec!["10.0.0.7 is in the set of enrolled addresses".into()];
    state.pods = vec![pod];
    state
}

pub(crate) fn reason(code: &str, words: &str) -> StateReason {
    StateReason { code: code.into(), message: words.into() }
}

fn is_sentence(text: &str) -> bool {
    text.ends_with(['.', '?']) && !text.ends_with("..") && !text.contains('\n') && !text.contains("  ")
}

/// Explains `shop/web`, and checks what must hold of every answer.
fn asked(state: &StateReport) -> Explanation {
    checked(explain_pod(state, "shop", "web"))
}

fn checked(answer: Explanation) -> Explanation {
    let lists = [&answer.details, &answer.advice, &answer.node_problems];
    for text in lists.into_iter().flatten().chain([&answer.message]) {
        assert!(is_sentence(text), "{text:?} in {answer:#?}");
    }
    assert!(!answer.code.is_empty() && answer.message.contains(&answer.pod), "{answer:#?}");
    if answer.verdict == PodVerdict::Unhealthy {
        assert!(!answer.advice.is_empty(), "what is wrong has advice: {answer:#?}");
    }
    let text = answer.to_string();
    let all = lists.into_iter().flatten().chain([&answer.message, &answer.code]);
    all.for_each(|part| assert!(text.contains(part), "{part}: {text}"));
    answer
}

/// A change of the whole document.
type NodeCase = (RedirectionMode, fn(&mut StateReport), &'static str, PodVerdict, &'static str);

/// A change of the pod, the resulting code and verdict, and words of the answer.
type Case = (RedirectionMode, fn(&mut PodState), &'static str, PodVerdict, &'static str);

#[test]
fn pods_that_should_be_captured() {
    use CaptureState::{Bypassing, Held, Pending, Unknown};
    let cases: &[Case] = &[
        (
            RedirectionMode::Node,
            |_| (),
            "captured",
            PodVerdict::Healthy,
            "rules of the node redirect its traffic to ztunnel",
        ),
        (RedirectionMode::InPod, |_| (), "captured", PodVerdict::Healthy, "ztunnel, which listens there"),
        (RedirectionMode::Sidecar, |_| (), "captured-sidecar", PodVerdict::Healthy, "to its own sidecar"),
        (
            RedirectionMode::Node,
            |pod| pod.capture = Pending,
            "pending",
            PodVerdict::Unhealthy,
            "is being captured",
        ),
        (
            RedirectionMode::Node,
            |pod| pod.capture = Held,
            "held",
            PodVerdict::Unhealthy,
            "its traffic is held back",
        ),
        (
            RedirectionMode::Node,
            |pod| pod.capture = Bypassing,
            "bypassing",
            PodVerdict::Unhealthy,
            "bypasses the mesh",
        ),
        (
            RedirectionMode::Node,
            |pod| (pod.capture, pod.ips) = (Pending, Vec::new()),
            "no-address",
            PodVerdict::Unhealthy,
            "has no address yet",
        ),
        (
            RedirectionMode::InPod,
            |pod| {
                pod.capture = Held;
                pod.ztunnel =
                    Some(ZtunnelView { acknowledged: false, error: Some("no listeners: EMFILE.".into()) });
            },
            "ztunnel-refused",
            PodVerdict::Unhealthy,
            "ztunnel refused the pod shop/web: no listeners: EMFILE. Its traffic is held back",
        ),
        (
            RedirectionMode::InPod,
            |pod| {
                pod.capture = Held;
                let error = r#"failure to start proxy : Bind([::]:15008, Os { code: 98, kind: AddrInUse, message: "Address in use" })"#;
                pod.ztunnel = Some(ZtunnelView { acknowledged: false, error: Some(error.into()) });
            },
            "ztunnel-refused",
            PodVerdict::Unhealthy,
            "ztunnel refused the pod shop/web: a process in it has port 15008, which ztunnel needs there (failure to start",
        ),
        (
            RedirectionMode::Sidecar,
            |pod| {
                pod.capture = Bypassing;
                pod.kernel.differences = vec!["the rules of IPv4 are missing".into()];
            },
            "sidecar-rules-missing",
            PodVerdict::Unhealthy,
            "missing or incomplete (the rules of IPv4 are missing). All or some of its traffic bypasses",
        ),
        (
            RedirectionMode::Sidecar,
            |pod| {
                pod.capture = Pending;
                pod.kernel.differences = vec!["the rules of IPv4 are missing".into()];
            },
            "sidecar-rules-missing",
            PodVerdict::Unhealthy,
            "missing or incomplete (the rules of IPv4 are missing). It is not captured yet.",
        ),
        (
            RedirectionMode::InPod,
            |pod| {
                pod.capture = Bypassing;
                pod.kernel.preceding_rules =
                    vec!["nf_tables inet x out sets the mark 0x539".into(), "a rule".into()];
            },
            "overruled",
            PodVerdict::Unhealthy,
            "so all or some of its traffic bypasses the mesh (nf_tables inet x out sets the mark 0x539, and 1 more)",
        ),
        (
            RedirectionMode::InPod,
            |pod| (pod.capture, pod.kernel.repair_count) = (Pending, 3),
            "unstable",
            PodVerdict::Unhealthy,
            "were restored 3 times in a row",
        ),
        (
            RedirectionMode::InPod,
            |pod| pod.kernel.dns_unanswered = true,
            "dns-unanswered",
            PodVerdict::Unhealthy,
            "nothing receives them at port 15053",
        ),
        (
            RedirectionMode::Sidecar,
            |pod| {
                (pod.capture, pod.kernel.repair_count) = (Pending, 2);
                pod.kernel.differences = vec!["removed at this moment".into()];
            },
            "unstable",
            PodVerdict::Unhealthy,
            "It is pending until its rules stay in place",
        ),
        (
            RedirectionMode::InPod,
            |pod| {
                pod.capture = Bypassing;
                pod.kernel.differences = vec!["a rule was changed".into(), "a route is missing".into()];
            },
            "drifted",
            PodVerdict::Unhealthy,
            "differs from the desired state in 2 places (a rule was changed, and 1 more)",
        ),
        (
            RedirectionMode::InPod,
            |pod| {
                (pod.capture, pod.kernel.netns) = (Bypassing, None);
                pod.kernel.unobserved = Some("no process of it was found".into());
            },
            "netns-not-found",
            PodVerdict::Unhealthy,
            "was not found (no process of it was found)",
        ),
        (
            RedirectionMode::Sidecar,
            |pod| {
                (pod.capture, pod.kernel.netns) = (Unknown, None);
                pod.kernel.unobserved = Some("the agent sees no processes of the node".into());
            },
            "netns-not-found",
            PodVerdict::Unknown,
            "is unknown, because the kernel could not be queried: the agent sees no processes of the node.",
        ),
        (
            RedirectionMode::Node,
            |pod| {
                pod.capture = Unknown;
                pod.kernel.unobserved = Some("Operation not permitted".into());
            },
            "kernel-unobserved",
            PodVerdict::Unknown,
            "Operation not permitted",
        ),
        (
            RedirectionMode::Node,
            |pod| pod.capture = Unknown,
            "unobserved",
            PodVerdict::Unknown,
            "it has not been observed yet",
        ),
        (
            RedirectionMode::InPod,
            |pod| {
                pod.capture = Pending;
                pod.problem = Some("the last ADD failed: iptables-restore: exit status 4".into());
            },
            "failed",
            PodVerdict::Unhealthy,
            "could not be enrolled: the last ADD failed: iptables-restore: exit status 4.",
        ),
        (
            RedirectionMode::Node,
            |pod| pod.redirection_annotation = None,
            "annotation-missing",
            PodVerdict::Unhealthy,
            "istiod does not know",
        ),
        (
            RedirectionMode::Node,
            |pod| {
                (pod.capture, pod.mode) = (CaptureState::Leaving, None);
                pod.reason = reason("pod-label-none", "it is labelled none itself");
                pod.kernel.differences = vec!["10.0.0.7 is still in the set".into()];
            },
            "leaving",
            PodVerdict::Unhealthy,
            "for it still exist (10.0.0.7 is still in the set): it is labelled none itself.",
        ),
    ];
    for (way, change, code, verdict, words) in cases {
        let mut state = node(*way);
        change(&mut state.pods[0]);
        let answer = asked(&state);
        assert_eq!((answer.code.as_str(), answer.verdict), (*code, *verdict), "{answer}");
        assert!(answer.message.contains(words) && answer.node_problems.is_empty(), "{words}: {answer}");
        assert_eq!((answer.found, answer.capture), (true, Some(state.pods[0].capture)));
    }
}

#[test]
fn pods_that_should_be_outside() {
    let is_shown = |reason: &SkipReason| *reason != SkipReason::NamespaceUnknown;
    let codes = SkipReason::ALL.into_iter().filter(is_shown).map(SkipReason::code);
    for code in codes.chain(["something-new"]) {
        let mut state = node(RedirectionMode::Node);
        let pod = &mut state.pods[0];
        (pod.capture, pod.mode, pod.kernel) = (CaptureState::Outside, None, crate::KernelView::default());
        pod.reason = reason(code, "the clause of the document");
        let answer = asked(&state);
        assert_eq!((answer.code.as_str(), answer.verdict), (code, PodVerdict::Healthy), "{answer}");
        let expected = "The pod shop/web is not captured, and should not be: the clause of the document.";
        assert_eq!((answer.message.as_str(), answer.node_problems.len()), (expected, 0), "{answer}");
        let said = answer.to_string().matches("the clause of the document").count();
        assert_eq!(said, 1, "one reason is enough: {answer}");
        // Without an agent, nobody knows labels that have changed since; this is no fault of any other pod.
        state.observation.observer = Observer::Command;
        let answer = asked(&state);
        let expected = match code {
            "not-labelled" | "not-selected" | "pod-label-none" | "opted-out" => {
                ("agent-down", PodVerdict::Unknown)
            }
            code => (code, PodVerdict::Healthy),
        };
        assert_eq!((answer.code.as_str(), answer.verdict), expected, "{answer}");
        assert_eq!(answer.node_problems.len(), 1, "{answer}");
    }
    let mut state = node(RedirectionMode::Node);
    (state.pods[0].capture, state.pods[0].mode) = (CaptureState::Unknown, None);
    state.pods[0].reason = reason("namespace-unknown", "its namespace is not known yet");
    assert_eq!(asked(&state).verdict, PodVerdict::Unknown);
}

/// Another program may have sent the explanation, such as a pod with the label of agents.
#[test]
fn no_explanation_steers_a_terminal() {
    let all = || vec!["\x1b[2J".to_owned(), "\u{9b}31m\n".to_owned()];
    let (pod, code, message) = ("a\x1b".to_owned(), "\x07".to_owned(), "\x1b]0;x".to_owned());
    let (details, advice, node_problems) = (all(), all(), all());
    let answer = Explanation { pod, code, message, details, advice, node_problems, ..Explanation::default() };
    let text = answer.to_string();
    assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
    assert_eq!(text.lines().count(), 13, "{text:?}");
}

#[test]
fn pods_that_nobody_knows() {
    let cases: &[NodeCase] = &[
        (
            RedirectionMode::Node,
            |_| (),
            "no-such-pod",
            PodVerdict::NotFound,
            "The node node-1 has no pod shop/we",
        ),
        (
            RedirectionMode::Node,
            |state| state.node.synced = false,
            "not-synced",
            PodVerdict::Unknown,
            "has not been able to read",
        ),
        (
            RedirectionMode::Node,
            |state| (state.node.ambient_enabled, state.node.synced) = (false, false),
            "no-record",
            PodVerdict::Unknown,
            "ambient mode is off",
        ),
        (
            RedirectionMode::Node,
            |state| state.node.ambient_enabled = false, // and pods are watched for the plugin
            "no-such-pod",
            PodVerdict::NotFound,
            "The node node-1 has no pod shop/we",
        ),
        (
            RedirectionMode::Node,
            |state| state.observation.observer = Observer::Command,
            "agent-down",
            PodVerdict::Unknown,
            "no record on the node mentions this pod",
        ),
        (
            RedirectionMode::Node,
            |state| {
                let (name, value) = ("exclude-namespaces".into(), "kube-system, shop".into());
                state.config = vec![EffectiveSetting { name, value, source: "flag".into() }];
            },
            "no-such-pod-excluded",
            PodVerdict::NotFound,
            "excluded by the setting exclude-namespaces",
        ),
    ];
    for (way, change, code, verdict, words) in cases {
        let mut state = node(*way);
        change(&mut state);
        let answer = checked(explain_pod(&state, "shop", "we"));
        assert_eq!(
            (answer.code.as_str(), answer.verdict, answer.found),
            (*code, *verdict, false),
            "{answer}"
        );
        assert!(answer.message.contains(words), "{words}: {answer}");
        assert!(answer.details.contains(&"Similar names: shop/web.".to_owned()), "{answer}");
    }
    let answer = checked(explain_pod(&node(RedirectionMode::Node), "store", "web"));
    assert_eq!(answer.details, ["Similar names: shop/web."]);
    assert_eq!(PodVerdict::NotFound.exit_status(), 3);
}

#[test]
fn the_sentences_say_since_when_why_what_the_kernel_shows_and_what_is_not_known() {
    let mut state = node(RedirectionMode::Node);
    state.observation.unobserved = vec![Unobserved::new(StatePart::Firewall, "there is no iptables-legacy")];
    state.history = vec![ChangeRecord {
        started_at: "2026-11-21T01:00:00Z".into(),
        cause: "pod shop/web joined".into(),
        action: "its address was added".into(),
        pod: Some("shop/web".into()),
        duration_ms: 1.25,
        outcome: ChangeStatus::Succeeded,
        error: None,
        ..ChangeRecord::default()
    }];
    let repeated = ChangeRecord {
        repeats: 6,
        first_started_at: Some("2026-11-20T09:00:00Z".into()),
        ..state.history[0].clone()
    };
    let table = tables::history_table(std::slice::from_ref(&repeated), false);
    let what = "7 times since 2026-11-20T09:00:00Z: its address was added\n";
    assert!(table.ends_with(what), "{table}");
    let again = StateReport { history: vec![repeated], ..state.clone() };
    let text = asked(&again).to_string();
    let expected =
        "The last change, at 2026-11-21T01:00:00Z (7 times since 2026-11-20T09:00:00Z): its address";
    assert!(text.contains(expected), "{text}");
    let text = asked(&state).to_string();
    for part in [
        "In this state since 2026-11-21T01:00:00Z.",
        "It should be captured on the node: its namespace is labelled istio.io/dataplane-mode=ambient.",
        "The kernel showed at 2026-11-21T03:00:00Z: 10.0.0.7 is in the set of enrolled addresses.",
        "Its annotation ambient.istio.io/redirection is enabled.",
        "The last change, at 2026-11-21T01:00:00Z: its address was added, because of: pod shop/web joined (1.2 ms).",
        "Unknown: the node's firewall, because: there is no iptables-legacy.",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(tables::not_known(&state).len(), 1);
}

const NO_TRANSITION: &str = "Time of the last transition unknown: unchanged since the agent started at 2026-11-21T00:00:00Z, \
                             or the change was not observed.";

#[test]
fn a_pod_that_an_earlier_agent_captured_has_been_so_since_the_last_change_in_the_history() {
    let mut state = node(RedirectionMode::InPod);
    let change = |at: &str, cause: &str| ChangeRecord {
        started_at: at.into(),
        cause: cause.into(),
        action: "something".into(),
        pod: Some("shop/web".into()),
        duration_ms: 1.0,
        outcome: ChangeStatus::Succeeded,
        error: None,
        ..ChangeRecord::default()
    };
    state.history = vec![change("2026-11-21T02:00:00Z", "ztunnel"), change("2026-11-19T01:00:00Z", "drift")];
    assert_eq!(asked(&state).details[0], "In this state since 2026-11-21T01:00:00Z.");
    state.pods[0].last_transition_time = None;
    let details = asked(&state).details;
    assert_eq!(details[0], "In this state since 2026-11-19T01:00:00Z, as far as the history goes.");
    assert_eq!(
        details[details.len() - 2..],
        [
            "The last change, at 2026-11-21T02:00:00Z: something, because of: ztunnel (1.0 ms).",
            "Before that, at 2026-11-19T01:00:00Z: something, because of: drift (1.0 ms).",
        ]
    );
    state.history.truncate(1);
    assert_eq!(asked(&state).details[0], NO_TRANSITION);
    state.history.push(change("2026-11-19T01:00:00Z", "drift"));
    state.pods[0].created_at = Some("2026-11-21T02:00:00Z".into());
    let details = asked(&state).details;
    assert_eq!(details[0], NO_TRANSITION, "that was an earlier pod of its name");
    assert!(details.last().unwrap().starts_with("The last change, at 2026-11-21T02:00:00Z"), "{details:?}");
}

#[test]
fn a_pod_that_an_earlier_agent_failed_to_capture_has_been_in_this_state_since_the_first_failure() {
    let mut state = node(RedirectionMode::InPod);
    state.pods[0].last_transition_time = None;
    let change = ChangeRecord {
        started_at: "2026-11-21T02:00:00Z".into(),
        cause: "drift".into(),
        pod: Some("shop/web".into()),
        ..ChangeRecord::default()
    };
    let failed = ChangeRecord {
        outcome: ChangeStatus::Failed,
        error: Some("no".into()),
        repeats: 3,
        first_started_at: Some("2026-11-20T02:00:00Z".into()),
        ..change.clone()
    };
    let captured = ChangeRecord { outcome: ChangeStatus::Succeeded, ..change };
    state.history = vec![failed.clone(), captured.clone()];
    for capture in [CaptureState::Bypassing, CaptureState::Pending, CaptureState::Held] {
        state.pods[0].capture = capture;
        let since = "In this state at least since 2026-11-20T02:00:00Z, as far as the history goes.";
        assert_eq!(asked(&state).details[0], since, "{capture:?}");
    }
    state.history = vec![captured, failed];
    assert_eq!(asked(&state).details[0], NO_TRANSITION, "captured in between");
}

#[test]
fn it_is_written_as_json_and_steers_no_terminal() {
    let mut state = node(RedirectionMode::InPod);
    state.pods[0].ztunnel =
        Some(ZtunnelView { acknowledged: false, error: Some("\x1b[31mred\nlines".into()) });
    let answer = asked(&state);
    assert!(
        !answer.to_string().contains('\x1b') && answer.message.contains("\\u{1b}[31mred lines"),
        "{answer}"
    );
    let json = serde_json::to_value(&answer).unwrap();
    assert_eq!(
        (&json["code"], &json["mode"], &json["verdict"]),
        (&"ztunnel-refused".into(), &"in-pod".into(), &"unhealthy".into())
    );
    assert_eq!(serde_json::from_value::<Explanation>(json).unwrap(), answer);
}
