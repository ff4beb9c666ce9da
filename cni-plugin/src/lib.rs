//! `istio-cni`, the CNI plugin: executed by the container runtime at every pod start, last in the chain.
//!
//! Decides whether the pod belongs to the mesh (`enrolment`), redirects the pod's traffic to its sidecar in the pod's own network
//! namespace (`redirect`), and returns the result of the previous plugins unchanged. Links no async runtime and no Kubernetes
//! library, opens nothing that a decision does not need, and answers every call, even a malicious one, with a result or a CNI error
//! object.
//!
//! Flow of a call: [`dispatch`] handles it, [`call`] parses it, [`attach`] does ADD and DEL, [`check`] CHECK, [`agent`] queries the
//! node's agent about the pod, [`facts`] the API server, [`offline_enrol`] enrols an ambient pod without it, [`log`] posts to the
//! agent's log, [`record`] records each ADD for people. [`netns_lock`] serializes calls for one namespace. [`refusal`] decides from
//! the node alone when the API server persistently refuses the credential.

pub mod agent;
pub mod attach;
pub mod call;
pub mod check;
pub mod dispatch;
pub mod facts;
pub mod log;
pub mod netns_lock;
pub mod offline_enrol;
pub mod record;
pub mod refusal;

pub use dispatch::{PluginOutput, answer_call};
