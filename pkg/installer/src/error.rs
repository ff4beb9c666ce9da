//! What can keep the plugin from being installed.

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
        /// The runtime's configuration.
        Conf = "network configuration",
    }
}

/// Something is not installed. Each names the path it is about.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or directory.
    #[error(transparent)]
    File(#[from] hostfs::Error),
    /// Nowhere to put binaries.
    #[error("no directory for binaries can be written to: {0}")]
    NoTarget(String),
    /// The image is broken.
    #[error("{0} holds no plugin istio-cni, so that there is nothing to install")]
    NoPlugin(PathBuf),
    /// Useless.
    #[error("the plugin {path} does not run: {why}")]
    Broken {
        /// The binary, of the image or installed.
        path: PathBuf,
        /// In words.
        why: String,
    },
    /// Our entry cannot be put into a configuration, or taken out.
    #[error("cannot edit {path}: {cause}")]
    Edit {
        /// The configuration.
        path: PathBuf,
        /// Reason why the configuration cannot be edited.
        cause: EditError,
    },
    /// A file that runtimes read, and whose name is no text.
    #[error("the name of {0} is not UTF-8, so that it cannot be edited")]
    Name(PathBuf),
    /// The template gives no entry.
    #[error("the CNI network configuration (template) cannot be used: {0}")]
    Template(EntryError),
    /// There is no template.
    #[error("there is no CNI network configuration (template)")]
    NoTemplate,
    /// In standalone mode the template is the whole file.
    #[error("the CNI network configuration (template) is not a network of its own: {0}")]
    Standalone(String),
    /// The file of own-conflist mode would not be the runtime's choice.
    #[error("{own} sorts after {primary}, so that the runtime would not take it: choose another name")]
    Order {
        /// Our file's name.
        own: String,
        /// The primary network's file name.
        primary: String,
    },
}
