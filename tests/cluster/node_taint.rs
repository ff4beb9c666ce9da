//! `istio-cni-taint` against the API server, with exactly the rights of our manifest or of Istio's chart.

mod changes;
mod cli;
mod configuration;
mod fixture;
mod leadership;
