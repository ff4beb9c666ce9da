//! Our Helm chart: it renders what Istio's charts render for the same values, and nothing that a cluster refuses.

#[path = "chart/agent.rs"]
mod agent;
#[path = "chart/api.rs"]
mod api;
#[path = "chart/helm.rs"]
mod helm;
#[path = "chart/recorded.rs"]
mod recorded;
#[path = "chart/release.rs"]
mod release;
#[path = "chart/schema.rs"]
mod schema;
#[path = "chart/settings.rs"]
mod settings;
#[path = "chart/unknown.rs"]
mod unknown;
#[path = "chart/values.rs"]
mod values;
