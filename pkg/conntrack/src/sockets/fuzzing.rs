//! Entry points for fuzz targets only.

use netlink::ReceivedMessage;

use super::TcpSocket;

/// Parses one message about a socket.
pub fn socket(message: &ReceivedMessage<'_>) -> Option<TcpSocket> {
    TcpSocket::parse(message)
}
