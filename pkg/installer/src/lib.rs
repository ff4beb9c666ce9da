//! Installs the plugin on the node and keeps it installed: binaries, kubeconfig, and the entry in the runtime's network
//! configuration.
//!
//! [`Installer::run`] is a level-triggered loop on one plain thread: it observes everything, repairs what differs from the desired
//! state, and waits for the next change of a directory. Decisions depend on the observed state alone, so that first installation,
//! restart after a kill, drift and a new configuration take the same path. The crate writes only below the directories of its
//! [`InstallerSettings`], and knows nothing of Kubernetes but the files that the kubelet mounts. Called by the daemon, which also
//! decides whether a shutdown is an uninstallation ([`Installer::clean_up`]).

mod binaries;
mod cleanup;
mod conf;
mod conflict;
mod entry;
mod error;
mod inspect;
mod known_limits;
mod known_writers;
mod kubeconfig;
mod leftovers;
mod metrics;
mod network;
mod pass;
mod run;
mod saved;
mod settings;
mod status;
mod verify;

pub use cleanup::list_removals;
pub use cni_types::Json;
pub use error::{Error, InstallStep};
pub use inspect::{inspect_installation, inspect_network};
pub use kubeconfig::KubeconfigSettings;
pub use metrics::InstallerMetrics;
pub use run::{Installer, InstallerHandle};
pub use settings::{Chaining, EntryTemplate, InstallerSettings};
pub use status::InstallerStatus;
