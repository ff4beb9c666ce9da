//! `istio-cni`, the CNI plugin: run by the container runtime at every pod start, last in the chain.
//!
//! It decides whether the pod belongs to the mesh (`enrolment`), redirects the pod's traffic to its sidecar in the
//! pod's own network namespace (`redirect`), and hands on the result of the plugins before it unchanged. It links
//! no async runtime and no Kubernetes library, opens nothing that a decision does not need, and answers every call,
//! also a hostile one, with a result or a CNI error object.
//!
//! The path of a call: [`dispatch`] answers it, [`call`] reads it, [`attach`] does ADD and DEL, [`check`] CHECK, [`agent`] asks
//! the node's agent who the pod is, [`facts`] the API server, [`offline_enrol`] enrols an ambient pod without it, [`log`] posts to the agent's log,
//! [`record`] notes each ADD for people. [`netns_lock`] serializes two calls for one namespace. [`refusal`] decides
//! from the node alone when the API server refuses the credential for good.

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
