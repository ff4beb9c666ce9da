//! Errors of the installation.

use std::path::PathBuf;

use cni_types::{EditError, EntryError};

model::word_enum! {
    /// A step of an installation.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum InstallStep {
        /// Binaries.
        Binaries = "binary",
        /// kubeconfig.
        Kubeconfig = "kubeconfig",
        /// The runtime's network configuration.
        Conf = "network configuration",
    }
}

/// An incomplete installation. Each error names its path.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// File or directory operation failed.
    #[error(transparent)]
    File(#[from] hostfs::Error),
    /// No usable directory for binaries.
    #[error("no directory for binaries can be written to: {0}")]
    NoTarget(String),
    /// The image lacks the plugin.
    #[error("{0} holds no plugin istio-cni, so that there is nothing to install")]
    NoPlugin(PathBuf),
    /// The plugin cannot be used.
    #[error("the plugin {path} does not run: {why}")]
    Broken {
        /// Binary, of the image or installed.
        path: PathBuf,
        /// Reason as text.
        why: String,
    },
    /// Our entry cannot be inserted into or removed from a configuration.
    #[error("cannot edit {path}: {cause}")]
    Edit {
        /// The configuration.
        path: PathBuf,
        /// Reason why the configuration cannot be edited.
        cause: EditError,
    },
    /// With our entry, a configuration would be too large to be read again, by an uninstallation, too.
    #[error("cannot edit {0}: with our entry it would be larger than 1 MiB")]
    TooLarge(PathBuf),
    /// A file that runtimes read has a name that is not UTF-8.
    #[error("the name of {0} is not UTF-8, so that it cannot be edited")]
    Name(PathBuf),
    /// The template is invalid.
    #[error("the CNI network configuration (template) cannot be used: {0}")]
    Template(EntryError),
    /// No template is configured.
    #[error("there is no CNI network configuration (template)")]
    NoTemplate,
    /// In standalone mode our file would replace a network of other plugins.
    #[error(
        "cannot write a network of istio-cni alone to {path}: it is the network of {plugins}; choose another CNI_CONF_NAME"
    )]
    ForeignNetwork {
        /// The file.
        path: PathBuf,
        /// Types of its other plugins.
        plugins: String,
    },
    /// Runtimes do not read a file of this name as the network that our entry is in: its name, and the extension that it needs.
    #[error("{0} does not end in .{1}, so that the runtime would not take it: choose another name")]
    Extension(String, &'static str),
    /// The file of own-conflist mode would not sort before the primary network's.
    #[error("{own} sorts after {primary}, so that the runtime would not take it: choose another name")]
    Order {
        /// Name of our file.
        own: String,
        /// Name of the primary network's file.
        primary: String,
    },
}
