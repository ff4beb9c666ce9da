use report::SettingsChange;
use serde_json::{Value, json};

use super::*;
use crate::simulation_text;

const AMBIENT: &str = "istio.io/dataplane-mode=ambient";

fn pod(name: &str, node: &str) -> Pod {
    let object = json!({"metadata": {"namespace": "shop", "name": name, "labels": {"app": name}},
        "spec": {"nodeName": node, "containers": [{"name": "app", "ports": [{"containerPort": 80}]}]},
        "status": {"phase": "Running"}});
    serde_json::from_value(object).unwrap()
}

fn cluster(policies: &Value) -> Cluster {
    let namespace = |name: &str| serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
    Cluster {
        pods: vec![pod("web", "n1"), pod("db", "n1"), pod("lost", "n2"), pod("alone", "n3")],
        namespaces: vec![namespace("shop"), namespace("other")],
        policies: serde_json::from_value(policies.clone()).unwrap(),
        ..Cluster::default()
    }
}

fn simulated(name: &str, after: Option<RedirectionMode>, connections: Option<usize>) -> SimulatedPod {
    let reason = StateReason { code: "code".to_owned(), message: format!("why {name}") };
    let (namespace, name) = ("shop".to_owned(), name.to_owned());
    SimulatedPod { namespace, name, after, reason, connections, ..SimulatedPod::default() }
}

fn from_json<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn replies(ztunnel_ready: bool) -> BTreeMap<String, NodeReply> {
    let pods = vec![simulated("db", None, None), simulated("web", Some(RedirectionMode::InPod), Some(3))];
    let mode = Some(RedirectionMode::InPod);
    let answer = NodeSimulation { mode, synced: true, ztunnel_ready, pods, ..NodeSimulation::default() };
    let silent = || Err("no answer within 5s".to_owned());
    BTreeMap::from([("n1".to_owned(), Ok(answer)), ("n2".to_owned(), silent())])
}

fn change() -> SimulatedChange {
    SimulatedChange::Labels(LabelChange::parse("shop", None, [AMBIENT]).unwrap())
}

fn codes(report: &SimulationReport) -> Vec<&'static str> {
    report.findings.iter().map(|finding| finding.code.as_str()).collect()
}

