//! Changes that callers receive.

use std::ops::BitOr;

use crate::WatchId;

/// At least one change of one namespace since the last report about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change<K> {
    /// The key under which the namespace is watched.
    pub key: K,
    /// The watch that reported the change.
    pub watch: WatchId,
    /// The kinds of objects that changed.
    pub kinds: ChangeKinds,
    /// Generation of nf_tables after the last change of the firewall. Each transaction adds one, so a gap to the
    /// previous generation means that other components wrote in between.
    pub generation: Option<u32>,
    /// The last process that wrote, a thread of ours only if there was no other; `None`: the kernel did not name one.
    pub writer: Option<Writer>,
}

/// A process that committed a transaction of nf_tables, as reported by the kernel. A process chooses its own name, so
/// this is a hint for people, and no evidence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Writer {
    /// Process ID in the initial PID namespace. The process may have ended since.
    pub pid: u32,
    /// Process name (`comm`): at most 15 printable ASCII characters, with `?` for everything else.
    pub name: String,
}

/// A set of kinds of objects that changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangeKinds(u8);

impl ChangeKinds {
    /// Tables, chains, rules or sets of nf_tables, whose users include iptables-nft.
    pub const FIREWALL: Self = Self(1);
    /// Routes of either family, in any table.
    pub const ROUTES: Self = Self(1 << 1);
    /// Policy rules of either family.
    pub const POLICY_RULES: Self = Self(1 << 2);
    /// Addresses of either family, and their state, such as the end of duplicate address detection.
    pub const ADDRESSES: Self = Self(1 << 3);
    /// Links. The kernel also reports carrier changes here, in the same form as a changed MTU.
    pub const LINKS: Self = Self(1 << 4);
    /// Notifications were lost or malformed: anything may have changed.
    pub const LOST: Self = Self(1 << 5);

    /// Returns whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the set without the kinds of `other`.
    pub(crate) const fn without_kinds(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns whether every kind of `other` is in the set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for ChangeKinds {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}
