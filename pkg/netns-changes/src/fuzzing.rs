//! Entry point for a fuzz target only.

use netlink::MessageIter;

use crate::Change;
use crate::notification::Observed;
use crate::watcher::WatchId;

/// Returns the change that a datagram reports.
pub fn parse_notification(datagram: &[u8]) -> Option<Change<()>> {
    let mut observed = Observed::default();
    observed.add_messages(MessageIter::new(datagram));
    observed.into_change((), WatchId(0))
}
