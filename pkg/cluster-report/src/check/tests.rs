use std::collections::BTreeMap;

use report::{
    Comparison, DifferenceKind, InstalledFile, KernelView, PartHealth, PodState, RedirectionMode,
    StateDifference, StatePart, StateReason, StateReport, Unobserved, ZtunnelState,
};
use serde_json::{Value, json};

use super::*;
use crate::cluster::UnreadObjects;

fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn api_pod(name: &str, labels: Value, annotations: Value) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "shop", "labels": labels, "annotations": annotations},
        "spec": {"nodeName": "n1", "containers": [{"name": "web"}, {"name": "istio-proxy"}]},
        "status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"},
    })
}

fn pod_state(name: &str, capture: CaptureState) -> PodState {
    PodState {
        namespace: "shop".into(),
        name: name.into(),
        uid: "u".into(),
        phase: "Running".into(),
        capture,
        mode: Some(RedirectionMode::InPod),
        reason: StateReason { code: "ambient-namespace".into(), message: "its namespace is labelled".into() },
        redirection_annotation: Some("enabled".into()),
        kernel: KernelView { observed_at: Some("2026-03-01T00:00:00Z".into()), ..KernelView::default() },
        ..PodState::default()
    }
}

fn taken_port() -> report::PreflightFact {
    let message = "another process listens on TCP port 8000".to_owned();
    report::PreflightFact::Found(report::PreflightCode::PortTaken, Severity::Warning, Ok(vec![message]))
}

/// A healthy node with one captured pod.
fn healthy() -> Cluster {
    let mut state = StateReport {
        version: "0.1.0".into(),
        pods: vec![pod_state("web", CaptureState::Captured)],
        ztunnels: vec![ZtunnelState { name: "ztunnel-1".into(), ready: true, ..ZtunnelState::default() }],
        network: report::NetworkState::nothing_desired(),
        preflight: report::judge_preflight(&[report::PreflightFact::Files(None)]),
        ..StateReport::default()
    };
    state.node.ambient_enabled = true;
    state.node.synced = true;
    state.node.agent_started_at = Some("2026-02-01T00:00:00.5Z".into());
    state.observation.observed_at = "2026-03-01T00:00:00Z".into();
    let ready = json!([{"type": "Ready", "status": "True"}]);
    Cluster {
        pods: vec![object(api_pod("web", json!({}), json!({})))],
        namespaces: vec![object(json!({
            "metadata": {"name": "shop", "labels": {"istio.io/dataplane-mode": "ambient"}}
        }))],
        nodes: vec![object(json!({"metadata": {"name": "n1"}, "status": {"conditions": ready}}))],
        policies: Vec::new(),
        daemon_sets: vec![object(json!({
            "metadata": {"name": "istio-cni-node", "namespace": "kube-system"},
            "status": {"desiredNumberScheduled": 1, "numberReady": 1, "updatedNumberScheduled": 1},
        }))],
        agents: vec![object(json!({
            "metadata": {"name": "agent-1", "namespace": "kube-system"}, "spec": {"nodeName": "n1"},
            "status": {"phase": "Running", "conditions": ready},
        }))],
        answers: BTreeMap::from([("n1".to_owned(), Ok(state))]),
        only_node: None,
        unread: Vec::new(),
    }
}

type Change = fn(&mut Cluster);

fn state(cluster: &mut Cluster) -> &mut StateReport {
    match cluster.answers.get_mut("n1") {
        Some(Ok(state)) => state,
        _ => panic!("n1 answers"),
    }
}

fn second_node(cluster: &mut Cluster, labels: Value) {
    cluster.nodes.push(object(json!({"metadata": {"name": "n2", "labels": labels}})));
}

/// Codes of `millrace check`.
fn codes() -> impl Iterator<Item = Code> {
    Code::ALL.iter().copied().filter(|code| code.belongs_to_check())
}

#[test]
fn a_healthy_cluster_has_no_finding() {
    let report = check(&healthy());
    assert_eq!(report.findings, Vec::new());
    assert_eq!(
        (report.verdict, report.partial, report.status(Severity::Warning)),
        (Verdict::Healthy, false, 0)
    );
    assert_eq!(report.checks.len(), codes().count());
}

