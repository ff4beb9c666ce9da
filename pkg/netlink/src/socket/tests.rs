//! The socket with the kernel. Only reads; `hostnet` tests changes in its own network namespaces.

use super::*;
use crate::Errno;

const RTM_GETLINK: u16 = 18;

fn links() -> NetlinkRequest {
    NetlinkRequest::new(RTM_GETLINK, MessageFlags::NONE, &[0; 16])
}

fn short() -> Socket {
    Socket::open_with_timeout(NetlinkProtocol::Route, Duration::from_millis(30)).unwrap()
}

#[test]
fn a_list_is_answered_and_can_be_asked_for_again() {
    let mut socket = Socket::open(NetlinkProtocol::Route).unwrap();
    for _ in 0..3 {
        let replies = socket.dump(&links()).unwrap();
        assert!(!replies.is_empty());
        assert_eq!(replies.iter().count(), replies.len());
        assert!(replies.iter().all(|reply| reply.kind == 16 && reply.split_header::<16>().is_ok()));
    }
}

#[test]
fn a_refusal_carries_the_kernels_words() {
    let mut socket = Socket::open(NetlinkProtocol::Route).unwrap();
    let mut message = NetlinkRequest::new(
        RTM_GETLINK,
        MessageFlags::NONE,
        &[0, 0, 0xff, 0xff, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    );
    message.put_u32(29, 0);
    let refused = socket.get(message).unwrap_err();
    assert_eq!(refused.errno(), Some(Errno::INVAL));
    assert_eq!(refused.to_string(), "kernel: Invalid values in header for get link request (EINVAL)");
}

#[test]
fn each_of_many_refusals_is_told_and_the_socket_stays_in_step() {
    let mut socket = Socket::open(NetlinkProtocol::Route).unwrap();
    let refused =
        |number: u8| NetlinkRequest::new(RTM_GETLINK, MessageFlags::NONE, &[0, 0, number, 0, 1, 0, 0, 0]);
    let outcomes = socket.send_batch((0..150).map(refused)).unwrap();
    assert_eq!(outcomes.len(), 150);
    assert!(outcomes.iter().all(|outcome| outcome.as_ref().unwrap_err().errno() == Some(Errno::INVAL)));
    assert!(!socket.dump(&links()).unwrap().is_empty());
    assert!(socket.send_batch([]).unwrap().is_empty());
}

/// As a kernel that lacks an expression refuses each rule with it.
#[test]
fn a_transaction_can_be_refused_a_thousand_times() {
    if sockopt::set_socket_recv_buffer_size_force(&short().fd, 1 << 20).is_err() {
        return eprintln!("skipped: only root may enlarge a buffer");
    }
    let nothing = || NetlinkRequest::new(1, MessageFlags::NONE, &[]); // NLMSG_NOOP, which has no reply
    let refused = || NetlinkRequest::new(RTM_GETLINK, MessageFlags::NONE, &[0, 0, 1, 0, 1, 0, 0, 0]);
    let mut socket = Socket::open(NetlinkProtocol::Route).unwrap();
    let changes = (0..1000).map(|_| refused()).collect();
    let error = socket.send_transaction(nothing(), changes, nothing()).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::INVAL), "{error}");
    assert!(!socket.dump(&links()).unwrap().is_empty());
}

/// As in a user namespace, where the receive buffer cannot be enlarged.
#[test]
fn the_first_refusal_of_a_transaction_is_known_although_the_last_do_not_fit() {
    let nothing = || NetlinkRequest::new(1, MessageFlags::NONE, &[]); // NLMSG_NOOP, which has no reply
    let refused = || NetlinkRequest::new(RTM_GETLINK, MessageFlags::NONE, &[0, 0, 1, 0, 1, 0, 0, 0]);
    let mut socket = Socket::open(NetlinkProtocol::Route).unwrap();
    sockopt::set_socket_recv_buffer_size(&socket.fd, 1).unwrap(); // the kernel's minimum
    let changes = (0..60).map(|_| refused()).collect();
    let error = socket.send_transaction(nothing(), changes, nothing()).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::INVAL), "{error}");
    assert!(!socket.dump(&links()).unwrap().is_empty());
}

