//! Errors of the host's tools and of legacy tables.

use std::{io, path::PathBuf, time::Duration};

use model::Family;

use crate::ToolKind;

/// Reason why legacy tables could not be read, or a tool could not be found or run; one variant per step.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No tool of the desired backend was found.
    #[error("no {tool} for the {backend} backend in {path} (Debian and RHEL: package iptables)")]
    NoTool {
        /// Name of the tool that was searched for.
        tool: String,
        /// Backend of the tool.
        backend: ToolKind,
        /// The directories that were searched.
        path: String,
    },
    /// No iptables tool was found.
    #[error("no iptables-restore in {0}: install iptables on the node")]
    NoIptables(String),
    /// A tool could not be started.
    #[error("cannot run {}: {source}", tool.display())]
    Run {
        /// The tool.
        tool: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// A tool did not end in time and was killed.
    #[error("{} did not end within {} s and was killed", tool.display(), after.as_secs())]
    TimedOut {
        /// The tool.
        tool: PathBuf,
        /// The time limit.
        after: Duration,
    },
    /// A tool refused.
    #[error("{} failed: {meaning}: {stderr}", tool.display())]
    Refused {
        /// The tool.
        tool: PathBuf,
        /// Meaning of the tool's exit status.
        meaning: String,
        /// The end of its standard error.
        stderr: String,
    },
    /// No socket could be opened for legacy tables.
    #[error("cannot ask for the {family} rules of the legacy backend: {source}")]
    LegacySocket {
        /// The family.
        family: Family,
        /// Cause.
        source: io::Error,
    },
    /// The kernel did not return a legacy table.
    #[error("cannot read the {family} table {table} of the legacy backend: {source}")]
    LegacyTable {
        /// The family.
        family: Family,
        /// The table.
        table: String,
        /// Cause.
        source: io::Error,
    },
    /// A file of the kernel or the host could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
}
