//! Selection of the ztunnel pod that is the node's proxy (Istio 1.20, except that a pod's own label does not suffice, and that a
//! terminating one is not selected).

use std::net::IpAddr;

use model::{Pod, PodName, PodUid};

use crate::facts::FactIndex;

/// Conditions for a ztunnel pod. All three must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZtunnelSelector {
    /// Label, key and value.
    pub label: (String, String),
    /// Namespaces of ztunnel pods.
    pub namespaces: Vec<String>,
    /// Service account of the pod. Creating pods of this account in these namespaces already implies control of the mesh.
    pub service_account: String,
}

impl Default for ZtunnelSelector {
    fn default() -> Self {
        Self {
            label: ("app".to_owned(), "ztunnel".to_owned()),
            namespaces: vec!["istio-system".to_owned()],
            service_account: "ztunnel".to_owned(),
        }
    }
}

impl ZtunnelSelector {
    /// Whether the pod is a ztunnel.
    pub fn matches(&self, pod: &Pod) -> bool {
        let (key, value) = &self.label;
        self.namespaces.contains(&pod.metadata.namespace)
            && pod.spec.service_account_name == self.service_account
            && pod.metadata.labels.get(key) == Some(value)
    }
}

/// A ztunnel pod of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZtunnelCandidate {
    /// UID of the pod.
    pub uid: PodUid,
    /// Namespace and name.
    pub name: PodName,
    /// All addresses of the pod.
    pub ips: Vec<IpAddr>,
    /// Creation time, `metadata.creationTimestamp`.
    pub created: String,
    /// Whether the pod runs, all of its containers are ready, and its condition `Ready`, if present, is `True`.
    pub ready: bool,
    /// Whether the pod is being deleted.
    pub terminating: bool,
    /// Whether the ztunnel answers DNS for pods of the mesh.
    pub dns_capture: bool,
    /// Whether the pod runs in the node's network namespace.
    pub host_network: bool,
}

/// Returns all known ztunnel pods that have not ended, by name: the API shows the address of an evicted one until its object is
/// deleted, when another pod may have the address.
pub fn list_candidates(index: &FactIndex, selector: &ZtunnelSelector) -> Vec<ZtunnelCandidate> {
    living_ztunnels(index, selector).map(to_candidate).collect()
}

fn living_ztunnels<'a>(index: &'a FactIndex, selector: &'a ZtunnelSelector) -> impl Iterator<Item = &'a Pod> {
    index.pods().filter(|pod| selector.matches(pod) && !pod.status.has_ended())
}

/// Whether the newest ztunnel pod that is not terminating connects to the agent, and therefore serves pods with in-pod capture;
/// `None` without a ztunnel. Every such ztunnel has the variable `INPOD_ENABLED` in Istio's chart, to this day; one without it is
/// recognised when it is ready, which those that connect to us become only then.
pub fn newest_supports_in_pod(index: &FactIndex, selector: &ZtunnelSelector) -> Option<bool> {
    let remaining = living_ztunnels(index, selector).filter(|pod| pod.metadata.deleted.is_none());
    let newest = remaining.max_by_key(|pod| (&pod.metadata.created, &pod.metadata.uid))?;
    let speaks = supports_in_pod(newest);
    (speaks || is_ready(newest)).then_some(speaks)
}

/// Whether a ready ztunnel serves the node from its own network namespace. Its successor may never start.
pub fn is_served_on_node(index: &FactIndex, selector: &ZtunnelSelector) -> bool {
    let mut remaining = living_ztunnels(index, selector).filter(|pod| pod.metadata.deleted.is_none());
    remaining.any(|pod| is_ready(pod) && !supports_in_pod(pod))
}

fn supports_in_pod(ztunnel: &Pod) -> bool {
    let mut env = ztunnel.spec.containers.iter().flat_map(|container| &container.env);
    let is_true = |value: &str| model::parse_go_bool(value) == Some(true);
    env.any(|var| var.name == "INPOD_ENABLED" && var.value.as_deref().is_some_and(is_true))
}

/// Returns the ztunnel that serves the node: ready, with an address, not terminating, and of those the newest; of two with the same
/// creation time always the same one.
pub fn active_candidate(candidates: &[ZtunnelCandidate]) -> Option<&ZtunnelCandidate> {
    let fit = |one: &&ZtunnelCandidate| one.ready && !one.terminating && !one.ips.is_empty();
    candidates.iter().filter(fit).max_by_key(|one| (&one.created, &one.uid))
}

/// Returns the presumable next ztunnel of the node: newer than the active one, and not ready yet.
pub fn next_candidate(candidates: &[ZtunnelCandidate]) -> Option<&ZtunnelCandidate> {
    let age = |one: &ZtunnelCandidate| (one.created.clone(), one.uid.clone());
    let now = active_candidate(candidates).map(age);
    let fit = |one: &&ZtunnelCandidate| !one.ready && !one.terminating && !one.ips.is_empty();
    let newer = |one: &&ZtunnelCandidate| now.as_ref().is_none_or(|now| *now < age(one));
    candidates.iter().filter(fit).filter(newer).max_by_key(|one| (&one.created, &one.uid))
}

fn to_candidate(pod: &Pod) -> ZtunnelCandidate {
    ZtunnelCandidate {
        uid: pod.metadata.uid.clone(),
        name: pod.name(),
        ips: pod.status.ips(),
        created: pod.metadata.created.clone(),
        ready: is_ready(pod),
        terminating: pod.metadata.deleted.is_some(),
        dns_capture: captures_dns(pod),
        host_network: pod.spec.host_network,
    }
}

fn is_ready(pod: &Pod) -> bool {
    let status = &pod.status;
    let mut containers = status.container_statuses.iter().chain(&status.init_container_statuses);
    let mut conditions = status.conditions.iter().filter(|condition| condition.kind == "Ready");
    status.phase == "Running"
        && containers.all(|container| container.ready)
        && conditions.all(|condition| condition.status == "True")
}

/// Whether DNS is captured: the first variable over all containers is used, and only if it is literally `true`, as upstream does.
fn captures_dns(pod: &Pod) -> bool {
    let mut env = pod.spec.containers.iter().flat_map(|container| &container.env);
    env.find(|var| var.name == "ISTIO_META_DNS_CAPTURE")
        .is_some_and(|var| var.value.as_deref() == Some("true"))
}
