//! Entry points for fuzz targets only.

use netlink::ReceivedMessage;
use rules::TransportProtocol;

use crate::{TrackedConnection, message};

/// Parses one message about a tracked connection.
pub fn connection(message: &ReceivedMessage<'_>) -> Option<TrackedConnection> {
    message::parse_connection(message, TransportProtocol::Tcp)
}