/// Every code, its cause, the object that it names, and a part of its message.
#[test]
fn each_finding_has_its_cause() {
    let table: Vec<(Code, Change, &str, &str)> = vec![
        (
            Code::NotReadable,
            |c| c.unread.push(UnreadObjects { what: "networkpolicies".into(), why: "forbidden".into() }),
            "",
            "networkpolicies: forbidden",
        ),
        (Code::NoAgents, |c| c.agents.clear(), "", "no pod has"),
        (
            Code::RolloutIncomplete,
            |c| c.daemon_sets[0].status.number_ready = 0,
            "DaemonSet kube-system/istio-cni-node",
            "0 of 1 pods are ready",
        ),
        (
            Code::RolloutIncomplete,
            |c| c.daemon_sets[0].metadata.generation = 1,
            "DaemonSet kube-system/istio-cni-node",
            "its last change",
        ),
        (
            Code::VersionsDiffer,
            |c| {
                let mut other = state(c).clone();
                other.version = "0.2.0".into();
                other.pods.clear();
                c.answers.insert("n2".into(), Ok(other));
            },
            "",
            "0.1.0 on 1 nodes (n1); 0.2.0 on 1 nodes (n2)",
        ),
        (
            Code::NamespaceLabels,
            |c| drop(c.namespaces[0].metadata.labels.insert("istio-injection".into(), "enabled".into())),
            "namespace shop",
            "istio-injection=enabled",
        ),
        (
            Code::NamespaceLabels,
            |c| drop(c.namespaces[0].metadata.labels.insert("istio.io/rev".into(), "canary".into())),
            "namespace shop",
            "istio.io/rev=canary",
        ),
        (
            Code::AgentNotReady,
            |c| c.agents[0].status.conditions.clear(),
            "pod kube-system/agent-1",
            "Running, not ready (node n1)",
        ),
        (
            Code::AgentSilent,
            |c| drop(c.answers.insert("n1".into(), Err("no answer".into()))),
            "node n1",
            "no answer",
        ),
        (
            Code::AgentSilent,
            |c| state(c).observation.observer = report::Observer::Command,
            "node n1",
            "a command has observed the node",
        ),
        (
            Code::AgentUnhealthy,
            |c| {
                state(c).health.push(PartHealth {
                    component: "agent".into(),
                    healthy: false,
                    message: "stuck".into(),
                });
            },
            "node n1",
            "agent: stuck",
        ),
        (Code::NotSynced, |c| state(c).node.synced = false, "node n1", "completely"),
        (
            Code::NotObserved,
            |c| state(c).observation.unobserved.push(Unobserved::new(StatePart::Firewall, "no iptables")),
            "node n1",
            "no iptables",
        ),
        (
            Code::NoRecords,
            |c| {
                state(c)
                    .observation
                    .unobserved
                    .push(Unobserved::new(StatePart::UnrecordedPods, "2 namespaces"));
            },
            "node n1",
            "2 namespaces",
        ),
        (Code::NodeWithoutAgent, |c| second_node(c, json!({})), "node n2", "no agent runs here"),
        (
            Code::MeshWithoutAgent,
            |c| {
                second_node(c, json!({}));
                c.pods[0].spec.node_name = "n2".into();
            },
            "node n2",
            "shop/web",
        ),
        (
            Code::NodeTainted,
            |c| {
                c.nodes[0].spec.taints =
                    vec![object(json!({"key": "NodeReadiness", "effect": "NoSchedule"}))];
            },
            "node n1",
            "NodeReadiness:NoSchedule",
        ),
        (
            Code::InstallationDamaged,
            |c| {
                let (kind, path) = ("plugin".into(), "/opt/cni/bin/istio-cni".into());
                state(c).installation =
                    vec![InstalledFile { kind, path, correct: false, message: "it is missing".into() }];
            },
            "node n1",
            "it is missing",
        ),
        (
            Code::NodePreflight,
            |c| state(c).preflight = report::judge_preflight(&[taken_port()]),
            "node n1",
            "another process listens on TCP port 8000 (port-taken)",
        ),
        (
            Code::NodeDegraded,
            |c| state(c).node.problem = Some("no iptables".into()),
            "node n1",
            "no iptables",
        ),
        (Code::ZtunnelNotReady, |c| state(c).ztunnels[0].ready = false, "node n1", "ztunnel-1 is not ready"),
        (Code::ZtunnelNotReady, |c| state(c).ztunnels.clear(), "node n1", "no ztunnel runs here"),
        (
            Code::ZtunnelNotReady,
            |c| state(c).ztunnels[0].connected = Some(false),
            "node n1",
            "No ztunnel is connected to the agent",
        ),
        (
            Code::NodeDrift,
            |c| {
                let what = "add set 10.0.0.1".into();
                let missing =
                    StateDifference { kind: DifferenceKind::Missing, family: Some(4), object: what };
                state(c).network.ipsets = Comparison {
                    differences: vec![missing],
                    ..Comparison::compare_sets(Vec::new(), Vec::new())
                };
            },
            "node n1",
            "ipsets: ",
        ),
        (
            Code::ForeignObjects,
            |c| state(c).network.foreign.push("a link of ours".into()),
            "node n1",
            "a link of ours",
        ),
        (
            Code::PodBypassing,
            |c| state(c).pods[0].capture = CaptureState::Bypassing,
            "pod shop/web",
            "(node n1)",
        ),
        (Code::PodHeld, |c| state(c).pods[0].capture = CaptureState::Held, "pod shop/web", "(node n1)"),
        (
            Code::PodDiffers,
            |c| state(c).pods[0].kernel.differences.push("a rule is missing".into()),
            "pod shop/web",
            "[drifted]",
        ),
        (
            Code::PodDiffers,
            |c| state(c).pods[0].redirection_annotation = None,
            "pod shop/web",
            "[annotation-missing]",
        ),
        (
            Code::PodDiffers,
            |c| state(c).pods[0].kernel.dns_unanswered = true,
            "pod shop/web",
            "[dns-unanswered]",
        ),
        (Code::PodPending, |c| state(c).pods[0].capture = CaptureState::Pending, "pod shop/web", "(node n1)"),
        (
            Code::ExceptionRefused,
            |c| state(c).pods[0].refused_exceptions = vec!["it is not allowed".to_owned()],
            "pod shop/web",
            "it is not allowed",
        ),
        (Code::PodLeaving, |c| state(c).pods[0].capture = CaptureState::Leaving, "pod shop/web", "(node n1)"),
        (Code::PodUnknown, |c| state(c).pods[0].capture = CaptureState::Unknown, "pod shop/web", "(node n1)"),
        (
            Code::PodUnknown,
            |c| {
                let pod = &mut state(c).pods[0];
                (pod.capture, pod.mode) = (CaptureState::Unknown, None);
                pod.reason.code = "namespace-unknown".into();
            },
            "pod shop/web",
            "[namespace-unknown]",
        ),
        (
            Code::PodDiffers,
            |c| {
                let error = Some("no identity".into());
                state(c).pods[0].ztunnel = Some(report::ZtunnelView { acknowledged: true, error });
            },
            "pod shop/web",
            "[ztunnel-refused]",
        ),
        (
            Code::PodOlderThanPlugin,
            |c| {
                c.pods[0] = object(api_pod("web", json!({}), json!({"sidecar.istio.io/status": "{}"})));
                let agent = state(c);
                (agent.node.ambient_enabled, agent.node.synced) = (false, false);
                agent.pods.clear();
            },
            "pod shop/web",
            "it started at 2026-01-01T00:00:00Z, before the agent of node n1 (2026-02-01T00:00:00)",
        ),
        (Code::PodNotReported, |c| state(c).pods.clear(), "pod shop/web", "does not report it"),
        (
            Code::PodLabels,
            |c| {
                c.pods[0] = object(api_pod(
                    "web",
                    json!({"istio.io/dataplane-mode": "ambient"}),
                    json!({"sidecar.istio.io/status": "{}", "other": "dropped"}),
                ));
            },
            "pod shop/web",
            "it has a sidecar",
        ),
        (
            Code::PolicyBlocksHbone,
            |c| {
                c.policies = vec![object(json!({
                    "metadata": {"name": "web", "namespace": "shop"},
                    "spec": {"podSelector": {}, "ingress": [{"ports": [{"port": 80}]}]},
                }))];
            },
            "NetworkPolicy shop/web",
            "at 1 pod of the mesh: shop/web",
        ),
        (
            Code::PolicyBlocksSome,
            |c| {
                let from = json!([{"podSelector": {}}]);
                c.policies = vec![object(json!({
                    "metadata": {"name": "web", "namespace": "shop"},
                    "spec": {"podSelector": {}, "ingress": [
                        {"ports": [{"port": 80}]}, {"from": from, "ports": [{"port": 15008}]},
                    ]},
                }))];
            },
            "NetworkPolicy shop/web",
            "some peers",
        ),
        (
            Code::PolicyBlocksAll,
            |c| {
                c.policies = vec![object(json!({
                    "metadata": {"name": "deny", "namespace": "shop"}, "spec": {"podSelector": {}},
                }))];
            },
            "NetworkPolicy shop/deny",
            "nothing may connect",
        ),
        (
            Code::PolicyBlocksOutbound,
            |c| {
                let to = json!([{"podSelector": {}}]);
                c.policies = vec![object(json!({
                    "metadata": {"name": "out", "namespace": "shop"},
                    "spec": {"podSelector": {}, "policyTypes": ["Egress"],
                        "egress": [{"to": to, "ports": [{"port": 5432}]}]},
                }))];
            },
            "NetworkPolicy shop/out",
            "at 1 pod of the mesh: shop/web",
        ),
    ];
    for (code, change, object, part) in &table {
        let mut cluster = healthy();
        change(&mut cluster);
        let report = check(&cluster);
        let found: Vec<_> = report.findings.iter().filter(|finding| finding.code == *code).collect();
        let [finding] = found.as_slice() else { panic!("{code:?}: {:#?}", report.findings) };
        assert_eq!(finding.object.title(), *object, "{code:?}");
        assert!(finding.message.contains(part), "{code:?}: {}", finding.message);
        let page = if *code == Code::NodePreflight {
            "docs/preflight.md#port-taken".to_owned()
        } else {
            format!("docs/millrace.md#{}", code.as_str())
        };
        assert_eq!(finding.link, page);
        let line = report.checks.iter().find(|line| line.title == code.check()).unwrap();
        assert_eq!((line.severity, line.findings), (Some(code.severity()), 1));
        // The most severe finding decides; a node without an agent does not fail the check.
        let worst = report.findings.iter().map(|finding| finding.severity).max().unwrap();
        let expected = match worst {
            Severity::Error => 1,
            Severity::Unknown => 2,
            Severity::Warning => 0,
        };
        assert_eq!(report.status(Severity::Unknown), expected, "{code:?}");
        assert_eq!(report.status(Severity::Error), u8::from(expected == 1), "{code:?}");
        assert_ne!(report.status(Severity::Warning), 0, "{code:?}");
    }
    for code in codes() {
        assert!(table.iter().any(|row| row.0 == code), "{code:?} is tested");
    }
}

