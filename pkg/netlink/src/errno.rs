//! Error numbers in the kernel's replies, with their common names and messages.

use std::fmt;

/// An error number in a netlink reply of the kernel, positive.
///
/// Unlike rustix's type, which is limited to 1 to 4095, this covers ipset's own numbers, which begin at 4096.
/// The values are those of the generic Linux ABI (x86, ARM, RISC-V, s390x, PowerPC).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Errno(pub u16);

impl Errno {
    /// `EPERM`: operation not permitted.
    pub const PERM: Self = Self(1);
    /// `ENOENT`: no such object.
    pub const NOENT: Self = Self(2);
    /// `ESRCH`: no such entry.
    pub const SRCH: Self = Self(3);
    /// `EAGAIN`: try again.
    pub const AGAIN: Self = Self(11);
    /// `EBUSY`: busy.
    pub const BUSY: Self = Self(16);
    /// `EEXIST`: already exists.
    pub const EXIST: Self = Self(17);
    /// `ENODEV`: no such device.
    pub const NODEV: Self = Self(19);
    /// `EINVAL`: invalid argument.
    pub const INVAL: Self = Self(22);
    /// `EPROTONOSUPPORT`: the kernel does not support the protocol, or its module is missing.
    pub const PROTONOSUPPORT: Self = Self(93);
    /// `EOPNOTSUPP`: operation not supported.
    pub const OPNOTSUPP: Self = Self(95);
    /// `EAFNOSUPPORT`: address family not supported.
    pub const AFNOSUPPORT: Self = Self(97);
    /// `EADDRNOTAVAIL`: no such address on this host.
    pub const ADDRNOTAVAIL: Self = Self(99);

    /// Returns the symbol, as in `errno(3)`; `None` for an error that is not used in netlink.
    pub fn name(self) -> Option<&'static str> {
        self.symbol_and_text().map(|(name, _)| name)
    }

    fn symbol_and_text(self) -> Option<(&'static str, &'static str)> {
        KNOWN.iter().find(|(number, ..)| *number == self.0).map(|(_, name, text)| (*name, *text))
    }

    /// Writes `reason (SYMBOL)`, with a message of our own if the kernel gave no reason.
    pub(crate) fn write_explanation(self, reason: Option<&str>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (reason, self.symbol_and_text()) {
            (Some(reason), Some((name, _))) => write!(f, "{reason} ({name})"),
            (Some(reason), None) => write!(f, "{reason} (error {})", self.0),
            (None, Some((name, text))) => write!(f, "{text} ({name})"),
            (None, None) => write!(f, "error {}", self.0),
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_explanation(None, f)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "Errno({})", self.0),
        }
    }
}

const KNOWN: &[(u16, &str, &str)] = &[
    (1, "EPERM", "operation not permitted"),
    (2, "ENOENT", "no such object"),
    (3, "ESRCH", "no such entry"),
    (4, "EINTR", "interrupted"),
    (5, "EIO", "input/output error"),
    (6, "ENXIO", "no such device or address"),
    (11, "EAGAIN", "try again"),
    (12, "ENOMEM", "out of memory"),
    (13, "EACCES", "permission denied"),
    (16, "EBUSY", "busy"),
    (17, "EEXIST", "exists already"),
    (18, "EXDEV", "invalid cross-device link"),
    (19, "ENODEV", "no such device"),
    (22, "EINVAL", "invalid argument"),
    (28, "ENOSPC", "no space left"),
    (34, "ERANGE", "out of range"),
    (40, "ELOOP", "too many levels"),
    (90, "EMSGSIZE", "message too long"),
    (93, "EPROTONOSUPPORT", "protocol not supported"),
    (95, "EOPNOTSUPP", "operation not supported"),
    (97, "EAFNOSUPPORT", "address family not supported"),
    (98, "EADDRINUSE", "address in use"),
    (99, "EADDRNOTAVAIL", "no such address here"),
    (100, "ENETDOWN", "network is down"),
    (101, "ENETUNREACH", "network is unreachable"),
    (105, "ENOBUFS", "no buffer space"),
    (110, "ETIMEDOUT", "timed out"),
    (113, "EHOSTUNREACH", "no route to host"),
];
