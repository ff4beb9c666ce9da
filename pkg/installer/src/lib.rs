//! Puts the plugin on the node and keeps it there: binaries, kubeconfig, and the entry in the runtime's configuration.
//!
//! One plain thread runs [`Installer::run`]: a level-triggered loop that looks at everything, repairs what is not as it
//! should be, and waits for the next change of a directory. What to do follows from what is there and nothing else, so that
//! first installation, restart after a kill, drift and a new configuration are one and the same. It writes
//! only below the directories of its [`InstallerSettings`], and it knows nothing of Kubernetes but the files that the kubelet
//! mounts. Called by the daemon, which also decides whether an end is an uninstallation ([`Installer::clean_up`]).

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

pub use cni_types::Json;
pub use error::{Error, InstallStep};
pub use inspect::{inspect_installation, inspect_network};
pub use kubeconfig::KubeconfigSettings;
pub use metrics::InstallerMetrics;
pub use run::{Installer, InstallerHandle};
pub use settings::{Chaining, EntryTemplate, InstallerSettings};
pub use status::InstallerStatus;