/// Checks that still pass, by the missing object.
#[test]
fn no_check_passes_that_rests_on_something_missing() {
    let apart_from_agents =
        vec![Code::NotReadable, Code::RolloutIncomplete, Code::NamespaceLabels, Code::PodLabels];
    let apart_from_answers = vec![
        Code::NotReadable,
        Code::NoAgents,
        Code::RolloutIncomplete,
        Code::NamespaceLabels,
        Code::AgentNotReady,
        Code::NodeWithoutAgent,
        Code::MeshWithoutAgent,
        Code::NodeTainted,
        Code::PodLabels,
    ];
    let unread = |kind: &str| UnreadObjects { what: kind.into(), why: "forbidden".into() };
    let silent = |c: &mut Cluster| drop(c.answers.insert("n1".into(), Err("no".into())));
    let passed = |change: &dyn Fn(&mut Cluster)| {
        let mut cluster = healthy();
        change(&mut cluster);
        let report = check(&cluster);
        for line in &report.checks {
            assert_eq!(line.severity.is_none(), line.findings == 0 && line.unknown.is_empty(), "{line:?}");
        }
        let passed = report.checks.iter().filter(|line| line.severity.is_none()).map(|line| line.code);
        passed.collect::<Vec<_>>()
    };
    assert_eq!(passed(&|_| {}), codes().collect::<Vec<_>>());
    assert_eq!(passed(&|c| silent(c)), apart_from_answers);
    assert_eq!(passed(&|c| (c.agents.clear(), c.answers.clear()).0), apart_from_agents);
    for kind in ["pods", "namespaces", "nodes", "networkpolicies", "daemonsets"] {
        let left = passed(&|c| c.unread.push(unread(kind)));
        let is_of = |code: &Code| match kind {
            "pods" => code.section() == Section::Pods || *code == Code::MeshWithoutAgent,
            "namespaces" => *code == Code::NamespaceLabels || *code == Code::PodBypassing,
            "nodes" => *code == Code::NodeTainted,
            "networkpolicies" => code.section() == Section::Policies,
            _ => *code == Code::RolloutIncomplete,
        };
        assert!(!left.iter().any(|code| is_of(code) || *code == Code::NotReadable), "{kind}: {left:?}");
        assert!(left.contains(&Code::NodeDrift), "{kind}: {left:?}");
    }
    let unsynced = passed(&|c| state(c).node.synced = false);
    assert!(!unsynced.contains(&Code::PodBypassing) && unsynced.contains(&Code::InstallationDamaged));
}

