//! Names, comments, members.

use std::fmt;
use std::net::IpAddr;

/// The name of a set: 1 to 31 bytes of visible ASCII, without quote, backslash, comma or leading `-`, which the
/// firewall tools would read as syntax.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SetName(String);

/// The text is not a valid set name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a set name (1 to 31 visible ASCII characters; no quote, backslash, ',' or leading '-')"
)]
pub struct InvalidSetName(pub String);

impl SetName {
    /// The longest that the kernel takes (`IPSET_MAXNAMELEN` less the NUL).
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

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A note that the kernel keeps beside a member: 1 to 255 bytes, no NUL.
///
/// The `ipset` tool prints it as it is, between quotes: one with a quote or a line break in it cannot be restored
/// from what `ipset save` printed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Comment(String);

/// The text cannot be a comment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} cannot be the comment of a set's member (1 to 255 bytes, no NUL)")]
pub struct InvalidComment(pub String);

impl Comment {
    /// The longest that the kernel keeps (`IPSET_MAX_COMMENT_SIZE`).
    pub const MAX_LEN: usize = 255;

    /// Checks a comment.
    ///
    /// # Errors
    ///
    /// [`InvalidComment`] with the text.
    pub fn new(text: &str) -> Result<Self, InvalidComment> {
        let ok = (1..=Self::MAX_LEN).contains(&text.len()) && !text.contains('\0');
        if ok { Ok(Self(text.to_owned())) } else { Err(InvalidComment(text.to_owned())) }
    }

    /// Reads the comment that the kernel holds, up to its NUL. Another program may have put there what is not UTF-8: that
    /// becomes `�`, and what is too long then is cut.
    pub(crate) fn from_kernel(bytes: &[u8]) -> Option<Self> {
        let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        let mut text = String::from_utf8_lossy(text).into_owned();
        text.truncate(text.floor_char_boundary(Self::MAX_LEN));
        (!text.is_empty()).then_some(Self(text))
    }

    /// The comment as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A member of a set.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SetEntry {
    /// The address. The kernel stores every one but `0.0.0.0` and `::`.
    pub ip: IpAddr,
    /// A note, in a set that was made with comments.
    pub comment: Option<Comment>,
}

impl SetEntry {
    /// A member without a comment.
    #[must_use]
    pub const fn new(ip: IpAddr) -> Self {
        Self { ip, comment: None }
    }

    /// A member with a comment.
    #[must_use]
    pub const fn with_comment(ip: IpAddr, comment: Comment) -> Self {
        Self { ip, comment: Some(comment) }
    }
}

impl From<IpAddr> for SetEntry {
    fn from(ip: IpAddr) -> Self {
        Self::new(ip)
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

    #[test]
    fn comments_are_counted_in_bytes() {
        for good in ["x", "two words", "ä\"\n", &"c".repeat(255), &format!("{}c", "ä".repeat(127))] {
            assert_eq!(Comment::new(good).unwrap().as_str(), good);
        }
        for bad in ["", "a\0b", &"c".repeat(256), &"ä".repeat(128)] {
            assert!(Comment::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn what_others_wrote_is_read_as_far_as_it_can_be() {
        let read = |bytes: &[u8]| Comment::from_kernel(bytes).map(|comment| comment.0);
        assert_eq!(read(b"pod a\0"), Some("pod a".to_owned()));
        assert_eq!(read(b"cut\0off"), Some("cut".to_owned()));
        assert_eq!(read(b"\xff!"), Some("\u{fffd}!".to_owned()));
        assert_eq!(read(&[0xff; 255]), Some("\u{fffd}".repeat(85)));
        assert_eq!(read(&[&[b'a'; 254][..], &[0xff]].concat()), Some("a".repeat(254)));
        assert_eq!((read(b"\0"), read(b"")), (None, None));
    }
}
