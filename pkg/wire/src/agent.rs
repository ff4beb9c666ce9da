//! What the plugin asks the agent on `agent.sock`: one line of JSON each way, then the connection ends.

use std::net::IpAddr;

use model::{ContainerId, Namespace, Pod, PodUid};
use serde::{Deserialize, Serialize};

/// The longest line of a request that is read, in bytes.
pub const MAX_REQUEST: usize = 1 << 20;
/// The longest line of an answer: it holds a pod as we know it.
pub const MAX_ANSWER: usize = 4 << 20;

/// The CNI verb that the runtime called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CniVerb {
    /// Say what is known of the pod; if it is an ambient one, enrol it first.
    #[default]
    Add,
    /// Release what that container's ADD enrolled.
    Del,
    /// Say whether the pod is as it should be.
    Check,
    /// Release what belongs to containers of this network that are not among `attachments`.
    Gc,
    /// Say whether an ADD could work. Sent by earlier plugins: today's reports a status that does not depend on the agent.
    Status,
}

/// A request. Members that a verb does not need are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentRequest {
    /// Operation that is requested.
    pub verb: CniVerb,
    /// The pod's namespace.
    #[serde(default)]
    pub namespace: String,
    /// The pod's name.
    #[serde(default)]
    pub name: String,
    /// The pod's UID, where the runtime says it.
    #[serde(default)]
    pub uid: PodUid,
    /// `CNI_CONTAINERID`.
    #[serde(default)]
    pub container: ContainerId,
    /// The addresses of the pod's interface.
    #[serde(default)]
    pub ips: Vec<IpAddr>,
    /// The network of the call, as its configuration names it.
    #[serde(default)]
    pub network: String,
    /// Containers that the network still has, for [`CniVerb::Gc`].
    #[serde(default)]
    pub attachments: Vec<ContainerId>,
}

impl AgentRequest {
    /// A request about nothing in particular.
    pub fn new(verb: CniVerb) -> AgentRequest {
        AgentRequest { verb, ..AgentRequest::default() }
    }
}

/// An answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentAnswer {
    /// The pod, at ADD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Box<Pod>>,
    /// Namespace of the pod, as an object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Namespace>,
    /// Whether the pod is enrolled in ambient mode, as the kernel shows.
    #[serde(default)]
    pub enrolled: bool,
    /// Why it was not done, in a sentence. It can be tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl AgentAnswer {
    /// Returns the answer to a request that was not carried out, with the reason.
    pub fn from_error(error: impl Into<String>) -> AgentAnswer {
        AgentAnswer { error: Some(error.into()), ..AgentAnswer::default() }
    }
}