#[test]
fn what_is_no_fault_is_not_reported() {
    let table: [(&str, Change); 9] = [
        ("a pod just captured need not be annotated", |c| {
            let pod = &mut state(c).pods[0];
            pod.redirection_annotation = None;
            pod.last_transition_time = Some("2026-02-28T23:59:30.5Z".into());
        }),
        ("a Windows node needs no agent", |c| second_node(c, json!({"kubernetes.io/os": "windows"}))),
        ("a node that takes no pods needs none either", |c| {
            second_node(c, json!({}));
            c.nodes[1].spec.unschedulable = true;
        }),
        ("a pod that is finished is not missed", |c| {
            c.pods[0].status.phase = "Succeeded".into();
            state(c).pods.clear();
        }),
        ("nor one with the node's network", |c| {
            c.pods[0].spec.host_network = true;
            state(c).pods.clear();
        }),
        ("nor one that started after the node was observed", |c| {
            c.pods[0].status.start_time = Some("2026-03-01T00:00:01Z".into());
            state(c).pods.clear();
        }),
        ("nor one that its label keeps outside", |c| {
            c.pods[0].metadata.labels.insert("istio.io/dataplane-mode".into(), "none".into());
            state(c).pods.clear();
        }),
        ("a policy is of no concern to a pod outside of the mesh", |c| {
            c.policies = vec![object(
                json!({"metadata": {"name": "deny", "namespace": "shop"}, "spec": {"podSelector": {}}}),
            )];
            state(c).pods[0].mode = Some(RedirectionMode::Sidecar);
        }),
        ("an agent that is being deleted need not be ready", |c| {
            let mut old = c.agents[0].clone();
            old.status.conditions.clear();
            old.metadata.deleted = Some("2026-01-01T00:00:00Z".into());
            c.agents.insert(0, old);
        }),
    ];
    for (why, change) in table {
        let mut cluster = healthy();
        change(&mut cluster);
        assert_eq!(check(&cluster).findings, Vec::new(), "{why}");
    }
}

