//! What can go wrong with the host's tools.

use std::{io, path::PathBuf, time::Duration};

use model::Family;
use rules::parse::ParseError;

use crate::Backend;

/// Why the tables of a namespace could not be read or changed; one variant per step.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No tool of the wanted backend.
    #[error("no {tool} for the {backend} backend in {path} (Debian and RHEL: package iptables)")]
    NoTool {
        /// Name of the tool that was searched for.
        tool: String,
        /// For which backend.
        backend: Backend,
        /// The directories searched.
        path: String,
    },
    /// No iptables tool at all.
    #[error("no iptables-restore in {0}: install iptables on the node")]
    NoIptables(String),
    /// The engine could not read or change the tables of nf_tables.
    #[error(transparent)]
    Engine(#[from] nftables::Error),
    /// The engine has no way to make a change.
    #[error(transparent)]
    Unsupported(#[from] nftables::Unsupported),
    /// A tool could not be started.
    #[error("cannot run {}: {source}", tool.display())]
    Run {
        /// The tool.
        tool: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A tool did not end in time and was killed.
    #[error("{} did not end within {} s and was killed", tool.display(), after.as_secs())]
    TimedOut {
        /// The tool.
        tool: PathBuf,
        /// The bound.
        after: Duration,
    },
    /// A tool refused.
    #[error("{} failed: {meaning}: {stderr}", tool.display())]
    Refused {
        /// The tool.
        tool: PathBuf,
        /// Meaning of the tool's exit status.
        meaning: String,
        /// The end of what it said.
        stderr: String,
    },
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
    /// No socket to ask for legacy tables with.
    #[error("cannot ask for the {family} rules of the legacy backend: {source}")]
    LegacySocket {
        /// The family.
        family: Family,
        /// Why.
        source: io::Error,
    },
    /// The kernel did not give out a legacy table.
    #[error("cannot read the {family} table {table} of the legacy backend: {source}")]
    LegacyTable {
        /// The family.
        family: Family,
        /// The table.
        table: String,
        /// Why.
        source: io::Error,
    },
    /// A file of the kernel or the host could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}
