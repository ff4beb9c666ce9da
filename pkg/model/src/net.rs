use std::{borrow::Cow, fmt, net::IpAddr};

/// An IP address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both families, IPv4 first.
    pub const BOTH: [Family; 2] = [Family::V4, Family::V6];

    /// Returns the family of an address. An IPv4-mapped IPv6 address counts as IPv6, as stored by the kernel.
    pub fn from_ip(ip: IpAddr) -> Family {
        if ip.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    /// Returns the IP version, 4 or 6.
    pub const fn number(self) -> u8 {
        match self {
            Family::V4 => 4,
            Family::V6 => 6,
        }
    }

    /// Returns the family's number in the kernel's interfaces: `AF_INET` or `AF_INET6`.
    pub const fn address_family(self) -> u8 {
        match self {
            Family::V4 => 2,
            Family::V6 => 10,
        }
    }

    /// Returns the family with this number in the kernel's interfaces; `None`: another one, such as MPLS.
    pub fn from_address_family(number: u8) -> Option<Family> {
        Family::BOTH.into_iter().find(|family| family.address_family() == number)
    }

    /// Returns `0.0.0.0` or `::`.
    pub fn unspecified_address(self) -> IpAddr {
        match self {
            Family::V4 => IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED),
            Family::V6 => IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED),
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        })
    }
}

/// A TCP or UDP port, 0 to 65535. Istio's annotations allow 0, and so does this type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port(pub u16);

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A packet or connection mark: the bits of `mask` that are matched or written, and their value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mark {
    /// Value within `mask`.
    pub value: u32,
    /// Mask of our bits.
    pub mask: u32,
}

impl Mark {
    /// Returns a mark that owns all 32 bits. Only for a pod's own network namespace, where no other component sets marks.
    pub const fn with_full_mask(value: u32) -> Mark {
        Mark { value, mask: u32::MAX }
    }
}

/// Formats like `iptables-save`: `0x539` with a full mask, else `0x200/0x200`.
impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.mask == u32::MAX {
            write!(f, "{:#x}", self.value)
        } else {
            write!(f, "{:#x}/{:#x}", self.value, self.mask)
        }
    }
}

/// Number of a routing table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableId(pub u32);

impl TableId {
    /// `RT_TABLE_DEFAULT`.
    pub const DEFAULT: TableId = TableId(253);
    /// `RT_TABLE_MAIN`: the table shown by `ip route`.
    pub const MAIN: TableId = TableId(254);
    /// `RT_TABLE_LOCAL`: the kernel's own, for local addresses.
    pub const LOCAL: TableId = TableId(255);
}

impl fmt::Display for TableId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            TableId::DEFAULT => f.write_str("default"),
            TableId::MAIN => f.write_str("main"),
            TableId::LOCAL => f.write_str("local"),
            TableId(number) => number.fmt(f),
        }
    }
}

/// Name of a network interface: 1 to 15 bytes, no blank, no `/`, no control character, not `.` or `..` (kernel: `net/core/dev.c`,
/// `dev_valid_name`), and no quote, `!` or leading `-`, which the firewall tools would parse as syntax. In a firewall rule a
/// trailing `+` matches every name with that prefix.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IfName(Cow<'static, str>);

/// Text that is no valid interface name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an interface name (1 to 15 bytes; no blank, '/', ':', quote or '!')")]
pub struct InvalidIfName(pub String);

impl IfName {
    /// Validates `name` by the kernel's rules.
    ///
    /// # Errors
    /// [`InvalidIfName`] with the text.
    pub fn new(name: &str) -> Result<IfName, InvalidIfName> {
        let bad =
            |c: char| c.is_whitespace() || c.is_control() || matches!(c, '/' | ':' | '"' | '\'' | '\\' | '!');
        let ok = (1..=15).contains(&name.len())
            && name != "."
            && name != ".."
            && !name.starts_with('-')
            && !name.contains(bad);
        if ok { Ok(IfName(Cow::Owned(name.to_owned()))) } else { Err(InvalidIfName(name.to_owned())) }
    }

    /// Returns a name known at compile time, of plain characters.
    ///
    /// # Panics
    /// For any other. In a constant, that is a compile error.
    pub const fn known(name: &'static str) -> IfName {
        assert!(is_plain(name.as_bytes()), "1 to 15 letters, digits, '_', '.' or '+', the first a letter");
        IfName(Cow::Borrowed(name))
    }

    /// Returns the loopback interface.
    pub const fn lo() -> IfName {
        IfName::known("lo")
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a firewall rule with this name matches the interface.
    pub fn matches(&self, interface: &str) -> bool {
        match self.as_str().strip_suffix('+') {
            Some(start) => interface.starts_with(start),
            None => self.as_str() == interface,
        }
    }
}

/// Whether a name has only characters that [`IfName::known`] accepts.
const fn is_plain(name: &[u8]) -> bool {
    let [first, rest @ ..] = name else { return false };
    let mut rest = rest;
    while let [byte, more @ ..] = rest {
        if !byte.is_ascii_alphanumeric() && !matches!(*byte, b'_' | b'.' | b'+') {
            return false;
        }
        rest = more;
    }
    first.is_ascii_alphabetic() && name.len() <= 15
}

impl fmt::Display for IfName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_names_follow_the_kernel() {
        for good in ["lo", "eth0", "cali0123456789a", "net1.100", "vnet-0", "a", "vnet+"] {
            assert!(IfName::new(good).is_ok(), "{good}");
        }
        for bad in ["", "a b", "0123456789abcdef", "a/b", ".", "..", "a\nb", "-j", "a\"b", "eth0:1", "!x"] {
            assert!(IfName::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn what_is_known_at_compile_time_is_a_name() {
        for good in ["lo", "istioin+", "net1.100", "a23456789012345"] {
            assert_eq!(IfName::new(good), Ok(IfName::known(good)));
        }
        for bad in ["", "1a", "a b", "a/b", "a234567890123456", "a!"] {
            assert!(!is_plain(bad.as_bytes()), "{bad:?}");
        }
    }

    #[test]
    fn marks_print_as_iptables_save_does() {
        assert_eq!(Mark::with_full_mask(1337).to_string(), "0x539");
        assert_eq!(Mark { value: 0x200, mask: 0x200 }.to_string(), "0x200/0x200");
    }
}
