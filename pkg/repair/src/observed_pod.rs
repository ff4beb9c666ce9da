//! Pods as repair needs them from the API server.

use model::{ContainerStatus, ObjectMeta, Pod, PodName, PodStatus, PodUid};

/// An observed pod; small, because there is one for every pod of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedPod {
    /// Namespace and name.
    pub name: PodName,
    /// UID of the pod.
    pub uid: PodUid,
    /// Resource version of the pod, as the precondition of changes.
    pub version: String,
    /// Whether the pod is being deleted.
    pub is_terminating: bool,
    /// Whether the pod's phase is `Succeeded` or `Failed`: no container of it will start again.
    pub is_finished: bool,
    /// Whether a controller replaces the pod after its deletion.
    pub has_controller: bool,
    /// Keys of its labels.
    pub labels: Vec<String>,
    /// Keys of its annotations.
    pub annotations: Vec<String>,
    /// Init containers of the pod that have failed, or may have.
    pub init_containers: Vec<ContainerStatus>,
    /// The pod, reduced to what rules depend on, if it was injected and runs.
    pub running: Option<Box<Pod>>,
}

/// Maximum length of a message; the kubelet truncates at this length, too.
const MAX_MESSAGE: usize = 4096;

impl From<Pod> for ObservedPod {
    fn from(pod: Pod) -> ObservedPod {
        let name = pod.name();
        let Pod { metadata: mut meta, spec, status } = pod;
        let is_terminating = meta.deleted.is_some();
        let is_running = status.phase == "Running" && !is_terminating;
        let is_finished = status.has_ended();
        let labels: Vec<String> = meta.labels.keys().cloned().collect();
        let annotations: Vec<String> = meta.annotations.keys().cloned().collect();
        let is_injected = meta.annotations.contains_key(enrolment::STATUS);
        let running = (is_running && is_injected).then(|| {
            let metadata = ObjectMeta {
                name: name.name.clone(),
                namespace: name.namespace.clone(),
                uid: meta.uid.clone(),
                labels: meta.labels.remove_entry(enrolment::INJECT).into_iter().collect(),
                annotations: meta.annotations,
                ..ObjectMeta::default()
            };
            let status = PodStatus {
                phase: status.phase,
                pod_ip: status.pod_ip,
                pod_ips: status.pod_ips,
                ..PodStatus::default()
            };
            Box::new(Pod { metadata, spec, status })
        });
        let has_ended = |container: &ContainerStatus| {
            container.state.terminated.is_some() || container.last_state.terminated.is_some()
        };
        let mut init_containers = status.init_container_statuses;
        init_containers.retain(has_ended);
        init_containers.iter_mut().for_each(cut_messages);
        ObservedPod {
            name,
            uid: meta.uid,
            version: meta.resource_version,
            is_terminating,
            is_finished,
            has_controller: meta.owners.iter().any(|owner| owner.controller),
            labels,
            annotations,
            init_containers,
            running,
        }
    }
}

fn cut_messages(container: &mut ContainerStatus) {
    let states = [&mut container.state, &mut container.last_state];
    for ended in states.into_iter().filter_map(|state| state.terminated.as_mut()) {
        ended.message = ended.message.chars().take(MAX_MESSAGE).collect();
    }
}
