//! API objects, reduced to what findings need: a tenth of what the API server sends.

pub(crate) use enrolment::{AMBIENT_REDIRECTION as REDIRECTION, STATUS as SIDECAR_STATUS};
use enrolment::{INJECT, annotations::MODE as INTERCEPTION_MODE};
use model::{EnvVar, Node, ObjectMeta, PodStatus, null_is_empty};
use serde::{Deserialize, Deserializer};

use crate::policy::{PortName, is_tcp};

/// Annotations that are kept. Others are often large, and not needed.
const ANNOTATIONS: [&str; 4] = [REDIRECTION, SIDECAR_STATUS, INJECT, INTERCEPTION_MODE];
/// Maximum length of a value that is kept, in bytes: of a longer one only the presence counts.
const LONGEST: usize = 64;

/// A pod. Of arguments and variables of containers, only those are kept that decide whether a proxy is a sidecar.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// Name, labels, and the annotations that findings need.
    #[serde(deserialize_with = "slim_metadata")]
    pub metadata: ObjectMeta,
    /// Desired state.
    pub spec: PodSpec,
    /// Observed state.
    pub status: PodStatus,
}

fn slim_metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let mut metadata = ObjectMeta::deserialize(deserializer)?;
    metadata.annotations.retain(|name, value| {
        clear_long_value(value);
        ANNOTATIONS.contains(&name.as_str())
    });
    metadata.owners = Vec::new();
    Ok(metadata)
}

fn clear_long_value(value: &mut String) {
    if value.len() > LONGEST {
        *value = String::new();
    }
}

/// Keeps the first two arguments of a proxy.
fn keep_proxy_args<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let mut args: Vec<String> = null_is_empty(deserializer)?;
    if args.first().is_none_or(|first| first != "proxy") {
        return Ok(Vec::new());
    }
    args.truncate(2);
    args.iter_mut().for_each(clear_long_value);
    Ok(args)
}

/// Keeps the variable that turns a proxy off.
fn keep_proxy_env<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<EnvVar>, D::Error> {
    let mut env: Vec<EnvVar> = null_is_empty(deserializer)?;
    env.retain_mut(|var| {
        var.value.iter_mut().for_each(clear_long_value);
        var.name == "DISABLE_ENVOY"
    });
    Ok(env)
}

/// Desired state of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodSpec {
    /// Name of the pod's node; empty if not scheduled yet.
    pub node_name: String,
    /// Whether the pod runs in the node's network namespace.
    pub host_network: bool,
    /// Service account of the pod.
    pub service_account_name: String,
    /// Containers of the pod.
    #[serde(deserialize_with = "null_is_empty")]
    pub containers: Vec<Container>,
    /// Init containers, including native sidecars.
    #[serde(deserialize_with = "null_is_empty")]
    pub init_containers: Vec<Container>,
}

/// A container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Container {
    /// Name of the container.
    pub name: String,
    /// The first two arguments, if the first is `proxy`.
    #[serde(deserialize_with = "keep_proxy_args")]
    pub args: Vec<String>,
    /// The variable `DISABLE_ENVOY`, if set.
    #[serde(deserialize_with = "keep_proxy_env")]
    pub env: Vec<EnvVar>,
    /// Ports that it declares.
    #[serde(deserialize_with = "null_is_empty")]
    pub ports: Vec<ContainerPort>,
    /// Startup probe, if any.
    pub startup_probe: Option<Probe>,
    /// Readiness probe, if any.
    pub readiness_probe: Option<Probe>,
    /// Liveness probe, if any.
    pub liveness_probe: Option<Probe>,
}

/// A probe of the kubelet that connects to the pod: one that runs a command has none of these.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Probe {
    /// HTTP probe.
    pub http_get: Option<ProbeTarget>,
    /// TCP probe.
    pub tcp_socket: Option<ProbeTarget>,
    /// gRPC probe.
    pub grpc: Option<ProbeTarget>,
}

/// Target of a probe.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ProbeTarget {
    /// Port of the target.
    pub port: PortName,
}

/// A port that a container declares.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ContainerPort {
    /// Name of the port; empty if it has none.
    pub name: String,
    /// Port number.
    pub container_port: u16,
    /// Protocol: `TCP`, `UDP` or `SCTP`; empty: TCP.
    pub protocol: String,
}

impl Pod {
    /// Returns the pod's name, as shown by findings.
    pub fn qualified_name(&self) -> String {
        format!("{}/{}", self.metadata.namespace, self.metadata.name)
    }

    /// Whether the pod is neither finished nor being deleted.
    pub fn is_live(&self) -> bool {
        !self.status.has_ended() && self.metadata.deleted.is_none()
    }

    /// Whether a sidecar has been injected into the pod.
    pub fn has_sidecar(&self) -> bool {
        self.metadata.annotations.contains_key(SIDECAR_STATUS)
            && self.containers().any(|container| container.name == "istio-proxy")
    }

    /// Returns the pod in the form of the agent's decision, as far as its data is kept here.
    pub(crate) fn to_decided(&self) -> model::Pod {
        let containers = self.containers().map(|container| model::Container {
            name: container.name.clone(),
            args: container.args.clone(),
            env: container.env.clone(),
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

    fn containers(&self) -> impl Iterator<Item = &Container> {
        self.spec.containers.iter().chain(&self.spec.init_containers)
    }

    /// Returns the ports to which the kubelet's probes connect.
    pub(crate) fn probed_ports(&self) -> impl Iterator<Item = u16> {
        self.probe_targets().filter_map(|(container, _, target)| match &target.port {
            PortName::Number(number) => Some(*number),
            PortName::Name(name) => {
                container.ports.iter().find(|port| port.name == *name).map(|port| port.container_port)
            }
        })
    }

    /// Returns the TCP ports that containers declare.
    pub(crate) fn declared_ports(&self) -> impl Iterator<Item = u16> {
        let ports = self.containers().flat_map(|container| &container.ports);
        ports.filter(|port| is_tcp(&port.protocol)).map(|port| port.container_port)
    }

    /// Returns the targets of probes, with the container and the kind of each.
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

    /// Returns why the pod is not ready, as a clause.
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

/// Whether a node runs Linux, so that a DaemonSet of agents has a pod there, even if it is cordoned.
pub(crate) fn is_linux(node: &Node) -> bool {
    let label = node.metadata.label("kubernetes.io/os").unwrap_or_default();
    ![node.status.node_info.operating_system.as_str(), label].contains(&"windows")
}
