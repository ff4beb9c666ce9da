//! Sources of facts: the API server, or a directory of manifests for a node without one.
//!
//! Both send the same [`enrolment::Fact`]s, beginning with complete lists. Neither decides anything. Errors are logged once, not at
//! each attempt, and never end a source. Called by the agent.

mod api;
mod belief;
mod dir;
mod document;
mod slim;

pub use api::{follow_api, follow_pods};
pub use apiclient::parse_yaml;
pub use dir::{ManifestFollower, find_in_dir, follow_dir};