#[test]
fn gateways_and_pods_that_refuse_their_sidecar_are_none_of_the_mesh() {
    let (status, long) = ("sidecar.istio.io/status", "x".repeat(1 << 16));
    let plain = json!({status: long});
    for (why, annotations, proxy, expected) in [
        ("a sidecar", &plain, json!({"args": ["proxy", "sidecar", long]}), Some(RedirectionMode::Sidecar)),
        ("without arguments", &plain, json!({"args": null, "env": null}), Some(RedirectionMode::Sidecar)),
        ("a gateway", &plain, json!({"args": ["proxy", "router"]}), None),
        ("turned off", &plain, json!({"env": [{"name": "DISABLE_ENVOY", "value": "true"}]}), None),
        (
            "not turned off",
            &plain,
            json!({"env": [{"name": "DISABLE_ENVOY", "valueFrom": {}}, {"name": "B", "value": long}]}),
            Some(RedirectionMode::Sidecar),
        ),
        ("opted out", &json!({status: "{}", "sidecar.istio.io/inject": "false"}), json!({}), None),
        (
            "not intercepted",
            &json!({status: "{}", "sidecar.istio.io/interceptionMode": "NONE"}),
            json!({}),
            None,
        ),
    ] {
        let mut pod = api_pod("web", json!({}), annotations.clone());
        pod["spec"]["containers"][1] = proxy;
        pod["spec"]["containers"][1]["name"] = json!("istio-proxy");
        let pod: crate::Pod = object(pod);
        assert_eq!(crate::mesh_membership(&pod, None), expected, "{why}");
        assert!(format!("{pod:?}").len() < 1 << 15, "{why}: what is long is not kept");
    }
}

