//! What can go wrong with the kernel.

/// Why rules could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// They could not be read.
    #[error("cannot read the rules of nf_tables: {0}")]
    Read(#[source] netlink::Error),
    /// The kernel refused the change, and made none of it.
    #[error("cannot change the rules of nf_tables: {0}")]
    Commit(#[source] netlink::Error),
    /// Others kept changing rules while they were read.
    #[error("the rules of nf_tables changed {0} times while they were read")]
    Changing(u32),
}

impl Error {
    /// There is more than is read, or it never stays the same while it is.
    pub fn is_excess(&self) -> bool {
        use netlink::Error::{Bounds, Interrupted};
        matches!(self, Error::Changing(_) | Error::Read(Bounds(_) | Interrupted(_)))
    }

    /// The kernel's error code.
    pub fn errno(&self) -> Option<netlink::Errno> {
        match self {
            Error::Read(error) | Error::Commit(error) => error.errno(),
            Error::Changing(_) => None,
        }
    }
}
