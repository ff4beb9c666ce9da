//! Errors of reading and changing sets.

use std::fmt::Display;

use crate::{IpsetCause, SetName};

/// A failed operation, its set, and the cause.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused a step, or could not be queried.
    #[error("cannot {step}: {source}")]
    Kernel {
        /// The step, with the set's name.
        step: String,
        /// Cause.
        source: IpsetCause,
    },
    /// The kernel does not support IP sets.
    #[error("the kernel has no IP sets (is the module ip_set loaded?): {0}")]
    NoIpset(#[source] IpsetCause),
    /// The kernel supports none of our protocol versions (6 and 7).
    #[error("the kernel supports versions {oldest} to {newest} of ipset's protocol, not 6 or 7")]
    Protocol {
        /// Oldest version that the kernel speaks.
        oldest: u8,
        /// Newest version that the kernel speaks.
        newest: u8,
    },
    /// A set of this name exists, but differs from the requested one; nothing was changed.
    #[error("set {set} is {found}, not {desired}")]
    Different {
        /// Name of the set.
        set: SetName,
        /// Description of the requested set.
        desired: String,
        /// Description of the existing set.
        found: String,
    },
}

pub(crate) fn kernel_error(step: impl Display, source: impl Into<IpsetCause>) -> Error {
    Error::Kernel { step: step.to_string(), source: source.into() }
}
