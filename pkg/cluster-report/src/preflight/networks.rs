//! Options of primary networks.

use model::{Node, TemplateContainer};
use report::format_count;
use serde_json::Value;

use super::{NETWORKS, NetworkObjects};
use crate::finding::{Code, Finding, ObjectName};

const OVN_SECTION: &str = "ovn-kubernetes-and-openshift-sdn";
/// DaemonSet of the AWS VPC CNI.
const AWS: &str = "aws-node";

/// Annotation in which OVN-Kubernetes records the gateway of each node, as JSON.
const OVN_GATEWAY: &str = "k8s.ovn.org/l3-gateway-config";

pub(super) fn findings(objects: &NetworkObjects, nodes: &[&Node]) -> Vec<Finding> {
    let mut findings = cilium_findings(objects);
    findings.extend(calico_finding(objects));
    findings.extend(aws_finding(objects));
    findings.extend(openshift_finding(objects).or_else(|| ovn_finding(nodes)));
    findings
}

/// Returns a finding that links to the network's section.
fn network_finding(code: Code, object: ObjectName, message: &str, section: &str) -> Finding {
    Finding {
        link: report::link_docs(&format!("{NETWORKS}#{section}")),
        ..Finding::new(code, object, message)
    }
}

fn cilium_findings(objects: &NetworkObjects) -> Vec<Finding> {
    let Some(config) = &objects.cilium else { return Vec::new() };
    let value = |key: &str| config.get("data")?.get(key)?.as_str();
    let is_on = |key: &str| value(key) == Some("true");
    let replaces = matches!(value("kube-proxy-replacement"), Some("true" | "strict" | "partial"));
    let rows = [
        // Cilium's agent defaults to exclusive, too.
        (Code::CiliumExclusive, value("cni-exclusive") != Some("false"), "cni-exclusive is not false"),
        (
            Code::CiliumSocketLb,
            (replaces || is_on("bpf-lb-sock")) && !is_on("bpf-lb-sock-hostns-only"),
            "services are resolved in pods at connect(): bpf-lb-sock-hostns-only is not true",
        ),
        (
            Code::CiliumHostRouting,
            is_on("enable-bpf-masquerade") && !is_on("enable-host-legacy-routing"),
            "enable-bpf-masquerade is true, and enable-host-legacy-routing is not",
        ),
        (Code::CiliumZtunnel, is_on("enable-ztunnel"), "enable-ztunnel is true"),
    ];
    let namespace = config.pointer("/metadata/namespace").and_then(Value::as_str).unwrap_or("kube-system");
    let object = || ObjectName::in_namespace("ConfigMap", namespace, "cilium-config");
    let found = rows.into_iter().filter(|(_, holds, _)| *holds);
    found.map(|(code, _, message)| network_finding(code, object(), message, "cilium")).collect()
}

fn calico_finding(objects: &NetworkObjects) -> Option<Finding> {
    let spec = objects.felix.as_ref()?.get("spec")?;
    let balancing = spec.get("bpfConnectTimeLoadBalancing").and_then(Value::as_str);
    if spec.get("bpfEnabled") != Some(&Value::Bool(true)) || balancing == Some("Disabled") {
        return None;
    }
    let object = ObjectName::in_namespace("FelixConfiguration", "", "default");
    let message = "the data plane is eBPF, and bpfConnectTimeLoadBalancing is not Disabled";
    Some(network_finding(Code::CalicoConnectTime, object, message, "calico"))
}

fn aws_finding(objects: &NetworkObjects) -> Option<Finding> {
    let found = objects.daemon_sets.iter().find(|found| found.metadata.name == AWS)?;
    let spec = &found.spec.template.spec;
    let is = |containers: &[TemplateContainer], name: &str, value: &str| {
        let mut all = containers.iter().flat_map(|container| &container.env);
        all.any(|variable| variable.name == name && variable.value.as_deref() == Some(value))
    };
    let has_groups = is(&spec.containers, "ENABLE_POD_ENI", "true");
    let is_standard = is(&spec.containers, "POD_SECURITY_GROUP_ENFORCING_MODE", "standard");
    let has_probes = is(&spec.init_containers, "DISABLE_TCP_EARLY_DEMUX", "true");
    if !has_groups || is_standard || has_probes {
        return None;
    }
    let object = ObjectName::in_namespace("DaemonSet", &found.metadata.namespace, AWS);
    let message =
        "security groups for pods are enforced in mode strict, and DISABLE_TCP_EARLY_DEMUX is not true";
    Some(network_finding(Code::AwsStrictGroups, object, message, "aws-vpc-cni"))
}

fn openshift_finding(objects: &NetworkObjects) -> Option<Finding> {
    let network = objects.openshift.as_ref()?.pointer("/spec/defaultNetwork")?;
    let via_host = network.pointer("/ovnKubernetesConfig/gatewayConfig/routingViaHost");
    if network.get("type")? != "OVNKubernetes" || via_host == Some(&Value::Bool(true)) {
        return None;
    }
    let object = ObjectName::in_namespace("Network", "", "cluster");
    let message = "gatewayConfig.routingViaHost is not true";
    Some(network_finding(Code::OvnGatewayMode, object, message, OVN_SECTION))
}

/// Returns a finding about the gateway mode, which is cluster-wide; a change reaches nodes one after the other.
fn ovn_finding(nodes: &[&Node]) -> Option<Finding> {
    let is_shared = |node: &&&Node| {
        let gateway = node.metadata.annotations.get(OVN_GATEWAY);
        let gateway: Option<Value> = gateway.and_then(|text| serde_json::from_str(text).ok());
        gateway
            .is_some_and(|gateway| gateway.pointer("/default/mode").and_then(Value::as_str) == Some("shared"))
    };
    let names: Vec<&str> = nodes.iter().filter(is_shared).map(|node| &*node.metadata.name).collect();
    let message = match names.len().checked_sub(1)? {
        0 => "its gateway mode is shared".to_owned(),
        others => format!("its gateway mode is shared, as that of {}", format_count(others, "other node")),
    };
    Some(network_finding(Code::OvnGatewayMode, ObjectName::node(names.first()?), &message, OVN_SECTION))
}
