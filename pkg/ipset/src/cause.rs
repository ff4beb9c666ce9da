//! Messages for the kernel's error numbers: ipset has its own.

use std::error::Error;
use std::fmt;

use netlink::{Errno, Malformed};

pub(crate) const MEMBER: Errno = Errno(4103);

/// Cause of a failed step: netlink's error, with messages for ipset's error numbers.
#[derive(Debug)]
pub struct IpsetCause(pub netlink::Error);

impl IpsetCause {
    /// Returns the kernel's error number, if the kernel refused; from 4096 on it is one of ipset's (`IPSET_ERR_*`).
    pub fn errno(&self) -> Option<Errno> {
        self.0.errno()
    }

    fn known_error(&self) -> Option<(&'static str, &'static str)> {
        let errno = self.errno()?;
        KNOWN.iter().find(|(number, ..)| *number == errno.0).map(|(_, symbol, text)| (*symbol, *text))
    }
}

impl fmt::Display for IpsetCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.known_error() {
            Some((symbol, text)) => write!(f, "kernel: {text} ({symbol})"),
            None if self.errno() == Some(Errno::NOENT) => f.write_str("kernel: no such set (ENOENT)"),
            None => self.0.fmt(f),
        }
    }
}

impl Error for IpsetCause {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

impl From<netlink::Error> for IpsetCause {
    fn from(error: netlink::Error) -> Self {
        Self(error)
    }
}

impl From<Malformed> for IpsetCause {
    fn from(malformed: Malformed) -> Self {
        Self(malformed.into())
    }
}

const KNOWN: &[(u16, &str, &str)] = &[
    (4097, "IPSET_ERR_PROTOCOL", "not a request for this kind of set"),
    (4098, "IPSET_ERR_FIND_TYPE", "no such type of set, or not this revision of it"),
    (4099, "IPSET_ERR_MAX_SETS", "the maximum number of sets exists"),
    (4100, "IPSET_ERR_BUSY", "in use by a firewall rule, another set or a listing"),
    (4103, "IPSET_ERR_EXIST", "a member already, or not a member"),
    (4108, "IPSET_ERR_REFERENCED", "in use by a firewall rule or another set"),
    (4109, "IPSET_ERR_IPADDR_IPV4", "not an IPv4 address"),
    (4110, "IPSET_ERR_IPADDR_IPV6", "not an IPv6 address"),
    (4112, "IPSET_ERR_COMMENT", "the set has no comments"),
    (4352, "IPSET_ERR_HASH_FULL", "the set is full"),
    (4353, "IPSET_ERR_HASH_ELEM", "the unspecified address cannot be a member"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_reads_as_a_sentence() {
        let says =
            |number| IpsetCause(netlink::Error::Kernel { errno: Errno(number), message: None }).to_string();
        assert_eq!(says(4352), "kernel: the set is full (IPSET_ERR_HASH_FULL)");
        assert_eq!(says(2), "kernel: no such set (ENOENT)");
        assert_eq!(says(1), "kernel: operation not permitted (EPERM)");
        assert_eq!(says(4999), "kernel: error 4999");
        for (number, symbol, words) in KNOWN {
            assert_eq!(says(*number), format!("kernel: {words} ({symbol})"));
        }
    }
}
