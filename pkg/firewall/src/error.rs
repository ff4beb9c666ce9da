//! What can go wrong with the tables of a namespace.

use std::{io, path::PathBuf, time::Duration};

use model::Family;
use rules::parse::ParseError;

/// Why the tables of a namespace could not be read or changed; one variant per step.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A tool, or legacy tables.
    #[error(transparent)]
    Tool(#[from] iptables_legacy::Error),
    /// The engine could not read or change the tables of nf_tables.
    #[error(transparent)]
    Engine(#[from] nftables::Error),
    /// The kernel lets only another process change a table of ours.
    #[error("cannot change the rules of nf_tables: {0}")]
    Owned(String),
    /// The engine has no way to make a change.
    #[error(transparent)]
    Unsupported(#[from] nftables::Unsupported),
    /// There is no file to lock a pod's legacy tables by.
    #[error("cannot make a lock for a pod's legacy tables: {source}")]
    Lock {
        /// Why.
        source: io::Error,
    },
    /// Somebody else holds the lock of the legacy tables.
    #[error("{} could not get the lock {} within {} s; held by {holder}", tool.display(), lock.display(), waited.as_secs())]
    Locked {
        /// The tool.
        tool: PathBuf,
        /// The lock's file.
        lock: PathBuf,
        /// How long it waited.
        waited: Duration,
        /// Process id and name, as far as known.
        holder: String,
    },
    /// The output of a save is not understood.
    #[error("cannot read the {family} rules that {} printed: {source}", tool.display())]
    Save {
        /// The tool.
        tool: PathBuf,
        /// The family.
        family: Family,
        /// Why.
        source: ParseError,
    },
    /// The kernel did not say which tables there are.
    #[error("cannot find out which nf_tables tables there are: {0}")]
    Presence(#[source] netlink::Error),
    /// The kernel did not tell of a built-in chain, or did not delete it.
    #[error("cannot look after built-in chains of nf_tables: {0}")]
    BuiltIn(#[source] netlink::Error),
}
