//! Entry points for fuzz targets only.

use netlink::ReceivedMessage;

use crate::{TrackedConnection, TrackedProtocol, message};

/// Parses one message about a tracked connection.
pub fn connection(message: &ReceivedMessage<'_>) -> Option<TrackedConnection> {
    message::parse_connection(message, TrackedProtocol::Tcp)
}
