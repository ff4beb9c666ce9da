//! What the kernel answers about TCP connections: sockets, and tracked ones.

use std::net::SocketAddr;

use netlink::MessageIter;

/// Any bytes are messages, of which each is a socket, a tracked connection, or none; the same each time. No address is one of
/// IPv4 in the form of IPv6: such a one would be no other than its plain form.
///
/// # Panics
/// When one of these does not hold.
pub fn connection_replies(data: &[u8]) {
    let is_plain = |end: SocketAddr| end.ip() == end.ip().to_canonical();
    for message in MessageIter::new(data).map_while(Result::ok) {
        let (socket, tracked) =
            (sockdiag::fuzzing::socket(&message), conntrack::fuzzing::connection(&message));
        assert_eq!(socket, sockdiag::fuzzing::socket(&message));
        assert_eq!(tracked, conntrack::fuzzing::connection(&message));
        assert!(socket.is_none_or(|socket| is_plain(socket.local) && is_plain(socket.remote)));
        if let Some(tracked) = tracked {
            assert_eq!(tracked.original.reversed().reversed(), tracked.original);
            assert_eq!(tracked.is_translated(), tracked.reply.reversed() != tracked.original);
        }
    }
}
