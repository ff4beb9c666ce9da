//! Access to the Kubernetes API for the agent: watches that yield facts, requests, and what is published: Events, annotations, the
//! node's condition.
//!
//! The only crate that uses kube's types; it must not decide anything. TLS is rustls as set up by `apiclient`; the token and the
//! authority's certificates are read again when they change on disk. Called by the daemon.

mod bounded;
mod client;
mod collection;
mod condition;
mod error;
mod event;
#[cfg(feature = "kubectl")]
mod exec;
#[cfg(feature = "kubectl")]
mod forward;
#[cfg(feature = "kubectl")]
mod kubeconfig;
mod lease;
mod listed;
#[cfg(feature = "kubectl")]
mod paged;
mod pieces;
mod pods;
#[cfg(feature = "kubectl")]
mod proxy;
mod reread;
#[cfg(feature = "kubectl")]
mod short_lived;
mod slim;
mod taints;
mod transport;
mod watch;

pub use apiclient::{confirm_tls_provider, describe_tls_provider};
pub use client::{ApiConnection, KubeClient, sleep_for};
pub use collection::{Collection, ListEvent};
pub use condition::NodeCondition;
pub use error::{ApiErrorKind, Error};
pub use event::EventRecorder;
#[cfg(feature = "kubectl")]
pub use forward::ForwardedPort;
#[cfg(feature = "kubectl")]
pub use kubeconfig::{KubeconfigChoice, KubeconfigSession};
pub use lease::{LeaseElector, LeaseOptions, LeaseStanding};
pub use taints::{NodeTaint, TaintChange};
pub use watch::ObjectRef;
