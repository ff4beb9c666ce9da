//! Limits for reading a list.

use std::{fmt, time::Duration};

/// Limits for reading a list: its size is up to whoever may configure the namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListBounds {
    /// Maximum time in all, including repetitions.
    pub time: Duration,
    /// Maximum number of bytes of its messages.
    pub bytes: usize,
}

impl ListBounds {
    /// Limits for the node, whose administrator may store all routes of the Internet in several tables.
    pub const NODE: ListBounds = ListBounds { time: Duration::from_secs(60), bytes: 512 << 20 };
    /// Limits for a pod's namespace. No pod needs tens of thousands of routes or addresses, or thousands of links,
    /// unless it wants to keep us busy.
    pub const POD: ListBounds = ListBounds { time: Duration::from_secs(2), bytes: 4 << 20 };
}

impl fmt::Display for ListBounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} MiB and {} s", self.bytes >> 20, self.time.as_secs())
    }
}
