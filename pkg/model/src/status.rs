//! What became of a pod.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::pod::null_is_empty;

/// The fields of a pod's `status` that we need.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodStatus {
    /// `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`; empty before the first.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// `podIP`: the first address.
    #[serde(rename = "podIP", skip_serializing_if = "String::is_empty")]
    pub pod_ip: String,
    /// `podIPs`: all addresses, one for each family.
    #[serde(rename = "podIPs", deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub pod_ips: Vec<PodIp>,
    /// Conditions, `Ready` among them.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<PodCondition>,
    /// Of regular containers.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub container_statuses: Vec<ContainerStatus>,
    /// Of init containers, native sidecars among them.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub init_container_statuses: Vec<ContainerStatus>,
}

/// One address of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct PodIp {
    /// As text.
    pub ip: String,
}

/// One condition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct PodCondition {
    /// Such as `Ready`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
}

/// How a container is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct ContainerStatus {
    /// The container passes its readiness check; an init container has finished.
    pub ready: bool,
}

impl PodStatus {
    /// The pod's addresses: `podIPs`, or `podIP` where that list is empty. Each once, in the order of the API; what is
    /// no address is left out.
    #[must_use]
    pub fn ips(&self) -> Vec<IpAddr> {
        let mut ips = Vec::new();
        let first = self.pod_ips.is_empty().then_some(self.pod_ip.as_str());
        let all = self.pod_ips.iter().map(|address| address.ip.as_str()).chain(first);
        for ip in all.filter_map(|text| text.parse().ok()) {
            if !ips.contains(&ip) {
                ips.push(ip);
            }
        }
        ips
    }

    /// The status of the first condition of this type.
    #[must_use]
    pub fn condition(&self, kind: &str) -> Option<&str> {
        let mut conditions = self.conditions.iter();
        conditions.find(|condition| condition.kind == kind).map(|condition| condition.status.as_str())
    }
}
