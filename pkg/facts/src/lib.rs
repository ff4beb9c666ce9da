//! Where facts come from: the API server, or a directory of manifests for a node that has none.
//!
//! Both tell the same [`enrolment::Fact`]s, and what is told first by each are the lists of everything. Neither decides
//! anything. Troubles are logged once, not at each try, and never end a source. Called by the agent.

mod api;
mod belief;
mod dir;
mod document;
mod slim;

pub use api::{follow_api, follow_pods};
pub use apiclient::parse_yaml;
pub use dir::{ManifestFollower, find_in_dir, follow_dir};