#[test]
fn pods_of_silent_nodes_and_of_nodes_without_an_agent_are_unknown() {
    let report = simulate_change(&cluster(&json!([])), &change(), &replies(true));
    let effects: Vec<(&str, MembershipEffect)> =
        report.pods.iter().map(|row| (row.pod.name.as_str(), row.effect)).collect();
    let (joins, unknown) = (MembershipEffect::Joins, MembershipEffect::Unknown);
    assert_eq!(
        effects,
        [("web", joins), ("alone", unknown), ("lost", unknown), ("db", MembershipEffect::Unchanged)]
    );
    assert_eq!(codes(&report), ["agent-silent", "mesh-without-agent"]);
    assert!(report.partial && [false, true].map(|reset| report.open_connections(reset)) == [3, 0]);
    // A node without an agent is more severe than an unknown one.
    assert_eq!([Severity::Warning, Severity::Error].map(|least| report.status(least)), [1, 1]);
    let text = simulation_text(&report, false, false);
    for part in [
        "namespace shop, with istio.io/dataplane-mode=ambient\n",
        "shop/web    n1    joins      outside  in-pod   3            why web",
        "Pods that would join ambient mode: 1; that would leave it: 0; that would stay as they are: 1; unknown: 2.",
        "shop/alone  n3    unknown    -        -        -            no agent runs on its node",
        "shop/db     n1    unchanged  outside  outside  -            why db",
        "3 open TCP connections of pods that would join go on outside of the mesh",
        "× node n3: it runs no agent, and 1 of its pods would belong to ambient mode",
        "? node n2: no answer within 5s",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

/// The pod's containers include no istio-proxy, so the agent of its node would capture it in no mode.
#[test]
fn an_injected_pod_without_a_proxy_does_not_count_as_ambient() {
    let mut cluster = cluster(&json!([]));
    let alone = cluster.pods.iter_mut().find(|pod| pod.metadata.name == "alone").unwrap();
    let _ = alone.metadata.annotations.insert("sidecar.istio.io/status".to_owned(), "{}".to_owned());
    let found = |cluster: &Cluster| codes(&simulate_change(cluster, &change(), &replies(true)));
    assert_eq!(found(&cluster), ["agent-silent"]);
    cluster.pods.iter_mut().for_each(|pod| pod.metadata.annotations.clear());
    assert_eq!(found(&cluster), ["agent-silent", "mesh-without-agent"]);
}

#[test]
fn connections_that_would_be_reset_and_others_are_counted_apart() {
    let mut replies = replies(true);
    let answer = replies.get_mut("n1").unwrap().as_mut().unwrap();
    let after = Some(RedirectionMode::InPod);
    answer.pods.push(SimulatedPod { resets_connections: true, ..simulated("api", after, Some(4)) });
    let text = simulation_text(&simulate_change(&cluster(&json!([])), &change(), &replies), false, false);
    for part in [
        "shop/api    n1    joins      outside  in-pod   4 (reset)    why api",
        "3 open TCP connections of pods that would join go on outside of the mesh until they close.\n",
        "4 open TCP connections of pods that would join are reset.\n",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

#[test]
fn probes_of_pods_that_would_join_are_counted_with_the_address_from_which_they_would_come() {
    let (mut cluster, mut replies) = (cluster(&json!([])), replies(true));
    let (network, exec) =
        (json!({"httpGet": {"port": 80}}), json!({"exec": {"command": ["true"]}, "periodSeconds": 3}));
    let containers = json!([
        {"name": "app", "livenessProbe": network, "readinessProbe": {"tcpSocket": {"port": 1}}, "startupProbe": exec},
        {"name": "other", "livenessProbe": null},
    ]);
    let native = json!([{"name": "native", "startupProbe": {"grpc": {"port": 2}}}]);
    for pod in &mut cluster.pods {
        pod.spec.containers = serde_json::from_value(containers.clone()).unwrap();
        pod.spec.init_containers = serde_json::from_value(native.clone()).unwrap();
        pod.status.pod_ip = "10.0.0.7".to_owned();
    }
    let answer = replies.get_mut("n1").unwrap().as_mut().unwrap();
    answer.probe_sources = ["fd00::7f", "169.254.7.127"].map(|ip| ip.parse().unwrap()).to_vec();
    let report = simulate_change(&cluster, &change(), &replies);
    let probes = |name: &str| report.pods.iter().find(|row| row.pod.name == name).unwrap().probes;
    assert_eq!(["web", "db", "lost"].map(probes), [3, 0, 0], "only web would join");
    let text = simulation_text(&report, false, false);
    let expected = "\n3 probes of 1 pod that would join will come from 169.254.7.127.\n\
        Probes of shop/web: app readiness 1, app liveness 80, native startup 2.\n";
    assert!(text.contains(expected), "{text}");
    let json = serde_json::to_value(&report.pods[0]).unwrap();
    assert_eq!(json["listedProbes"][1], json!({"container": "app", "kind": "liveness", "port": 80}));
    // With node-level capture probes keep their source.
    replies.get_mut("n1").unwrap().as_mut().unwrap().probe_sources.clear();
    let text = simulation_text(&simulate_change(&cluster, &change(), &replies), false, false);
    assert!(!text.contains("probes"), "{text}");
}

#[test]
fn an_exception_that_would_be_refused_is_found_and_one_that_would_apply_is_shown() {
    let mut replies = replies(true);
    for pod in &mut replies.get_mut("n1").unwrap().as_mut().unwrap().pods {
        pod.exceptions = vec!["outbound TCP ports 5432".to_owned()];
        pod.refused_exceptions = vec!["annotation a of the pod has no effect".to_owned()];
    }
    let report = simulate_change(&cluster(&json!([])), &change(), &replies);
    let refused = report.findings.iter().filter(|finding| finding.code == Code::ExceptionRefused);
    let found: Vec<_> = refused.map(|finding| (&*finding.object.name, &*finding.message)).collect();
    assert_eq!(found, [("web", "annotation a of the pod has no effect")], "db does not join");
    let text = simulation_text(&report, false, false);
    let row = "shop/web    n1    joins      outside  in-pod   3            why web; outside by intent: outbound TCP ports 5432";
    assert!(text.lines().any(|line| line == row), "{text}");
}

#[test]
fn a_pod_that_has_or_declares_a_port_of_ztunnel_is_found() {
    let mut cluster = cluster(&json!([]));
    for pod in &mut cluster.pods {
        let ports = json!([{"containerPort": 15008}, {"containerPort": 15001, "protocol": "UDP"}, {"containerPort": 80}]);
        pod.spec.containers = from_json(json!([{"name": "app", "ports": ports}]));
    }
    let mut replies = replies(true);
    let found =
        |cluster: &Cluster, replies: &BTreeMap<String, NodeReply>| -> Vec<(String, Severity, String)> {
            let findings = simulate_change(cluster, &change(), replies).findings.into_iter();
            let found = findings.filter(|finding| finding.code == Code::ZtunnelPortTaken);
            found.map(|finding| (finding.object.name, finding.severity, finding.message)).collect()
        };
    // The agent has inspected web. The others are on nodes without an answer.
    let hint = "it declares port 15008, which ztunnel would open in it: only one of both can listen there";
    let hint_at = |name: &str| (name.to_owned(), Severity::Warning, hint.to_owned());
    assert_eq!(found(&cluster, &replies), ["alone", "lost"].map(hint_at));
    let web = &mut replies.get_mut("n1").unwrap().as_mut().unwrap().pods[1];
    web.connections = None;
    assert_eq!(found(&cluster, &replies), ["alone", "lost", "web"].map(hint_at));
    let web = &mut replies.get_mut("n1").unwrap().as_mut().unwrap().pods[1];
    (web.connections, web.taken_ports) = (Some(0), vec![15001, 15053]);
    let why = "it has ports 15001, 15053, which ztunnel would open in it: ztunnel would refuse it, and its traffic would be held";
    let taken = ("web".to_owned(), Severity::Error, why.to_owned());
    assert_eq!(found(&cluster, &replies)[2], taken);
    cluster.pods.iter_mut().for_each(|pod| pod.spec.host_network = true);
    assert_eq!(found(&cluster, &replies), [taken], "what has no network namespace of its own joins nothing");
}

#[test]
fn a_policy_that_would_block_hbone_is_found_before_the_label_is_set() {
    let web_only = json!([{"metadata": {"namespace": "shop", "name": "web-only"},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"ports": [{"port": 80}]}]}}]);
    let report = simulate_change(&cluster(&web_only), &change(), &replies(true));
    let found = report.findings.iter().find(|finding| finding.code == Code::PolicyBlocksHbone).unwrap();
    assert_eq!(found.object.name, "web-only");
    // Pods without a change do not count.
    assert!(found.message.ends_with("at 1 pod that would join: shop/web"), "{}", found.message);
    // For probes, the source of the agent on the pod's node decides.
    let blocks_of = |allowed: &str, source: &str, for_node: &str| {
        let from = json!([{"ipBlock": {"cidr": allowed}}]);
        let mut cluster = cluster(&json!([{"metadata": {"namespace": "shop", "name": "web"},
            "spec": {"podSelector": {}, "ingress": [{"from": from}, {"ports": [{"port": 15008}]}]}}]));
        for pod in &mut cluster.pods {
            pod.spec.containers = serde_json::from_value(
                json!([{"name": "app", "livenessProbe": {"tcpSocket": {"port": 80}}}]),
            )
            .unwrap();
            pod.status.pod_ip = "10.0.0.7".to_owned();
        }
        let mut replies = replies(true);
        let [sources, for_node] =
            [source, for_node].map(|ips| ips.split_terminator(' ').map(|ip| ip.parse().unwrap()).collect());
        let answer = replies.get_mut("n1").unwrap().as_mut().unwrap();
        (answer.probe_sources, answer.node_probe_sources) = (sources, for_node);
        let found = simulate_change(&cluster, &change(), &replies).findings;
        let found = found.into_iter().find(|finding| finding.code == Code::PolicyBlocksProbes);
        found.map(|finding| finding.hint.rsplit_once(" from ").unwrap().1.to_owned())
    };
    let blocks = |allowed: &str, source: &str| blocks_of(allowed, source, "");
    let default = "169.254.7.127";
    assert_eq!(blocks("169.254.7.127/32", default), None);
    assert_eq!(blocks("169.254.7.127/32", "10.0.0.1").unwrap(), "10.0.0.1/32.");
    assert_eq!(
        blocks_of("169.254.7.127/32", "10.0.0.1", "10.0.0.1"),
        None,
        "the pod's own node is always let in"
    );
    assert_eq!(blocks("10.0.0.1/32", "fd00::1 10.0.0.1"), None);
    assert!(
        blocks("10.0.0.1/32", default).unwrap().starts_with("fd16:"),
        "with the defaults of both families"
    );
    assert_eq!(blocks("10.0.0.1/32", ""), None, "with node-level capture they keep their source");
}

#[test]
fn labels_that_would_contradict_each_other_and_a_missing_ztunnel_are_found() {
    let mut cluster = cluster(&json!([]));
    cluster.namespaces[0].metadata.labels.insert("istio-injection".to_owned(), "enabled".to_owned());
    let report = simulate_change(&cluster, &change(), &replies(false));
    let expected = ["namespace-labels", "agent-silent", "mesh-without-agent", "ztunnel-not-ready"];
    assert_eq!(codes(&report), expected);
    assert_eq!(cluster.namespaces[0].metadata.labels.len(), 1, "nothing is changed");
}

#[test]
fn where_nothing_would_be_wrong_the_exit_status_is_0() {
    let mut cluster = cluster(&json!([]));
    cluster.pods.truncate(2);
    let mut replies = replies(true);
    replies.remove("n2");
    let report = simulate_change(&cluster, &change(), &replies);
    assert_eq!((codes(&report), report.partial), (vec![], false));
    assert_eq!(report.status(Severity::Warning), 0);
    let one = SimulatedChange::Labels(LabelChange::parse("shop", Some("web"), [AMBIENT]).unwrap());
    cluster.pods.push(pod("lost", "n2"));
    assert_eq!(
        simulate_change(&cluster, &one, &replies).status(Severity::Unknown),
        0,
        "other pods do not count"
    );
}

#[test]
fn settings_that_are_wrong_or_not_simulated_are_found_once_for_all_nodes() {
    let change = SettingsChange::parse(["AMBIENT_DNS_CAPTURE=true"]).unwrap();
    let change = SimulatedChange::Settings(change);
    let mut replies = replies(true);
    let simulation = replies.get_mut("n1").unwrap().as_mut().unwrap();
    simulation.not_simulated = vec!["AMBIENT_TABLES".to_owned()];
    let other = NodeSimulation { mistakes: vec!["X: wrong".to_owned()], ..simulation.clone() };
    let pods = &mut simulation.pods;
    pods[1].before = Some(RedirectionMode::InPod);
    pods[1].changes = vec!["its DNS would be captured".to_owned()];
    pods[1].refused_exceptions = vec!["annotation a of the pod has no effect".to_owned()];
    let _ = replies.insert("n4".to_owned(), Ok(NodeSimulation { pods: Vec::new(), ..other }));
    let report = simulate_change(&cluster(&json!([])), &change, &replies);
    assert_eq!(
        codes(&report),
        ["agent-silent", "exception-refused", "settings-refused", "setting-not-simulated"]
    );
    assert_eq!(report.count_pods(MembershipEffect::Changes), 1);
    let names: Vec<&str> = report.pods.iter().map(|row| row.pod.name.as_str()).collect();
    assert_eq!(names, ["web", "alone", "lost", "db"], "pods of all nodes");
    let text = simulation_text(&report, false, false);
    for part in [
        "agents with other settings: AMBIENT_DNS_CAPTURE\n",
        "shop/web    n1    changes    in-pod   in-pod   3            why web; its DNS would be captured",
        "that would leave it: 0; that would be captured otherwise: 1; that would",
        "AMBIENT_TABLES (nodes: 2)",
        "X: wrong (nodes: 1)",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}