#[test]
fn a_repeated_request_has_the_same_replies_until_something_changes() {
    // There is no such link: a refusal is a reply, too.
    let index = i32::MAX.to_ne_bytes();
    let own = NetlinkRequest::new(RTM_GETLINK, MessageFlags::NONE, &[[0; 4], index, [0; 4], [0; 4]].concat());
    let open = |lists: Vec<_>| RepeatedRequests::open(NetlinkProtocol::Route, own.clone(), lists).unwrap();
    let changed = |first, list| ChangedReplies { first, list };
    let mut requests = open(vec![links(), links()]);
    assert_eq!(
        requests.request_changes().unwrap(),
        changed(true, true),
        "there is nothing before the first reply"
    );
    // Replies include counters of links, so several of them may differ.
    assert!((0..20).any(|_| requests.request_changes().unwrap() == changed(false, false)));
    let mut single = open(Vec::new());
    assert_eq!(
        [(); 2].map(|()| single.request_changes().unwrap()),
        [changed(true, false), changed(false, false)]
    );
    let refused = NetlinkRequest::new(RTM_GETLINK, MessageFlags::NONE, &[0, 0, 1, 0, 1, 0, 0, 0]);
    let mut refused = open(vec![refused]);
    assert_eq!(
        [(); 2].map(|()| refused.request_changes().unwrap()),
        [changed(true, true), changed(false, false)]
    );
}

#[test]
fn all_protocols_open() {
    for protocol in [NetlinkProtocol::Route, NetlinkProtocol::Netfilter, NetlinkProtocol::Sockets] {
        assert!(Socket::open(protocol).is_ok(), "{protocol:?}");
    }
}

#[test]
fn silence_ends_in_a_timeout() {
    let error = short().receive_replies(&mut |_| {}).unwrap_err();
    assert_eq!(error.to_string(), "no reply from the kernel within 30 ms");
}

#[test]
fn a_reply_beyond_the_buffer_is_told() {
    let mut socket = short();
    socket.buffer.truncate(64);
    assert!(matches!(socket.dump(&links()), Err(Error::Truncated { received: 64, length: 65.. })));
}

#[test]
fn what_another_process_sends_is_not_taken_for_the_kernels_answer() {
    let (mut socket, forger) = (short(), short());
    rustix::net::bind(&socket.fd, &SocketAddrNetlink::new(0, 0)).unwrap();
    let own = rustix::net::getsockname(&socket.fd).unwrap();
    let mut forged = NetlinkRequest::new(2, MessageFlags::NONE, &[0; 20]);
    let bytes = forged.finish(socket.sequence, MessageFlags::NONE).unwrap();
    if rustix::net::sendto(&forger.fd, bytes, SendFlags::empty(), &own).is_err() {
        return eprintln!("skipped: only root may send to other processes");
    }
    assert!(matches!(socket.receive_replies(&mut |_| {}), Err(Error::Timeout(_))));
}

#[test]
fn a_list_beyond_its_bounds_is_refused_and_its_beginning_can_be_had() {
    let short = ListBounds { bytes: 0, ..ListBounds::NODE };
    let all = Socket::open(NetlinkProtocol::Route).unwrap().dump(&links()).unwrap();
    // Whatever the limit, one datagram is read; loopback alone fits into it, and the end is in another.
    let (head, rest) = Socket::open(NetlinkProtocol::Route).unwrap().dump_head(&links(), 0).unwrap();
    assert!(!head.is_empty() && head.len() <= all.len() && rest.is_none());
    let refused =
        Socket::open(NetlinkProtocol::Route).unwrap().with_bounds(short).dump(&links()).unwrap_err();
    assert!(matches!(refused, Error::Bounds(_)), "{refused}");
    let of = |keeps: bool| {
        let mut socket = Socket::open(NetlinkProtocol::Route).unwrap().with_bounds(short);
        socket.dump_some(&links(), |reply| Ok(Some(reply.kind)), |_, _| keeps)
    };
    assert_eq!(of(false).unwrap(), [], "what is not kept counts towards no bound");
    assert!(matches!(of(true), Err(Error::Bounds(_))));
    let late = ListBounds { time: Duration::ZERO, ..ListBounds::NODE };
    let refused = Socket::open(NetlinkProtocol::Route).unwrap().with_bounds(late).dump(&links()).unwrap_err();
    assert!(matches!(refused, Error::Bounds(_)), "{refused}");
    let (whole, rest) = Socket::open(NetlinkProtocol::Route).unwrap().dump_head(&links(), 1 << 20).unwrap();
    assert_eq!(whole.len(), all.len());
    let again = rest.expect("that was all").dump(&links()).unwrap();
    assert_eq!(again.len(), all.len());
}