/// The permission to list nodes can be lacking.
#[test]
fn mesh_pods_without_an_agent_are_found_although_nodes_cannot_be_read() {
    let mut cluster = healthy();
    cluster.nodes.clear();
    cluster.unread.push(UnreadObjects { what: "nodes".into(), why: "forbidden".into() });
    cluster.pods.push(object(api_pod("late", json!({}), json!({}))));
    cluster.pods[1].spec.node_name = "n2".into();
    let report = check(&cluster);
    let found = report.findings.iter().find(|finding| finding.code == Code::MeshWithoutAgent);
    assert_eq!(found.and_then(|finding| finding.node.as_deref()), Some("n2"));
    assert_eq!(report.status(Severity::Unknown), 1);
    let bypassing = report.checks.iter().find(|line| line.code == Code::PodBypassing).unwrap();
    assert_eq!((bypassing.severity, bypassing.unknown.len()), (Some(Severity::Unknown), 1));
}

#[test]
fn pods_that_no_agent_reports_are_those_to_read_again() {
    let mut cluster = healthy();
    assert_eq!(unreported_pods(&cluster), []);
    state(&mut cluster).pods.clear();
    let web = model::PodName { namespace: "shop".into(), name: "web".into() };
    assert_eq!(unreported_pods(&cluster), [web]);
}

/// The agents of other nodes were not read.
#[test]
fn one_node_without_an_agent_is_not_a_cluster_without_agents() {
    let mut cluster = healthy();
    cluster.only_node = Some("n1".to_owned());
    (cluster.agents, cluster.answers) = (Vec::new(), BTreeMap::new());
    let codes = |cluster: &Cluster| {
        let findings = check(cluster).findings;
        findings.into_iter().map(|finding| finding.code).collect::<Vec<_>>()
    };
    assert_eq!(codes(&cluster), [Code::MeshWithoutAgent]);
    cluster.pods.clear();
    assert_eq!(codes(&cluster), [Code::NodeWithoutAgent]);
    assert_eq!(check(&cluster).verdict, Verdict::Unknown);
}

#[test]
fn a_pod_that_its_agent_knows_as_it_was_before_is_unknown() {
    let table: [(&str, Change, &[Code]); 4] = [
        (
            "its namespace has been labelled since",
            |c| {
                let pod = &mut state(c).pods[0];
                (pod.capture, pod.mode, pod.reason.code) =
                    (CaptureState::Outside, None, "not-labelled".into());
            },
            &[Code::PodUnknown],
        ),
        ("it was replaced", |c| c.pods[0].metadata.uid = "v".into(), &[Code::PodUnknown]),
        (
            "it was replaced after the node was observed",
            |c| {
                c.pods[0].metadata.uid = "v".into();
                c.pods[0].status.start_time = Some("2026-03-01T00:00:01Z".into());
            },
            &[],
        ),
        (
            "its record has the UID of its container",
            |c| {
                c.pods[0] = object(api_pod("web", json!({}), json!({"sidecar.istio.io/status": "{}"})));
                c.pods[0].metadata.uid = "v".into();
                state(c).node.ambient_enabled = false;
            },
            &[],
        ),
    ];
    for (why, change, expected) in table {
        let mut cluster = healthy();
        change(&mut cluster);
        let report = check(&cluster);
        let codes: Vec<Code> = report.findings.iter().map(|finding| finding.code).collect();
        assert_eq!(codes, expected, "{why}");
        assert_eq!(report.status(Severity::Unknown), if expected.is_empty() { 0 } else { 2 }, "{why}");
    }
}

