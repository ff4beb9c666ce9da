//! The kernel's replies about TCP connections: sockets, and tracked ones.

use std::net::SocketAddr;

use netlink::MessageIter;

/// Any bytes are messages, each of which is a socket, a tracked connection, or neither; the same each time. No address is
/// IPv4-mapped IPv6: it would be a second form of the same address.
///
/// # Panics
/// If one of these does not hold.
pub fn connection_replies(data: &[u8]) {
    let is_plain = |end: SocketAddr| end.ip() == end.ip().to_canonical();
    for message in MessageIter::new(data).map_while(Result::ok) {
        let (socket, tracked) =
            (conntrack::sockets::fuzzing::socket(&message), conntrack::fuzzing::connection(&message));
        assert_eq!(socket, conntrack::sockets::fuzzing::socket(&message));
        assert_eq!(tracked, conntrack::fuzzing::connection(&message));
        assert!(socket.is_none_or(|socket| is_plain(socket.local) && is_plain(socket.remote)));
        if let Some(tracked) = tracked {
            assert_eq!(tracked.original.reversed().reversed(), tracked.original);
            assert_eq!(tracked.is_translated(), tracked.reply.reversed() != tracked.original);
        }
    }
}
