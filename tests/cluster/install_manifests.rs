//! What lies in `deploy/`: an API server takes it, it fits the daemon, and the daemon runs with no more than it gives.

mod ambient;
pub(crate) mod documents;
pub(crate) mod image;
mod in_pod;
mod permissions;
mod run;
mod settings;
