//! `istio-cni`, the CNI plugin: run by the container runtime at every pod start, last in the chain.
//!
//! It decides whether the pod belongs to the mesh (`planner`), redirects the pod's traffic to its sidecar in the
//! pod's own network namespace (`redirect`), and hands on the result of the plugins before it unchanged. It links
//! no async runtime and no Kubernetes library, opens nothing that a decision does not need, and answers every call,
//! also a hostile one, with a result or a CNI error object.
//!
//! The way of a call: [`call`] reads and answers, [`attach`] does ADD and CHECK, [`facts`] finds out about the pod,
//! [`agent`] asks the node's agent, [`alone`] enrols an ambient pod without it, [`log`] tells the agent, [`record`] notes it for people. [`turn`] keeps two
//! calls for one pod apart. [`refusal`] decides by the node alone when the credential is dead for good.

pub mod agent;
pub mod attach;
pub mod call;
pub mod facts;
pub mod log;
pub mod netns_lock;
pub mod offline_enrol;
pub mod record;
pub mod refusal;

pub use call::{Answer, answer};
