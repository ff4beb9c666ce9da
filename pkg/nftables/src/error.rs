//! Errors of reading and changing rules.

/// Reason why rules could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Rules could not be read.
    #[error("cannot read the rules of nf_tables: {0}")]
    Read(#[source] netlink::Error),
    /// The kernel refused the transaction, and applied nothing.
    #[error("cannot change the rules of nf_tables: {0}")]
    Commit(#[source] netlink::Error),
    /// Other components kept changing rules while they were read.
    #[error("the rules of nf_tables changed {0} times while they were read")]
    Changing(u32),
}

impl Error {
    /// Returns whether a list exceeds the limits, or changed during every attempt to read it.
    pub fn is_excess(&self) -> bool {
        use netlink::Error::{Bounds, Interrupted};
        matches!(self, Error::Changing(_) | Error::Read(Bounds(_) | Interrupted(_)))
    }

    /// Returns the kernel's error number.
    pub fn errno(&self) -> Option<netlink::Errno> {
        match self {
            Error::Read(error) | Error::Commit(error) => error.errno(),
            Error::Changing(_) => None,
        }
    }
}
