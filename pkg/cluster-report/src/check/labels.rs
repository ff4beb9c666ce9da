//! Contradictory labels.

use model::Namespace;

use super::lookup::Lookup;
use crate::{
    cluster::DATAPLANE_MODE,
    finding::{Code, Finding, ObjectName},
    objects::Pod,
};

pub(crate) fn findings(lookup: &Lookup<'_>) -> Vec<Finding> {
    let namespaces = lookup.cluster.namespaces.iter().filter_map(namespace_finding);
    let pods = lookup.cluster.pods.iter().filter(|pod| pod.is_live());
    namespaces.chain(pods.filter_map(pod_finding)).collect()
}

fn namespace_finding(namespace: &Namespace) -> Option<Finding> {
    let meta = &namespace.metadata;
    let injection = match (meta.label("istio-injection"), meta.label("istio.io/rev")) {
        (Some("enabled"), _) => "istio-injection=enabled".to_owned(),
        (None, Some(revision)) if !revision.is_empty() => format!("istio.io/rev={revision}"),
        _ => return None,
    };
    let message =
        format!("it is labelled {injection}, for sidecars, and {DATAPLANE_MODE}=ambient, for ambient mode");
    let object = ObjectName::in_namespace("Namespace", "", &meta.name);
    (meta.label(DATAPLANE_MODE) == Some("ambient"))
        .then(|| Finding::new(Code::NamespaceLabels, object, message))
}

fn pod_finding(pod: &Pod) -> Option<Finding> {
    if pod.metadata.label(DATAPLANE_MODE) != Some("ambient") {
        return None;
    }
    let why = if pod.has_sidecar() {
        "it has a sidecar, which counts"
    } else if pod.metadata.label("sidecar.istio.io/inject") == Some("true") {
        "it is labelled sidecar.istio.io/inject=true too"
    } else {
        return None;
    };
    let object = ObjectName::in_namespace("Pod", &pod.metadata.namespace, &pod.metadata.name);
    let message = format!("it is labelled {DATAPLANE_MODE}=ambient, and {why}");
    Some(Finding::new(Code::PodLabels, object, message).on_node(&pod.spec.node_name))
}
