//! Errors of exchanges with the kernel.

use std::fmt;
use std::io;
use std::time::Duration;

use crate::{Errno, ListBounds};

/// Reason why an exchange with the kernel failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused the request.
    #[error("kernel: {}", KernelMessage { errno: *errno, message: message.as_deref() })]
    Kernel {
        /// Error number in the reply.
        errno: Errno,
        /// The kernel's own message (extended acknowledgement, `NLMSGERR_ATTR_MSG`), if any.
        message: Option<String>,
    },
    /// A system call on the socket failed.
    #[error("cannot {step}: {source}")]
    Io {
        /// The step that failed.
        step: &'static str,
        /// Error of the system call.
        source: io::Error,
    },
    /// A reply was longer than the receive buffer, so its rest is lost. Open a new socket before the next request:
    /// further messages of the same dump may be pending.
    #[error("the kernel's reply of {length} bytes was cut to {received}")]
    Truncated {
        /// Bytes that fit into the buffer.
        received: usize,
        /// Bytes that the kernel sent.
        length: usize,
    },
    /// A reply does not follow the format.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// No reply arrived from the kernel within this time.
    #[error("no reply from the kernel within {} ms", .0.as_millis())]
    Timeout(Duration),
    /// The objects changed during each of this number of dumps, so no dump is reliable.
    #[error("the objects changed while the kernel listed them, {0} times in a row")]
    Interrupted(u32),
    /// A list is longer, or takes longer, than these limits allow.
    #[error("the list is longer than {} MiB, or takes the kernel longer than {} s", .0.bytes >> 20, .0.time.as_secs())]
    Bounds(ListBounds),
    /// The request has a value that is too long for its attribute (64 KiB).
    #[error("an attribute of the request is longer than 65535 bytes")]
    TooLong,
}

impl Error {
    /// Returns the kernel's error number, if the kernel refused.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Kernel { errno, .. } => Some(*errno),
            _ => None,
        }
    }
}

/// Returns `None` instead of a refusal with the error number by which the kernel reports a missing object.
///
/// # Errors
///
/// Any other error.
pub fn allow_missing<T>(result: Result<T, Error>, missing: Errno) -> Result<Option<T>, Error> {
    match result {
        Err(error) if error.errno() == Some(missing) => Ok(None),
        other => other.map(Some),
    }
}

/// Bytes that violate the netlink format; the text describes the violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed netlink data: {0}")]
pub struct Malformed(pub &'static str);

/// Formats `Nexthop has invalid gateway (EINVAL)`: the kernel's message if any, else that of the error number.
struct KernelMessage<'a> {
    errno: Errno,
    message: Option<&'a str>,
}

impl fmt::Display for KernelMessage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.errno.write_explanation(self.message.map(|message| message.trim_end_matches('.')), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_reads_as_a_sentence() {
        let with = |errno, message: Option<&str>| {
            Error::Kernel { errno, message: message.map(str::to_owned) }.to_string()
        };
        let gateway = Some("Nexthop has invalid gateway");
        assert_eq!(with(Errno::INVAL, gateway), "kernel: Nexthop has invalid gateway (EINVAL)");
        assert_eq!(with(Errno::SRCH, None), "kernel: no such entry (ESRCH)");
        assert_eq!(with(Errno(4097), None), "kernel: error 4097");
        assert_eq!(with(Errno(4097), Some("Bad set.")), "kernel: Bad set (error 4097)");
    }
}
