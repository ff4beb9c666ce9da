//! Sets: what is asked for, what is there.

use std::fmt;

use crate::{Family, SetName};

/// The one type of set that this crate makes and fills.
pub const HASH_IP: &str = "hash:ip";

/// A set of addresses as it is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetSpec {
    /// Name of the set.
    pub name: SetName,
    /// The family of its members.
    pub family: Family,
    /// Whether members can have comments.
    pub comments: bool,
    /// Buckets at the beginning; the kernel's default is 1024, and it doubles them when they fill up.
    pub hash_size: Option<u32>,
    /// Members at most; the kernel's default is 65536.
    pub max_elements: Option<u32>,
}

impl SetSpec {
    /// A set without comments, of the kernel's default sizes.
    #[must_use]
    pub const fn new(name: SetName, family: Family) -> Self {
        Self { name, family, comments: false, hash_size: None, max_elements: None }
    }

    /// Returns the same set with comments.
    #[must_use]
    pub fn with_comments(self) -> Self {
        Self { comments: true, ..self }
    }

    /// Whether that set serves as this one: sizes may differ.
    pub(crate) fn is_served_by(&self, found: &SetInfo) -> bool {
        found.kind == HASH_IP && found.family == Some(self.family) && found.comments == self.comments
    }
}

impl fmt::Display for SetSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_description(f, HASH_IP, Some(self.family), self.comments)
    }
}

/// A set that is there, of whatever type, without its members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetInfo {
    /// Name of the set; another program may have chosen one that [`SetName`] refuses.
    pub name: String,
    /// Type of the set, such as `hash:ip`.
    pub kind: String,
    /// Family of its members; none for types that hold both or no addresses.
    pub family: Option<Family>,
    /// Revision of its type.
    pub revision: u8,
    /// Whether members can have comments.
    pub comments: bool,
    /// Buckets now, if it is a hash.
    pub hash_size: Option<u32>,
    /// Members at most, if it is a hash.
    pub max_elements: Option<u32>,
    /// Members now; old kernels do not say.
    pub elements: Option<u32>,
    /// Firewall rules and sets that refer to it.
    pub references: u32,
}

impl fmt::Display for SetInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_description(f, &self.kind, self.family, self.comments)
    }
}

/// `hash:ip IPv4 with comments`.
fn write_description(
    f: &mut fmt::Formatter<'_>,
    kind: &str,
    family: Option<Family>,
    comments: bool,
) -> fmt::Result {
    f.write_str(kind)?;
    if let Some(family) = family {
        write!(f, " {family}")?;
    }
    f.write_str(if comments { " with comments" } else { " without comments" })
}

/// Whether a set was made, or was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum CreateOutcome {
    /// The set was made.
    Yes,
    /// One of the same type, family and comment support was there.
    Existed,
}
