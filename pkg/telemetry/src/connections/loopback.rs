//! Whose socket is at the other end of a connection over the loopback: the kernel knows, since it has both ends.
//!
//! Sources: the kernel's `include/uapi/linux/inet_diag.h`, `net/ipv4/inet_diag.c`.

use std::net::{IpAddr, SocketAddr};

use netlink::{Error, MessageFlags, NetlinkProtocol, NetlinkRequest, Socket};

/// `SOCK_DIAG_BY_FAMILY`.
const BY_FAMILY: u16 = 20;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const IPPROTO_TCP: u8 = 6;
/// `INET_DIAG_NOCOOKIE`, twice: whichever socket it is.
const NO_COOKIE: [u8; 8] = [0xff; 8];
/// Size of `struct inet_diag_msg`.
const ANSWER: usize = 72;
/// States in which a process can hold a client's socket that has been accepted: `TCP_ESTABLISHED`, `TCP_FIN_WAIT1`,
/// `TCP_FIN_WAIT2`. Without a connection of these ends the kernel answers with a listener at the port.
const CONNECTED: [u8; 3] = [1, 4, 5];

/// The user who made the socket at `theirs`, which is connected to ours, in the calling thread's network namespace;
/// `None`: no process holds it any more.
///
/// # Errors
/// The kernel does not answer, such as one without `inet_diag`.
pub(super) fn user(theirs: SocketAddr, ours: SocketAddr) -> Result<Option<u32>, Error> {
    let mut socket = Socket::open(NetlinkProtocol::Sockets)?;
    let replies = socket.get(question(theirs, ours))?;
    let answer = replies.iter().find_map(|reply| reply.header::<ANSWER>().ok());
    Ok(answer.and_then(|(answer, _)| holder(answer, theirs, ours)))
}

/// `struct inet_diag_req_v2`: "source" is the end that is asked about.
fn question(theirs: SocketAddr, ours: SocketAddr) -> NetlinkRequest {
    let family = if theirs.ip().to_canonical().is_ipv4() { AF_INET } else { AF_INET6 };
    let mut bytes = vec![family, IPPROTO_TCP, 0, 0];
    bytes.extend_from_slice(&u32::MAX.to_ne_bytes()); // in any state
    bytes.extend_from_slice(&ends(theirs, ours));
    bytes.extend_from_slice(&[0; 4]); // any interface
    bytes.extend_from_slice(&NO_COOKIE);
    NetlinkRequest::new(BY_FAMILY, MessageFlags::NONE, &bytes)
}

/// The first fields of `struct inet_diag_sockid`: ports, and addresses in 16 bytes each.
fn ends(theirs: SocketAddr, ours: SocketAddr) -> [u8; 36] {
    let mut bytes = [0; 36];
    let ports = [theirs, ours].into_iter().flat_map(|end| end.port().to_be_bytes());
    let addresses = [theirs, ours].into_iter().flat_map(|end| padded(end.ip()));
    bytes.iter_mut().zip(ports.chain(addresses)).for_each(|(to, from)| *to = from);
    bytes
}

fn padded(ip: IpAddr) -> [u8; 16] {
    let mut bytes = [0; 16];
    match ip.to_canonical() {
        IpAddr::V4(ip) => bytes.iter_mut().zip(ip.octets()).for_each(|(to, from)| *to = from),
        IpAddr::V6(ip) => bytes = ip.octets(),
    }
    bytes
}

/// Of a socket without a process the kernel says that it is root's; its inode is 0 then.
fn holder(answer: &[u8; ANSWER], theirs: SocketAddr, ours: SocketAddr) -> Option<u32> {
    let [_, state, _, _, rest @ ..] = answer;
    let (found, rest) = rest.split_first_chunk::<36>()?;
    let number = |at: usize| Some(u32::from_ne_bytes(*rest.get(at..)?.first_chunk()?));
    // Behind the ends: interface, cookie (8 bytes), expiry, both queues; then who and which.
    let (user, inode) = (number(24)?, number(28)?);
    let is_it = CONNECTED.contains(state) && *found == ends(theirs, ours) && inode != 0;
    is_it.then_some(user)
}

#[cfg(test)]
mod tests {
    use super::*;

    const THEIRS: &str = "127.0.0.1:40000";
    const OURS: &str = "127.0.0.1:9876";

    /// As the kernel answers: state, ends, user, inode.
    fn answer(state: u8, theirs: &str, ours: &str, user: u32, inode: u32) -> [u8; ANSWER] {
        let mut bytes = vec![AF_INET, state, 0, 0];
        bytes.extend_from_slice(&ends(theirs.parse().unwrap(), ours.parse().unwrap()));
        bytes.extend_from_slice(&[0; 24]);
        bytes.extend_from_slice(&user.to_ne_bytes());
        bytes.extend_from_slice(&inode.to_ne_bytes());
        bytes.try_into().unwrap()
    }

    #[test]
    fn only_a_process_that_holds_the_very_socket_is_its_user() {
        let held = |answer: [u8; ANSWER]| holder(&answer, THEIRS.parse().unwrap(), OURS.parse().unwrap());
        for state in CONNECTED {
            assert_eq!(held(answer(state, THEIRS, OURS, 7, 99)), Some(7));
            assert_eq!(held(answer(state, THEIRS, OURS, 0, 0)), None, "nobody's");
        }
        for (state, what) in [(6, "TIME_WAIT"), (10, "a listener"), (3, "SYN_RECV"), (7, "closed")] {
            assert_eq!(held(answer(state, THEIRS, OURS, 0, 99)), None, "{what}");
        }
        assert_eq!(held(answer(1, THEIRS, "127.0.0.1:80", 0, 99)), None, "another connection");
        assert_eq!(held(answer(1, "127.0.0.1:40001", OURS, 0, 99)), None, "another client");
    }
}
