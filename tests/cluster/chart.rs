//! Our Helm chart: it renders what Istio's charts render for the same values, and nothing that a cluster rejects.

mod agent;
mod api;
mod helm;
mod image;
mod migrate;
mod published;
mod recorded;
mod release;
mod schema;
mod settings;
mod test_pod;
mod unknown;
mod values;
