//! `istio-cni-taint` against the API server, with exactly the rights of our manifest or of Istio's chart.

#[path = "node_taint/changes.rs"]
mod changes;
#[path = "node_taint/cli.rs"]
mod cli;
#[path = "node_taint/configuration.rs"]
mod configuration;
#[path = "node_taint/leadership.rs"]
mod leadership;
#[path = "node_taint/scene.rs"]
mod scene;
