//! What lies in `deploy/`: an API server takes it, it fits the daemon, and the daemon runs with no more than it gives.

#[path = "install_manifests/ambient.rs"]
mod ambient;
#[path = "install_manifests/documents.rs"]
pub(crate) mod documents;
#[path = "install_manifests/image.rs"]
pub(crate) mod image;
#[path = "install_manifests/in_pod.rs"]
mod in_pod;
#[path = "install_manifests/permissions.rs"]
mod permissions;
#[path = "install_manifests/run.rs"]
mod run;
#[path = "install_manifests/settings.rs"]
mod settings;
