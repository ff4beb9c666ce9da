//! Requests of the plugin to the agent on `agent.sock`: one line of JSON in each direction, then the connection is closed.

use std::net::IpAddr;

use model::{ContainerId, Namespace, Pod, PodUid};
use serde::{Deserialize, Serialize};

/// Maximum length of a request line, in bytes.
pub const MAX_REQUEST: usize = 1 << 20;
/// Maximum length of a response line, in bytes: it contains a slim pod.
pub const MAX_ANSWER: usize = 4 << 20;

/// CNI verb called by the runtime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CniVerb {
    /// Return the known facts about the pod; if it belongs to ambient mode, enrol it first.
    #[default]
    Add,
    /// Release the pod enrolled by that container's ADD.
    Del,
    /// Report whether the pod is in its desired state.
    Check,
    /// Release containers of this network that are not among `attachments`.
    Gc,
}

/// A request. Members not needed by a verb are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentRequest {
    /// Requested operation.
    pub verb: CniVerb,
    /// Namespace of the pod.
    #[serde(default)]
    pub namespace: String,
    /// Name of the pod.
    #[serde(default)]
    pub name: String,
    /// UID of the pod, if the runtime passes it.
    #[serde(default)]
    pub uid: PodUid,
    /// `CNI_CONTAINERID`.
    #[serde(default)]
    pub container: ContainerId,
    /// Addresses of the pod's interface.
    #[serde(default)]
    pub ips: Vec<IpAddr>,
    /// Network of the call, as named in its configuration.
    #[serde(default)]
    pub network: String,
    /// Existing containers of the network, for [`CniVerb::Gc`].
    #[serde(default)]
    pub attachments: Vec<ContainerId>,
}

impl AgentRequest {
    /// Returns a request with empty members.
    pub fn new(verb: CniVerb) -> AgentRequest {
        AgentRequest { verb, ..AgentRequest::default() }
    }
}

/// A response.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentAnswer {
    /// Pod, at ADD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Box<Pod>>,
    /// Namespace of the pod, as an object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Namespace>,
    /// Whether the pod is enrolled in ambient mode, according to the kernel.
    #[serde(default)]
    pub enrolled: bool,
    /// Reason for a failure, as a sentence. The request can be repeated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl AgentAnswer {
    /// Returns the response to a request that failed, with the reason.
    pub fn from_error(error: impl Into<String>) -> AgentAnswer {
        AgentAnswer { error: Some(error.into()), ..AgentAnswer::default() }
    }
}