/// Without ambient mode and without the right to list pods, an agent knows only the pods whose ADD the plugin recorded.
#[test]
fn a_pod_with_a_sidecar_of_which_its_agent_knows_nothing_is_unknown() {
    let mut cluster = healthy();
    cluster.pods = vec![object(api_pod("web", json!({}), json!({"sidecar.istio.io/status": "{}"})))];
    cluster.pods[0].status.start_time = Some("2026-02-02T00:00:00Z".into());
    let agent = state(&mut cluster);
    (agent.node.ambient_enabled, agent.node.synced) = (false, false);
    agent.pods.clear();
    agent.observation.unobserved.push(Unobserved::new(StatePart::UnrecordedPods, "1 namespace"));
    let report = check(&cluster);
    assert_eq!((report.verdict, report.status(Severity::Unknown)), (Verdict::Unknown, 2));
    let pods =
        report.checks.iter().filter(|line| line.code.bases().contains(&crate::finding::Basis::MeshPods));
    let passed: Vec<Code> = pods.filter(|line| line.severity.is_none()).map(|line| line.code).collect();
    assert_eq!(passed, []);
    let found = report.findings.iter().map(|finding| (finding.code, finding.severity));
    let expected = [(Code::NoRecords, Severity::Warning), (Code::PodNotReported, Severity::Unknown)];
    assert_eq!(found.collect::<Vec<_>>(), expected);
}

#[test]
fn a_node_that_was_not_checked_is_not_good() {
    let mut cluster = healthy();
    state(&mut cluster).preflight.clear();
    let report = check(&cluster);
    let found: Vec<_> = report.findings.iter().map(|finding| (finding.code, finding.severity)).collect();
    assert_eq!(found, [(Code::NodePreflight, Severity::Unknown)]);
}

#[test]
fn each_finding_of_a_nodes_preflight_is_one_with_its_own_severity_and_hint() {
    let mut cluster = healthy();
    state(&mut cluster).preflight = report::judge_preflight(&[
        report::PreflightFact::Files(None),
        taken_port(),
        report::PreflightFact::Memory(Err("no control group".to_owned())),
    ]);
    let report = check(&cluster);
    let found: Vec<_> = report.findings.iter().map(|finding| (finding.code, finding.severity)).collect();
    assert_eq!(found, [(Code::NodePreflight, Severity::Warning), (Code::NodePreflight, Severity::Unknown)]);
    let (message, consequence) = (
        "another process listens on TCP port 8000 (port-taken)",
        report::PreflightCode::PortTaken.consequence(),
    );
    assert_eq!(report.findings[0].message, format!("{message}. {consequence}"));
    assert_eq!(report.findings[0].link, "docs/preflight.md#port-taken");
    assert_eq!(report.findings[0].hint, report::PreflightCode::PortTaken.advice());
    assert_eq!(report.status(Severity::Unknown), 2);
}

/// Agents and nodes stay: their faults concern every namespace's pods.
#[test]
fn one_namespace_keeps_its_own_pods_and_every_node() {
    let mut cluster = healthy();
    let elsewhere = PodState { namespace: "bank".into(), ..pod_state("till", CaptureState::Bypassing) };
    let here = pod_state("cart", CaptureState::Bypassing);
    state(&mut cluster).pods.extend([elsewhere, here]);
    state(&mut cluster).node.problem = Some("iptables: no such file".into());
    let both = json!({"istio.io/dataplane-mode": "ambient", "istio-injection": "enabled"});
    cluster.namespaces.push(object(json!({"metadata": {"name": "bank", "labels": both}})));
    let codes = |cluster: &Cluster| {
        let report = check(cluster);
        report.findings.iter().map(|finding| (finding.code, finding.object.name.clone())).collect::<Vec<_>>()
    };
    assert_eq!(codes(&cluster).len(), 4, "{:?}", codes(&cluster));
    cluster.keep_namespace("shop");
    let expected = [(Code::NodeDegraded, "n1"), (Code::PodBypassing, "cart")];
    assert_eq!(codes(&cluster), expected.map(|(code, name)| (code, name.to_owned())));
    assert_eq!(check(&cluster).counts.pods, 2);
}
