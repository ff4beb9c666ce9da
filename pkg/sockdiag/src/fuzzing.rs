//! Entrances for fuzz targets.

use netlink::ReceivedMessage;

use crate::TcpSocket;

/// Reads one message about a socket.
pub fn socket(message: &ReceivedMessage<'_>) -> Option<TcpSocket> {
    TcpSocket::parse(message)
}
