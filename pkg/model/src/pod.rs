//! Slim Kubernetes facts, limited to what decisions need, so that neither the plugin nor the agent holds whole pod objects. Field
//! names are the API's, in both directions; unknown fields are skipped while parsing, and empty ones are not written.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use crate::{
    identifier::PodUid,
    privilege::{Capabilities, NetworkPrivilege},
    status::PodStatus,
};

/// Annotation with the hash of a static pod's manifest.
pub const CONFIG_HASH: &str = "kubernetes.io/config.hash";
/// Annotation that marks the mirror of a static pod at the API server.
pub const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";

/// Namespace and name of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
pub struct PodName {
    /// Kubernetes namespace.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
}

impl PodName {
    /// Returns the pod's path in the API.
    pub fn api_path(&self) -> String {
        format!("/api/v1/namespaces/{}/pods/{}", self.namespace, self.name)
    }
}

impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// `metadata` of any object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct ObjectMeta {
    /// `metadata.name`
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// `metadata.namespace`; empty for cluster-wide objects.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// `metadata.uid`. Uses the type for pods, the only objects identified by it; for any other object it is only compared with
    /// that of its predecessor.
    #[serde(skip_serializing_if = "PodUid::is_empty")]
    pub uid: PodUid,
    /// `metadata.resourceVersion`, for watches; empty in facts, which do not depend on it.
    #[serde(rename = "resourceVersion", skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    /// `metadata.generation`, which each change of `spec` increments; 0 for kinds without one, and in facts.
    #[serde(skip_serializing)]
    pub generation: u64,
    /// `metadata.labels`
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// `metadata.annotations`
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// `metadata.creationTimestamp`, such as `2026-01-31T23:59:59Z`: always UTC in whole seconds, so that it sorts as text. Empty
    /// for an object that was never stored.
    #[serde(
        rename = "creationTimestamp",
        deserialize_with = "null_is_empty",
        skip_serializing_if = "String::is_empty"
    )]
    pub created: String,
    /// `metadata.deletionTimestamp`: the object is being deleted.
    #[serde(rename = "deletionTimestamp", skip_serializing_if = "Option::is_none")]
    pub deleted: Option<String>,
    /// `metadata.ownerReferences`; empty in facts.
    #[serde(
        rename = "ownerReferences",
        deserialize_with = "null_is_empty",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub owners: Vec<OwnerReference>,
}

/// An owner of an object, with which the object is deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct OwnerReference {
    /// Kind, such as `DaemonSet`.
    pub kind: String,
    /// Name of the owner.
    pub name: String,
    /// Whether the owner is the controller, which replaces the object when it is deleted.
    #[serde(deserialize_with = "null_is_empty")]
    pub controller: bool,
}

/// The required fields of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Pod {
    /// `metadata`
    pub metadata: ObjectMeta,
    /// `spec`
    #[serde(deserialize_with = "null_is_empty")]
    pub spec: PodSpec,
    /// `status`
    #[serde(deserialize_with = "null_is_empty")]
    pub status: PodStatus,
}

/// The required fields of a pod's `spec`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodSpec {
    /// Regular containers.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<Container>,
    /// Init containers, including native sidecars.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub init_containers: Vec<Container>,
    /// Ephemeral containers, added for debugging while the pod runs.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub ephemeral_containers: Vec<Container>,
    /// Whether the pod runs in the node's network namespace.
    pub host_network: bool,
    /// Node that the pod was scheduled to; empty before.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    /// Service account of the pod.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub service_account_name: String,
}

/// The required fields of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Container {
    /// Name of the container.
    pub name: String,
    /// Arguments of the entrypoint.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Environment variables, in order.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<EnvVar>,
    /// Security context of the container itself. That of the pod is ignored, as in upstream.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "SecurityContext::is_empty")]
    pub security_context: SecurityContext,
}

/// An environment variable of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct EnvVar {
    /// Name of the variable.
    pub name: String,
    /// Literal value; `None` if it comes from elsewhere (`valueFrom`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// User, group and privileges of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SecurityContext {
    /// `runAsUser`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_as_user: Option<i64>,
    /// `runAsGroup`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_as_group: Option<i64>,
    /// `privileged`; used by the agent only, and therefore not written
    #[serde(deserialize_with = "null_is_empty", skip_serializing)]
    pub privileged: bool,
    /// `capabilities`; likewise
    #[serde(deserialize_with = "null_is_empty", skip_serializing)]
    pub capabilities: Capabilities,
}

