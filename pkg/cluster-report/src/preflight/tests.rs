use serde_json::{Value, json};

use super::*;
use crate::{UnreadObjects, preflight_text, render_junit, render_sarif};

fn node(name: &str, kernel: &str, runtime: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"kubernetes.io/os": "linux"}},
        "status": {"nodeInfo": {"kernelVersion": kernel, "containerRuntimeVersion": runtime}}})
}

fn cluster(nodes: Value) -> Cluster {
    Cluster { nodes: serde_json::from_value(nodes).unwrap(), ..Cluster::default() }
}

fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn ztunnel() -> Value {
    json!({"metadata": {"namespace": "istio-system", "name": "ztunnel"}})
}

/// Codes of the findings beside this ztunnel.
fn codes(objects: NetworkObjects) -> Vec<&'static str> {
    let mut objects = objects;
    objects.daemon_sets.push(from(ztunnel()));
    let report = check_before_installation(&Cluster::default(), &objects, None);
    report.findings.iter().map(|finding| finding.code.as_str()).collect()
}

fn cilium(data: Value) -> NetworkObjects {
    NetworkObjects { cilium: Some(from(json!({"data": data}))), ..NetworkObjects::default() }
}

#[test]
fn options_of_cilium_are_found() {
    let fine = json!({"cni-exclusive": "false", "kube-proxy-replacement": "true", "bpf-lb-sock-hostns-only": "true",
        "enable-bpf-masquerade": "true", "enable-host-legacy-routing": "true", "enable-ztunnel": "false"});
    assert_eq!(codes(cilium(fine.clone())), [""; 0]);
    let with = |key: &str, value: &str| {
        let mut data = fine.clone();
        data[key] = json!(value);
        codes(cilium(data))
    };
    assert_eq!(with("cni-exclusive", "true"), ["cilium-exclusive"]);
    assert_eq!(with("bpf-lb-sock-hostns-only", "false"), ["cilium-socket-lb"]);
    assert_eq!(with("enable-host-legacy-routing", "false"), ["cilium-host-routing"]);
    assert_eq!(with("enable-ztunnel", "true"), ["cilium-ztunnel"]);
    // For missing settings, Cilium's own defaults apply; without its kube-proxy replacement, it resolves no services.
    assert_eq!(codes(cilium(json!({}))), ["cilium-exclusive"]);
    assert_eq!(codes(cilium(json!({"cni-exclusive": "false", "bpf-lb-sock": "true"}))), ["cilium-socket-lb"]);
}

