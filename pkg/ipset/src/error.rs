//! What can go wrong with sets.

use std::fmt::Display;

use crate::{IpsetCause, SetName};

/// Which operation failed, on which set, and why.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused a step, or could not be asked.
    #[error("cannot {step}: {source}")]
    Kernel {
        /// The step, with the set's name.
        step: String,
        /// Why.
        source: IpsetCause,
    },
    /// The kernel knows nothing of IP sets.
    #[error("the kernel has no IP sets (is the module ip_set loaded?): {0}")]
    NoIpset(#[source] IpsetCause),
    /// The kernel's protocol is not one that we speak (6 or 7).
    #[error("the kernel speaks versions {oldest} to {newest} of ipset's protocol, not 6 or 7")]
    Protocol {
        /// Oldest version that the kernel speaks.
        oldest: u8,
        /// Newest version that the kernel speaks.
        newest: u8,
    },
    /// A set of this name is there, but another one than was asked for; nothing was done.
    #[error("set {set} is {found}, not {desired}")]
    Different {
        /// Name of the set.
        set: SetName,
        /// Description of the set that was asked for.
        desired: String,
        /// Description of the set that is there.
        found: String,
    },
}

pub(crate) fn kernel_error(step: impl Display, source: impl Into<IpsetCause>) -> Error {
    Error::Kernel { step: step.to_string(), source: source.into() }
}
