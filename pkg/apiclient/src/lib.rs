//! A small blocking client for `GET` at the Kubernetes API: what the CNI plugin asks itself when no agent answers.
//!
//! It is small because it runs at every pod start: no async runtime, no HTTP library, TLS by rustls, the
//! kubeconfig read by an event parser. It trusts only the kubeconfig's authority, follows no redirect, uses no proxy, and
//! honours one deadline over everything it does, name look-ups included. It must not ask the C library for names (a
//! static binary has no NSS) and must not show a token, key or password to anyone.
//!
//! Called by the plugin; the agent has its own way (`pkg/kubeio`), which shares how TLS is set up. `facts` reads manifests
//! by the same YAML.

mod client;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod kubeconfig;
mod names;
mod provider;
mod retry;
mod secret;
mod server;
mod tls;
mod transport;
mod yaml;

pub use client::{ApiClient, Freshness, MAX_BODY, RetryDecision};
pub use error::{Error, FailureReason};
pub use kubeconfig::{ConfigError, Kubeconfig, MAX_FILE, ReadFile};
pub use names::Resolver;
pub use provider::{confirm_tls_provider, describe_tls_provider};
pub use retry::RetryPolicy;
pub use secret::Secret;
pub use server::{ServerHost, ServerUrl};
pub use tls::tls_config;
pub use yaml::parse_yaml;