#[test]
fn options_of_other_networks_are_found() {
    let felix = |spec: Value| NetworkObjects {
        felix: Some(from(json!({"spec": spec}))),
        ..NetworkObjects::default()
    };
    assert_eq!(codes(felix(json!({"bpfEnabled": true}))), ["calico-connect-time"]);
    assert_eq!(
        codes(felix(json!({"bpfEnabled": true, "bpfConnectTimeLoadBalancing": "TCP"}))),
        ["calico-connect-time"]
    );
    for spec in [json!({}), json!({"bpfEnabled": true, "bpfConnectTimeLoadBalancing": "Disabled"})] {
        assert_eq!(codes(felix(spec)), [""; 0]);
    }
    let ovn = |config: Value| {
        let network = json!({"type": "OVNKubernetes", "ovnKubernetesConfig": config});
        let object = json!({"spec": {"defaultNetwork": network}});
        codes(NetworkObjects { openshift: Some(from(object)), ..NetworkObjects::default() })
    };
    assert_eq!(ovn(json!({})), ["ovn-gateway-mode"]);
    // Findings about probes of ambient pods do not fail an installation for sidecars.
    for code in [Code::CiliumHostRouting, Code::AwsStrictGroups, Code::OvnGatewayMode, Code::NoZtunnel] {
        assert_eq!(code.severity(), Severity::Warning, "{}", code.as_str());
    }
    assert_eq!(ovn(json!({"gatewayConfig": {"routingViaHost": true}})), [""; 0]);
    // Outside OpenShift, each node has the mode.
    let on_nodes = |gateways: &[&str]| {
        let nodes = gateways.iter().enumerate().map(|(at, gateway)| {
            let mut node = node(&format!("n{at}"), "6.1.0", "containerd://2.1.4");
            node["metadata"]["annotations"] = json!({"k8s.ovn.org/l3-gateway-config": gateway});
            node
        });
        let cluster = cluster(Value::Array(nodes.collect()));
        let findings = check_before_installation(&cluster, &NetworkObjects::default(), None).findings;
        let found = findings.into_iter().find(|finding| finding.code == Code::OvnGatewayMode);
        found.map(|finding| format!("{} {}", finding.object.name, finding.message))
    };
    let (shared, local) =
        (r#"{"default":{"mode":"shared","vlan-id":"0"}}"#, r#"{"default":{"mode":"local"}}"#);
    assert_eq!(on_nodes(&[local, "{", ""]), None);
    assert_eq!(on_nodes(&[local, shared]).unwrap(), "n1 its gateway mode is shared");
    let three = on_nodes(&[shared, local, shared, shared]).unwrap();
    assert_eq!(three, "n0 its gateway mode is shared, as that of 2 other nodes");
    let aws = |env: &[(&str, &str)], before: &[(&str, &str)]| {
        let variables = |env: &[(&str, &str)]| -> Vec<Value> {
            env.iter().map(|(name, value)| json!({"name": name, "value": value})).collect()
        };
        let spec = json!({"containers": [{"image": "a", "env": variables(env)}], "initContainers": [{"env": variables(before)}]});
        let object = json!({"metadata": {"namespace": "kube-system", "name": "aws-node"}, "spec": {"template": {"spec": spec}}});
        codes(NetworkObjects { daemon_sets: vec![from(object)], ..NetworkObjects::default() })
    };
    let groups = ("ENABLE_POD_ENI", "true");
    assert_eq!(aws(&[groups], &[]), ["aws-strict-groups"]);
    assert_eq!(aws(&[groups, ("POD_SECURITY_GROUP_ENFORCING_MODE", "standard")], &[]), [""; 0]);
    assert_eq!(aws(&[groups], &[("DISABLE_TCP_EARLY_DEMUX", "true")]), [""; 0]);
    assert_eq!(aws(&[], &[]), [""; 0]);
}

#[test]
fn nodes_and_agents_are_found() {
    let nodes = json!([
        node("fine", "6.1.0-18-amd64", "containerd://2.1.4"),
        node("oldest", "4.18.0", "cri-o://1.34.0"),
        node("old", "4.17.0-26-amd64", "containerd://1.6.20"),
        node("other", "5.15.0", "docker://24.0.7"),
        node("silent", "", ""),
    ]);
    let agent = json!({"metadata": {"namespace": "istio-system", "name": "istio-cni-node"},
        "spec": {"template": {"spec": {"containers": [{"image": "docker.io/istio/install-cni:1.29.1"}]}}}});
    let objects = NetworkObjects { daemon_sets: vec![from(agent)], ..NetworkObjects::default() };
    let report = check_before_installation(&cluster(nodes), &objects, None);
    let found: Vec<(&str, &str)> =
        report.findings.iter().map(|finding| (finding.code.as_str(), finding.object.name.as_str())).collect();
    assert_eq!(
        found,
        [
            ("kernel-old", "old"),
            ("runtime-untested", "other"),
            ("agent-installed", "istio-cni-node"),
            ("no-ztunnel", "")
        ]
    );
    assert_eq!((report.nodes, report.verdict), (Some(5), Verdict::Healthy));
    assert_eq!([Severity::Unknown, Severity::Warning].map(|least| report.status(least)), [0, 1]);
    let text = preflight_text(&report, false, false);
    for part in [
        "‼ no agent is installed yet\n    DaemonSet istio-system/istio-cni-node: it runs the image docker.io/istio/install-cni:1.29.1\n",
        "networks\n--------\n√ Cilium leaves other plugins in its chain\n",
        "5 nodes would run an agent\nStatus check results are √ healthy\n",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    assert!(!text.lines().any(|line| line == "agents"), "{text}");
}

/// Findings about NetworkPolicies if one in the pod's namespace opens port 80 only.
fn policy_findings(pod: Value) -> Vec<Finding> {
    let spec = json!({"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"ports": [{"port": 80}]}]});
    let policy =
        json!({"metadata": {"namespace": pod["metadata"]["namespace"], "name": "web-only"}, "spec": spec});
    let cluster = Cluster { pods: vec![from(pod)], policies: vec![from(policy)], ..Cluster::default() };
    let report = check_before_installation(&cluster, &NetworkObjects::default(), None);
    report.findings.into_iter().filter(|finding| finding.object.name == "web-only").collect()
}

fn pod() -> Value {
    json!({"metadata": {"namespace": "shop", "name": "web"}, "status": {"phase": "Running"},
        "spec": {"nodeName": "n1", "containers": [{"name": "app"}]}})
}

#[test]
fn a_policy_is_a_warning_as_long_as_nothing_is_labelled() {
    let found = policy_findings(pod());
    let found: Vec<_> = found.iter().map(|finding| (finding.code, finding.severity)).collect();
    assert_eq!(found, [(Code::PolicyBlocksHbone, Severity::Warning)]);
    let mut probed = pod();
    probed["spec"]["containers"][0]["livenessProbe"] = json!({"tcpSocket": {"port": 8080}});
    let found = policy_findings(probed);
    let codes: Vec<_> = found.iter().map(|finding| finding.code).collect();
    assert_eq!(codes, [Code::PolicyBlocksHbone, Code::PolicyBlocksProbes]);
    assert!(
        found[1].message.contains("at 1 pod that a label would bring into the mesh: shop/web"),
        "{found:?}"
    );
}

#[test]
fn a_policy_of_pods_that_no_label_brings_in_is_no_finding() {
    for change in [
        json!({"metadata": {"namespace": "kube-system"}}),
        json!({"metadata": {"labels": {"istio.io/dataplane-mode": "none"}}}),
        json!({"metadata": {"annotations": {"sidecar.istio.io/status": "{}"}}, "spec": {"initContainers": [{"name": "istio-proxy"}]}}),
        json!({"spec": {"hostNetwork": true}}),
        json!({"status": {"phase": "Succeeded"}}),
    ] {
        let mut pod = pod();
        for (part, fields) in change.as_object().unwrap() {
            for (field, value) in fields.as_object().unwrap() {
                pod[part][field] = value.clone();
            }
        }
        assert_eq!(policy_findings(pod), [], "{change}");
    }
}

#[test]
fn a_port_of_ztunnel_that_a_container_declares_is_a_warning() {
    let found = |change: &dyn Fn(&mut Value)| {
        let mut pod = pod();
        pod["spec"]["initContainers"] = json!([{"name": "proxy", "ports": [{"containerPort": 15006}]}]);
        change(&mut pod);
        let cluster = Cluster { pods: vec![from(pod)], ..Cluster::default() };
        let report = check_before_installation(&cluster, &NetworkObjects::default(), None);
        let found = report.findings.into_iter().find(|finding| finding.code == Code::ZtunnelPortTaken);
        found.map(|finding| (finding.object.name, finding.severity))
    };
    assert_eq!(found(&|_| {}), Some(("web".to_owned(), Severity::Warning)));
    assert_eq!(found(&|pod| pod["spec"]["hostNetwork"] = json!(true)), None);
}

#[test]
fn checks_that_pods_made_on_nodes_are_findings() {
    let nodes = json!(["n1", "n2", "n3", "n4"].map(|name| node(name, "6.1.0", "containerd://2.1.4")));
    let passed = json!({"code": "clock", "severity": null});
    let failed = json!({"code": "tproxy", "severity": "warning", "message": "no TPROXY", "consequence": "Pods fail.", "advice": "Load it.",
            "link": "docs/preflight.md#tproxy"});
    let error = json!({"code": "pod-rules", "severity": "error", "message": "no nf_tables", "consequence": "All fail.", "advice": "Load that.",
            "link": "docs/preflight.md#pod-rules"});
    let pulls = "its pod did not end within 180s: Pending, ImagePullBackOff";
    let of_pods = NodeChecks::from([
        ("n1".to_owned(), Ok(from(json!([passed.clone()])))),
        ("n2".to_owned(), Ok(from(json!([passed, failed, error])))),
        ("n3".to_owned(), Err(pulls.to_owned())),
    ]);
    let report =
        check_before_installation(&cluster(nodes.clone()), &NetworkObjects::default(), Some(&of_pods));
    let of_nodes = report.findings.iter().filter(|finding| finding.code == Code::NodePreflight);
    let found: Vec<_> = of_nodes
        .map(|finding| (finding.object.name.as_str(), finding.severity, finding.message.as_str()))
        .collect();
    assert_eq!(
        found,
        [
            ("n2", Severity::Warning, "no TPROXY (tproxy). Pods fail."),
            ("n2", Severity::Error, "no nf_tables (pod-rules). All fail."),
            ("n3", Severity::Unknown, pulls),
        ]
    );
    assert_eq!((report.nodes, report.checked, report.verdict), (Some(4), 2, Verdict::Unhealthy));
    let title = |report: &PreflightReport| {
        report.checks.iter().find(|line| line.code == Code::NodePreflight).unwrap().title
    };
    assert_eq!(title(&report), SAMPLED, "nobody has looked at n4");
    let whole = [of_pods.clone(), NodeChecks::from([("n4".to_owned(), Ok(Vec::new()))])];
    let whole: NodeChecks = whole.into_iter().flatten().collect();
    let report = check_before_installation(&cluster(nodes.clone()), &NetworkObjects::default(), Some(&whole));
    assert_eq!(title(&report), Code::NodePreflight.check());
    let report =
        check_before_installation(&cluster(nodes.clone()), &NetworkObjects::default(), Some(&of_pods));
    // Every format has the advice of each node's own check, its page, and its code, by which results can be filtered.
    let text = preflight_text(&report, false, false);
    for part in [
        "\n    Load it.\n    see docs/preflight.md#tproxy for hints\n    Load that.\n    see docs/preflight.md#pod-rules for hints\n    Remove the",
        "after the installation.\n    see docs/millrace.md#node-preflight for hints\n",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    let junit = render_junit("s", &report.checks, &report.findings, Severity::Warning);
    let cases: Vec<&str> = junit.lines().filter(|line| line.contains("type=\"node-preflight")).collect();
    assert_eq!(cases.len(), 3, "{junit}");
    assert!(cases[0].contains("<error type=\"node-preflight\" message=\"node n3: its pod"), "{junit}");
    assert!(
        cases[2].contains("<failure type=\"node-preflight/tproxy\" message=\"node n2: no TPROXY (tproxy). Pods fail. Load it. See docs/preflight.md#tproxy.\"/>"),
        "{junit}"
    );
    let sarif: Value =
        from(serde_json::from_str(&render_sarif("s", &report.checks, &report.findings)).unwrap());
    let results = sarif["runs"][0]["results"].as_array().unwrap().iter();
    let result = results.clone().find(|result| result["ruleId"] == "node-preflight/tproxy").unwrap();
    assert_eq!(
        result["message"]["text"],
        "no TPROXY (tproxy). Pods fail. Load it. See docs/preflight.md#tproxy."
    );
    assert_eq!(
        sarif["runs"][0]["tool"]["driver"]["rules"][result["ruleIndex"].as_u64().unwrap() as usize]["id"],
        "node-preflight"
    );
    let without = check_before_installation(&cluster(nodes), &NetworkObjects::default(), None);
    assert!(without.checks.iter().all(|line| line.code != Code::NodePreflight));
}

/// The pods of a DaemonSet tolerate the taint of a cordoned node.
#[test]
fn an_agent_would_run_on_a_cordoned_node_too_and_not_on_windows() {
    let mut nodes = json!(["n1", "n2", "n3"].map(|name| node(name, "6.1.0", "containerd://2.1.4")));
    nodes[1]["spec"] = json!({"unschedulable": true});
    nodes[2]["metadata"]["labels"] = json!({"kubernetes.io/os": "windows"});
    let cluster = cluster(nodes);
    let names = installation_nodes(&cluster).into_iter().map(|node| node.metadata.name.as_str());
    assert_eq!(names.collect::<Vec<_>>(), ["n1", "n2"]);
}

#[test]
fn nodes_that_cannot_be_listed_have_passed_no_check() {
    let unread = UnreadObjects { what: "nodes".to_owned(), why: "forbidden".to_owned() };
    let cluster = Cluster { unread: vec![unread], ..Cluster::default() };
    let report =
        check_before_installation(&cluster, &NetworkObjects::default(), Some(&NodeChecks::default()));
    let line = report.checks.iter().find(|line| line.code == Code::NodePreflight).unwrap();
    assert_eq!(line.severity, Some(Severity::Unknown));
}

#[test]
fn what_cannot_be_read_is_unknown() {
    let unread = UnreadObjects { what: "ConfigMap cilium-config".to_owned(), why: "forbidden".to_owned() };
    let report = check_before_installation(
        &Cluster { unread: vec![unread], ..Cluster::default() },
        &NetworkObjects::default(),
        None,
    );
    let unknown = |code: Code| report.checks.iter().find(|line| line.code == code).unwrap().severity;
    assert_eq!(unknown(Code::CiliumExclusive), Some(Severity::Unknown));
    assert_eq!(unknown(Code::CalicoConnectTime), None);
    assert_eq!((report.verdict, report.status(Severity::Error)), (Verdict::Unknown, 0));
    assert_eq!(report.status(Severity::Unknown), 2);
    let unread = UnreadObjects { what: "daemonsets".to_owned(), why: "forbidden".to_owned() };
    let cluster = Cluster { unread: vec![unread], ..Cluster::default() };
    let found = check_before_installation(&cluster, &NetworkObjects::default(), None).findings;
    assert!(found.iter().all(|finding| finding.code != Code::NoZtunnel), "nobody knows: {found:?}");
}
