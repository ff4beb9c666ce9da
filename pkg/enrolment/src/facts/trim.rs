//! Retained parts of pods and namespaces, and their limits: authors of pods control labels, annotations and containers, and must
//! not control the memory and time that the node's agent spends on them.

use std::collections::BTreeMap;

use model::{
    CONFIG_HASH, CONFIG_MIRROR, Container, ContainerStatus, EnvVar, Namespace, Pod, PodStatus, parse_go_bool,
};

use crate::{
    ambient::{AMBIENT_REDIRECTION, DATAPLANE_MODE},
    annotations,
    decision::{INIT, INJECT, PROXY, STATUS},
    exceptions::ExceptionKind,
    inpod::{BYPASS_INBOUND, DNS_CAPTURE, EXISTING_CONNECTIONS, VIRTUAL_INTERFACES},
    lists::MAX_INTERFACES_BYTES,
};

/// Maximum length of a single word in bytes: longer than any significant one, and than the part shown of any other.
const WORD: usize = 1024;

/// Annotations that decisions depend on, and the maximum number of significant bytes of each. [`annotations::LISTS`] has those of
/// sidecars that are lists.
const ANNOTATIONS: [(&str, usize); 9] = [
    (CONFIG_HASH, WORD),
    (CONFIG_MIRROR, WORD),
    (INJECT, WORD),
    (AMBIENT_REDIRECTION, WORD),
    (DNS_CAPTURE, WORD),
    (EXISTING_CONNECTIONS, WORD),
    (BYPASS_INBOUND, WORD),
    (VIRTUAL_INTERFACES, MAX_INTERFACES_BYTES),
    (annotations::MODE, WORD),
];

/// Labels that are always retained. The last one is ztunnel's, unless the operator chose another.
const LABELS: [&str; 3] = [DATAPLANE_MODE, INJECT, "app"];
/// Limits of further labels, for the operator's selectors: their number, the first by key, and their total size in bytes.
const MAX_LABELS: usize = 64;
const MAX_LABEL_BYTES: usize = 8 * 1024;
/// Maximum size of a label's value in bytes; the API allows 63.
const MAX_LABEL_VALUE: usize = 63;

/// Maximum number of containers of each kind, in addition to the sidecar.
const MAX_CONTAINERS: usize = 64;
/// Variables of the sidecar that decisions depend on.
const VARIABLES: [&str; 7] = [
    "DISABLE_ENVOY",
    "ISTIO_META_DNS_CAPTURE",
    annotations::DUAL_STACK,
    annotations::OLD_DUAL_STACK,
    "INVALID_DROP",
    "INPOD_ENABLED",
    annotations::LOOPBACK,
];
/// Maximum size of a variable's value in a container that is no sidecar, in bytes: more than any boolean has.
const MAX_BOOLEAN: usize = 8;

/// Removes parts that no decision depends on, and limits the rest: known annotations, of the labels those of the mesh and 64 more
/// with 8 KiB in all, 64 containers of each kind and the most privileged one, a few variables of each. A value longer than any
/// significant one is truncated to a length that is still too long. So decisions of this crate are equal for a trimmed pod, except
/// by labels and containers beyond these limits. Most of a pod's size is removed, and changes of the removed parts are ignored.
pub fn trim_pod(pod: &mut Pod) {
    let metadata = &mut pod.metadata;
    metadata.resource_version = String::new();
    metadata.generation = 0;
    metadata.owners = Vec::new();
    trim_annotations(&mut metadata.annotations, annotation_limit);
    trim_labels(&mut metadata.labels);
    let spec = &mut pod.spec;
    for containers in [&mut spec.containers, &mut spec.init_containers, &mut spec.ephemeral_containers] {
        trim_containers(containers);
        containers.iter_mut().for_each(trim_container);
        containers.shrink_to_fit();
    }
    let status = &mut pod.status;
    status.conditions.retain(|condition| condition.kind == "Ready");
    status.conditions.shrink_to_fit();
    status.start_time = None;
    for statuses in [&mut status.container_statuses, &mut status.init_container_statuses] {
        let ready = statuses.iter().map(|status| status.ready);
        *statuses = ready.map(|ready| ContainerStatus { ready, ..ContainerStatus::default() }).collect();
    }
    status.pod_ips.shrink_to_fit();
}

