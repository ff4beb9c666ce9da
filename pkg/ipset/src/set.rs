//! Sets: requested and existing ones.

use std::fmt;

use crate::Family;

/// The only set type that this crate creates and fills.
pub(crate) const HASH_IP: &str = "hash:ip";

/// Name of a set: 1 to 31 bytes of visible ASCII, without quote, backslash, comma or leading `-`, which the firewall
/// tools would parse as syntax.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SetName(String);

/// A text that is not a valid set name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a set name (1 to 31 visible ASCII characters; no quote, backslash, ',' or leading '-')"
)]
pub struct InvalidSetName(pub String);

impl SetName {
    /// Maximum length in the kernel (`IPSET_MAXNAMELEN` less the NUL).
    pub const MAX_LEN: usize = 31;

    /// Checks a name.
    ///
    /// # Errors
    ///
    /// [`InvalidSetName`] with the text.
    pub fn new(name: &str) -> Result<Self, InvalidSetName> {
        let plain = |byte: u8| byte.is_ascii_graphic() && !br#""'\,"#.contains(&byte);
        let ok =
            (1..=Self::MAX_LEN).contains(&name.len()) && !name.starts_with('-') && name.bytes().all(plain);
        if ok { Ok(Self(name.to_owned())) } else { Err(InvalidSetName(name.to_owned())) }
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A requested set of addresses: with comments, and the kernel's default sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetSpec {
    /// Name of the set.
    pub name: SetName,
    /// The family of its members.
    pub family: Family,
}

impl SetSpec {
    /// Returns whether the existing set matches this request.
    pub(crate) fn is_served_by(&self, found: &SetInfo) -> bool {
        found.kind == HASH_IP && found.family == Some(self.family) && found.comments
    }
}

/// An existing set of any type, without its name and its members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetInfo {
    /// Type of the set, such as `hash:ip`.
    pub kind: String,
    /// Family of its members; `None` for types with both or without addresses.
    pub family: Option<Family>,
    /// Whether members can have comments.
    pub comments: bool,
    /// Number of members; old kernels do not report it.
    pub elements: Option<u32>,
}

/// Formats `hash:ip IPv4 with comments`.
impl fmt::Display for SetInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.kind)?;
        if let Some(family) = self.family {
            write!(f, " {family}")?;
        }
        f.write_str(if self.comments { " with comments" } else { " without comments" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_kernel_and_tools_take() {
        for good in ["a", "ztunnel-pods-ips", "istio_inpod.v4:x", &"n".repeat(31)] {
            assert_eq!(SetName::new(good).unwrap().as_str(), good);
        }
        for bad in ["", "-x", "a b", "a\tb", "a,b", "a\"", "a'", "a\\", "ä", "a\0", &"n".repeat(32)] {
            assert!(SetName::new(bad).is_err(), "{bad:?}");
        }
    }
}