/// The required fields of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Namespace {
    /// `metadata`
    pub metadata: ObjectMeta,
}

impl AsRef<ObjectMeta> for Pod {
    fn as_ref(&self) -> &ObjectMeta {
        &self.metadata
    }
}

impl AsRef<ObjectMeta> for Namespace {
    fn as_ref(&self) -> &ObjectMeta {
        &self.metadata
    }
}

impl ObjectMeta {
    /// Returns the value of a label.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.get(name).map(String::as_str)
    }
}

impl Pod {
    /// Returns namespace and name.
    pub fn name(&self) -> PodName {
        PodName { namespace: self.metadata.namespace.clone(), name: self.metadata.name.clone() }
    }

    /// Returns the hash of a static pod's manifest, by which the kubelet and the container runtime identify it. The annotation is
    /// writable by anyone, so it is used only with the mark of a mirror pod, and as 32 hexadecimal digits without separators, a
    /// form that no UID of the API server has. Detecting another pod with the same hash is left to `pod-identity`.
    pub fn manifest_hash(&self) -> Option<PodUid> {
        let annotations = &self.metadata.annotations;
        let hash = annotations.get(CONFIG_HASH).filter(|_| annotations.contains_key(CONFIG_MIRROR))?;
        let is_hash = hash.len() == 32 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_hash.then(|| hash.as_str().into())
    }

    /// Whether the container runtime identifies the pod by this UID: its own, or for a static pod the hash of its manifest, which
    /// its mirror at the API server carries.
    pub fn has_runtime_uid(&self, uid: &PodUid) -> bool {
        self.metadata.uid == *uid || self.manifest_hash().as_ref() == Some(uid)
    }

    /// Returns the privilege of the pod's most privileged container in its network namespace.
    pub fn network_privilege(&self) -> NetworkPrivilege {
        let all = self.all_containers().chain(&self.spec.ephemeral_containers);
        all.map(|container| container.security_context.network_privilege()).max().unwrap_or_default()
    }

    /// Returns regular and init containers, init containers last.
    pub fn all_containers(&self) -> impl Iterator<Item = &Container> {
        self.spec.containers.iter().chain(&self.spec.init_containers)
    }
}

impl SecurityContext {
    /// Returns the privilege of the container in its pod's network namespace.
    pub fn network_privilege(&self) -> NetworkPrivilege {
        if self.privileged { NetworkPrivilege::Privileged } else { self.capabilities.network_privilege() }
    }

    fn is_empty(&self) -> bool {
        *self == SecurityContext::default()
    }
}

impl Container {
    /// Returns the literal value of an environment variable; the last one takes effect, as in the container itself.
    pub fn env_value(&self, name: &str) -> Option<&str> {
        self.env.iter().rev().find(|var| var.name == name).and_then(|var| var.value.as_deref())
    }
}

/// Deserialises `null` as the default: the API and Go clients write it for an empty list or map.
///
/// # Errors
/// The value is neither `null` nor of the type.
pub fn null_is_empty<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_parses_from_the_api_form_and_skips_the_rest() {
        let pod: Pod = serde_json::from_str(
            r#"{"kind":"Pod","metadata":{"name":"a","namespace":"b","uid":"u","labels":null,"annotations":{"k":"v"},
                "managedFields":[{"x":1}]},
                "spec":{"containers":[{"name":"istio-proxy","image":"x","args":["proxy","sidecar"],
                "env":[{"name":"A","value":"1"},{"name":"B","valueFrom":{"fieldRef":{}}},{"name":"A","value":"2"}],
                "securityContext":{"runAsUser":1338,"runAsGroup":1339}}],"initContainers":null,"hostNetwork":true}}"#,
        )
        .unwrap();
        let proxy = &pod.spec.containers[0];
        assert_eq!(proxy.env_value("A"), Some("2"));
        assert_eq!(proxy.env_value("B"), None);
        assert_eq!(proxy.security_context.run_as_user, Some(1338));
        assert!(pod.spec.host_network && pod.metadata.labels.is_empty());
        assert_eq!(pod.metadata.annotations["k"], "v");
    }
}
