//! How much of a list is read.

use std::{fmt, time::Duration};

/// How much of a list is taken: the kernel sends as much as whoever may configure the namespace has put there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListBounds {
    /// How long it may take in all, with every repetition.
    pub time: Duration,
    /// How many bytes its messages may have.
    pub bytes: usize,
}

impl ListBounds {
    /// For the node, whose administrator may have it hold all routes of the Internet in several tables.
    pub const NODE: ListBounds = ListBounds { time: Duration::from_secs(60), bytes: 512 << 20 };
    /// For a pod's namespace. Tens of thousands of routes or addresses, or thousands of links, are no pod's, unless it means
    /// to keep us busy.
    pub const POD: ListBounds = ListBounds { time: Duration::from_secs(2), bytes: 4 << 20 };
}

impl fmt::Display for ListBounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} MiB and {} s", self.bytes >> 20, self.time.as_secs())
    }
}