/// Removes the parts of a trimmed pod that its redirection to a sidecar does not depend on.
pub fn trim_to_sidecar(pod: &mut Pod) {
    let Pod { metadata, spec, status } = pod;
    metadata.labels.retain(|key, _| key == INJECT);
    metadata.annotations.retain(|key, _| {
        let single = [STATUS, INJECT, annotations::MODE, VIRTUAL_INTERFACES];
        single.contains(&key.as_str()) || annotations::LISTS.iter().any(|(list, _)| list == key)
    });
    metadata.created = String::new();
    for containers in [&mut spec.containers, &mut spec.init_containers, &mut spec.ephemeral_containers] {
        containers.retain(|container| container.name == PROXY || container.name == INIT);
    }
    (spec.node_name, spec.service_account_name) = (String::new(), String::new());
    *status = PodStatus::default();
}

/// Trims a namespace like [`trim_pod`]; its labels and the exceptions that it requests are retained.
pub fn trim_namespace(namespace: &mut Namespace) {
    trim_annotations(&mut namespace.metadata.annotations, exception_limit);
    namespace.metadata.resource_version = String::new();
    namespace.metadata.owners = Vec::new();
    trim_labels(&mut namespace.metadata.labels);
}

/// Returns the maximum number of significant bytes of an annotation; `None`: no decision depends on it.
fn annotation_limit(annotation: &str) -> Option<usize> {
    if annotation == STATUS {
        return Some(0); // only its presence is significant
    }
    let all = ANNOTATIONS.iter().chain(&annotations::LISTS);
    let known = all.copied().find_map(|(key, limit)| (key == annotation).then_some(limit));
    known.or_else(|| exception_limit(annotation))
}

fn exception_limit(annotation: &str) -> Option<usize> {
    let kind = ExceptionKind::ALL.into_iter().find(|kind| kind.annotation() == annotation)?;
    Some(kind.max_length())
}

fn trim_annotations(annotations: &mut BTreeMap<String, String>, limit_of: impl Fn(&str) -> Option<usize>) {
    annotations.retain(|key, value| limit_of(key).inspect(|limit| truncate_text(value, *limit)).is_some());
}

fn trim_labels(labels: &mut BTreeMap<String, String>) {
    let (mut number, mut bytes) = (0, 0);
    labels.retain(|key, value| {
        truncate_text(value, MAX_LABEL_VALUE);
        if LABELS.contains(&key.as_str()) {
            return true;
        }
        number += 1;
        bytes += key.len() + value.len();
        number <= MAX_LABELS && bytes <= MAX_LABEL_BYTES
    });
}

/// Limits the containers, so that a privileged one cannot be hidden behind many others.
fn trim_containers(containers: &mut Vec<Container>) {
    let privilege = |container: &Container| container.security_context.network_privilege();
    let strongest = containers.iter().map(privilege).max();
    let mut is_strongest_kept = false;
    let mut others = 0;
    containers.retain(|container| {
        let is_known = container.name == PROXY || container.name == INIT;
        others += usize::from(!is_known);
        let is_first_strongest = !is_strongest_kept && Some(privilege(container)) == strongest;
        let is_kept = is_known || others <= MAX_CONTAINERS || is_first_strongest;
        is_strongest_kept |= is_kept && Some(privilege(container)) == strongest;
        is_kept
    });
}

fn trim_container(container: &mut Container) {
    let is_proxy = container.name == PROXY;
    container.args.truncate(if is_proxy { 2 } else { 0 });
    container.args.iter_mut().for_each(|argument| truncate_text(argument, WORD));
    container.args.shrink_to_fit();
    container.env =
        VARIABLES.into_iter().flat_map(|name| retained_variables(&container.env, name, is_proxy)).collect();
}

/// Returns the retained variables: of a sidecar the last of each name is used; of a ztunnel the first, or any that is true.
fn retained_variables(env: &[EnvVar], name: &str, is_proxy: bool) -> Vec<EnvVar> {
    let mut named = env.iter().filter(|var| var.name == name);
    let is_true = |var: &&EnvVar| var.value.as_deref().and_then(parse_go_bool) == Some(true);
    let first = named.clone().next();
    let one_true = named.clone().find(is_true);
    let last = named.next_back().filter(|_| is_proxy);
    let mut kept: Vec<EnvVar> = Vec::new();
    for var in [first, one_true, last].into_iter().flatten() {
        let mut var = var.clone();
        if let Some(value) = &mut var.value {
            truncate_text(value, if is_proxy { WORD } else { MAX_BOOLEAN });
        }
        if kept.last() != Some(&var) {
            kept.push(var);
        }
    }
    kept
}

/// Truncates a text longer than `limit` bytes to slightly more than that. A limit of 0 removes it.
fn truncate_text(text: &mut String, limit: usize) {
    if text.len() > limit {
        text.truncate(if limit == 0 { 0 } else { text.ceil_char_boundary(limit + 1) });
        text.shrink_to_fit();
    }
}
