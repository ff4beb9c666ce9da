//! Objects of the API, as far as findings need them: a tenth of what the API server sends.

pub(crate) use enrolment::{AMBIENT_REDIRECTION as REDIRECTION, STATUS as SIDECAR_STATUS};
use model::{Node, ObjectMeta, PodStatus, null_is_empty};
use serde::{Deserialize, Deserializer};

use crate::policy::PortName;

/// Annotations that are kept. Others are often large, and none is needed.
const ANNOTATIONS: [&str; 2] = [REDIRECTION, SIDECAR_STATUS];

/// A pod. Of all pods of a cluster, neither arguments nor variables of containers are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// Name, labels, and the annotations that findings need.
    #[serde(deserialize_with = "slim_metadata")]
    pub metadata: ObjectMeta,
    /// The desired state.
    pub spec: PodSpec,
    /// The observed state.
    pub status: PodStatus,
}

fn slim_metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let mut metadata = ObjectMeta::deserialize(deserializer)?;
    metadata.annotations.retain(|name, _| ANNOTATIONS.contains(&name.as_str()));
    metadata.owners = Vec::new();
    Ok(metadata)
}

/// The desired state of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodSpec {
    /// The name of the pod's node; empty if it has none yet.
    pub node_name: String,
    /// Whether the pod uses the node's network.
    pub host_network: bool,
    /// The account that the pod runs as.
    pub service_account_name: String,
    /// The pod's containers.
    #[serde(deserialize_with = "null_is_empty")]
    pub containers: Vec<Container>,
    /// Containers that start before, native sidecars among them.
    #[serde(deserialize_with = "null_is_empty")]
    pub init_containers: Vec<Container>,
}

/// A container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Container {
    /// The container's name.
    pub name: String,
    /// Ports that it names.
    #[serde(deserialize_with = "null_is_empty")]
    pub ports: Vec<ContainerPort>,
    /// Probe whether it has started; `None`: there is none.
    pub startup_probe: Option<Probe>,
    /// Probe whether it is ready; `None`: there is none.
    pub readiness_probe: Option<Probe>,
    /// Probe whether it still works; `None`: there is none.
    pub liveness_probe: Option<Probe>,
}

/// A probe of the kubelet, as far as it connects to the pod: one that runs a command has none of these.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Probe {
    /// By HTTP.
    pub http_get: Option<ProbeTarget>,
    /// By connecting alone.
    pub tcp_socket: Option<ProbeTarget>,
    /// By gRPC.
    pub grpc: Option<ProbeTarget>,
}

/// Where a probe connects to.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ProbeTarget {
    /// The port.
    pub port: PortName,
}

/// A port that a container names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ContainerPort {
    /// The port's name; empty if it has none.
    pub name: String,
    /// The port number.
    pub container_port: u16,
    /// `TCP`, `UDP` or `SCTP`; empty: TCP.
    pub protocol: String,
}

impl Pod {
    /// The pod's name, as findings show it.
    pub fn qualified_name(&self) -> String {
        format!("{}/{}", self.metadata.namespace, self.metadata.name)
    }

    /// Whether the pod is neither finished nor being deleted.
    pub fn is_live(&self) -> bool {
        !self.status.has_ended() && self.metadata.deleted.is_none()
    }

    /// Whether a sidecar has been injected into the pod.
    pub fn has_sidecar(&self) -> bool {
        self.metadata.annotations.contains_key(SIDECAR_STATUS) && self.has_container("istio-proxy")
    }

    /// Returns the pod as the agent's decision takes it, as far as it is kept here.
    pub(crate) fn to_decided(&self) -> model::Pod {
        let containers = self.containers().map(|container| model::Container {
            name: container.name.clone(),
            ..model::Container::default()
        });
        let spec = model::PodSpec {
            containers: containers.collect(),
            host_network: self.spec.host_network,
            node_name: self.spec.node_name.clone(),
            service_account_name: self.spec.service_account_name.clone(),
            ..model::PodSpec::default()
        };
        model::Pod { metadata: self.metadata.clone(), spec, status: self.status.clone() }
    }

    fn has_container(&self, name: &str) -> bool {
        self.containers().any(|container| container.name == name)
    }

    fn containers(&self) -> impl Iterator<Item = &Container> {
        self.spec.containers.iter().chain(&self.spec.init_containers)
    }

    /// Ports to which the kubelet's probes connect.
    pub(crate) fn probed_ports(&self) -> impl Iterator<Item = u16> {
        self.probe_targets().filter_map(|(container, _, target)| match &target.port {
            PortName::Number(number) => Some(*number),
            PortName::Name(name) => {
                container.ports.iter().find(|port| port.name == *name).map(|port| port.container_port)
            }
        })
    }

    /// TCP ports that containers declare.
    pub(crate) fn declared_ports(&self) -> impl Iterator<Item = u16> {
        let ports = self.containers().flat_map(|container| &container.ports);
        ports.filter(|port| ["", "TCP"].contains(&&*port.protocol)).map(|port| port.container_port)
    }

    /// Where probes connect to, and the container and the kind of each.
    pub(crate) fn probe_targets(&self) -> impl Iterator<Item = (&Container, &'static str, &ProbeTarget)> {
        self.containers().flat_map(|container| {
            let probes = [
                ("startup", &container.startup_probe),
                ("readiness", &container.readiness_probe),
                ("liveness", &container.liveness_probe),
            ];
            let targets = probes.into_iter().flat_map(|(kind, probe)| {
                let targets =
                    probe.iter().flat_map(|probe| [&probe.http_get, &probe.tcp_socket, &probe.grpc]);
                targets.flatten().map(move |target| (kind, target))
            });
            targets.map(move |(kind, target)| (container, kind, target))
        })
    }

    /// Why it is not ready, in a clause.
    pub fn phase_summary(&self) -> String {
        let mut waiting =
            self.status.container_statuses.iter().filter_map(|status| status.state.waiting.as_ref());
        let phase = if self.status.phase.is_empty() { "Unknown" } else { &self.status.phase };
        match waiting.next() {
            Some(waiting) if !waiting.reason.is_empty() => format!("{phase}, {}", waiting.reason),
            _ if self.status.is_ready() => format!("{phase}, ready"),
            _ => format!("{phase}, not ready"),
        }
    }
}

/// Whether the agent should run on a node: pods can be scheduled on it, and it runs Linux.
pub(crate) fn is_schedulable_linux(node: &Node) -> bool {
    let label = node.metadata.label("kubernetes.io/os").unwrap_or_default();
    ![node.status.node_info.operating_system.as_str(), label].contains(&"windows") && !node.spec.unschedulable
}

/// The agents' DaemonSet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct DaemonSet {
    /// Name, labels.
    pub metadata: ObjectMeta,
    /// How far it is.
    pub status: DaemonSetStatus,
}

/// How far a DaemonSet is, in nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DaemonSetStatus {
    /// The number of nodes that should run a pod.
    pub desired_number_scheduled: u32,
    /// The number of nodes whose pod is ready.
    pub number_ready: u32,
    /// The number of nodes whose pod is of the newest revision.
    pub updated_number_scheduled: u32,
}
