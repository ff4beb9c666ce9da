//! Small blocking client for `GET` requests to the Kubernetes API, used by the CNI plugin when no agent answers.
//!
//! Small because it runs at every pod start: no async runtime, no HTTP library, TLS by rustls, the kubeconfig parsed by an event
//! parser. It trusts only the kubeconfig's authority, follows no redirect, uses no proxy, and honours one deadline over everything
//! it does, including name resolution. It must not resolve names through the C library (a static binary has no NSS) and must not
//! disclose a token, key or password.
//!
//! Called by the plugin; the agent has its own client (`pkg/kube-api`), which shares the TLS configuration. `cluster-facts` parses manifests
//! with its YAML parser.

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
