//! Errors of reading and changing the tables of a namespace.

use std::{io, path::PathBuf, time::Duration};

use model::Family;
use rules::parse::ParseError;

/// Reason why the tables of a namespace could not be read or changed; one variant per step.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A tool failed, or legacy tables could not be read.
    #[error(transparent)]
    Tool(#[from] iptables_legacy::Error),
    /// The engine could not read or change the tables of nf_tables.
    #[error(transparent)]
    Engine(#[from] nftables::Error),
    /// The kernel lets only another process change a table of ours.
    #[error("cannot change the rules of nf_tables: {0}")]
    Owned(String),
    /// The engine does not support a change.
    #[error(transparent)]
    Unsupported(#[from] nftables::Unsupported),
    /// No file could be created for the lock of a pod's legacy tables.
    #[error("cannot make a lock for a pod's legacy tables: {source}")]
    Lock {
        /// Cause.
        source: io::Error,
    },
    /// Another process holds the lock of the legacy tables.
    #[error("{} could not get the lock {} within {} s; held by {holder}", tool.display(), lock.display(), waited.as_secs())]
    Locked {
        /// The tool.
        tool: PathBuf,
        /// The lock file.
        lock: PathBuf,
        /// Time that the tool waited.
        waited: Duration,
        /// Process ID and name, as far as known.
        holder: String,
    },
    /// The output of a save could not be parsed.
    #[error("cannot read the {family} rules that {} printed: {source}", tool.display())]
    Save {
        /// The tool.
        tool: PathBuf,
        /// The family.
        family: Family,
        /// Cause.
        source: ParseError,
    },
    /// The kernel did not list its tables.
    #[error("cannot list the tables of nf_tables: {0}")]
    Presence(#[source] netlink::Error),
    /// The kernel did not report a built-in chain, or did not delete it.
    #[error("cannot maintain the built-in chains of nf_tables: {0}")]
    BuiltIn(#[source] netlink::Error),
}
