//! The node taint controller of Istio up to 1.17: a node has the taint [`TAINT`] until it is ready and every configured
//! selector has a ready pod on it.
//!
//! [`ReadinessConfig`] defines these pods, [`NodeIndex`] determines the missing requirements of each node, [`TaintQueue`] when each
//! node is handled (all three are pure computation). [`TaintController`] watches nodes and pods, polls the ConfigMap at the API
//! server and changes taints; [`run_while_leading`] lets one replica at a time do so. Called by `install-cni` when it is started as
//! `istio-cni-taint`.

mod config;
mod config_source;
mod controller;
mod index;
mod leadership;
mod observed;
mod pass;
mod queue;
mod selector;

pub use config::{PodRequirement, ReadinessConfig};
pub use controller::{TaintController, TaintOptions};
pub use index::{NodeIndex, NodeObservation, NodeVerdict};
pub use leadership::{LEASE_NAMESPACE, lease_options, run_while_leading};
pub use observed::{ObservedNode, ReadinessPod};
pub use queue::TaintQueue;
pub use selector::check_selector;

use kube_api::NodeTaint;

/// Istio's taint. It has no value.
pub const TAINT: NodeTaint = NodeTaint { key: "NodeReadiness", effect: "NoSchedule" };
