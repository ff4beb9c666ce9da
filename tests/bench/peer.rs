//! Istio's own programs, which `hack/peers` builds from a checkout.

use std::path::{Path, PathBuf};

/// Prefix of the name of Istio's row; the rest is the name of ours.
pub(crate) const ISTIO: &str = "Istio's ";

pub(crate) struct Peer {
    pub(crate) plugin: PathBuf,
    pub(crate) daemon: PathBuf,
    /// `istio-iptables`, which releases have as a command of another program.
    pub(crate) tool: PathBuf,
}

impl Peer {
    /// The programs in a directory. Panics if one of them is missing.
    pub(crate) fn found_in(directory: &Path) -> Peer {
        let [plugin, daemon, tool] = ["istio-cni", "install-cni", "istio-iptables"].map(|name| {
            let path = directory.join(name);
            path.canonicalize().unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        });
        Peer { plugin, daemon, tool }
    }
}
