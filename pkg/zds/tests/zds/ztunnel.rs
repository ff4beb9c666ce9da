//! A ztunnel that works on bytes alone.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use netns::NetnsId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, IoSliceMut};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::PATIENCE;

/// `WorkloadResponse{ack{}}`.
pub(crate) const ACK: &[u8] = b"\x0a\x00";
/// `ZdsHello{version: V1}`.
pub(crate) const HELLO: &[u8] = b"\x08\x01";

/// Request of the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Name, namespace and service account are its identity.
    Add {
        uid: String,
        who: [String; 3],
        netns: NetnsId,
    },
    Del(String),
    SnapshotSent,
    Keep(String),
}

pub(crate) struct Ztunnel {
    pub(crate) socket: OwnedFd,
}

impl Ztunnel {
    pub(crate) fn dial(path: &Path) -> Ztunnel {
        Ztunnel::try_dial(path).unwrap()
    }

    pub(crate) fn try_dial(path: &Path) -> Result<Ztunnel, Errno> {
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
        Ok(Ztunnel { socket })
    }

    pub(crate) fn hello(&self) {
        self.send(HELLO);
    }

    pub(crate) fn send(&self, bytes: &[u8]) {
        assert_eq!(self.try_send(bytes, &[]), Ok(bytes.len()));
    }

    pub(crate) fn try_send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<usize, Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
        rustix::net::sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
    }

    /// The next packet with its file descriptors; `None` at the end.
    pub(crate) fn receive(&self) -> Option<(Vec<u8>, Vec<OwnedFd>)> {
        let mut bytes = vec![0; 1024];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received =
            rustix::net::recvmsg(&self.socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags);
        let received = match received {
            Err(Errno::CONNRESET) => return None,
            received => received.unwrap(),
        };
        assert!(received.flags.is_empty() || received.flags.bits() == RecvFlags::CMSG_CLOEXEC.bits());
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        bytes.truncate(received.bytes);
        (received.bytes > 0).then_some((bytes, fds))
    }

    /// The next request; panics on any that ztunnel would not accept.
    pub(crate) fn asked(&self) -> Asked {
        self.try_asked().unwrap_or_else(|| panic!("the agent closed the connection"))
    }

    pub(crate) fn try_asked(&self) -> Option<Asked> {
        let (bytes, fds) = self.receive()?;
        let [(number, body)] = &fields(&bytes)[..] else { panic!("{bytes:x?}") };
        let fields = fields(body);
        if *number == 1 {
            let [(1, uid), (2, info)] = &fields[..] else { panic!("{bytes:x?}") };
            let [(1, name), (2, namespace), (3, account)] = &self::fields(info)[..] else {
                panic!("{bytes:x?}")
            };
            let [netns] = &fds[..] else { panic!("an Add with {} descriptors", fds.len()) };
            let stat = rustix::fs::fstat(netns).unwrap();
            let netns = NetnsId { dev: stat.st_dev, ino: stat.st_ino };
            return Some(Asked::Add {
                uid: text(uid),
                who: [name, namespace, account].map(|s| text(s)),
                netns,
            });
        }
        assert!(fds.is_empty(), "{bytes:x?} has a descriptor");
        Some(match (number, &fields[..]) {
            (2, [(2, uid)]) => Asked::Del(text(uid)),
            (3, []) => Asked::SnapshotSent,
            (5, [(1, uid)]) => Asked::Keep(text(uid)),
            _ => panic!("{bytes:x?}"),
        })
    }

    #[track_caller]
    pub(crate) fn acks(&self, expected: &Asked) {
        assert_eq!(self.asked(), *expected);
        self.send(ACK);
    }

    /// Acknowledges any Add; returns its UID and namespace.
    #[track_caller]
    pub(crate) fn acks_add(&self) -> (String, NetnsId) {
        let Asked::Add { uid, netns, .. } = self.asked() else { panic!("no Add") };
        self.send(ACK);
        (uid, netns)
    }

    #[track_caller]
    pub(crate) fn refuses(&self, expected: &Asked, error: &str) {
        assert_eq!(self.asked(), *expected);
        self.send(&nack(error));
    }

    /// Asserts that nothing is received for a time many times that of an answer; there is no other sign.
    #[track_caller]
    pub(crate) fn hears_nothing(&self) {
        assert!(!self.hears_within(Duration::from_millis(60)), "{:?}", self.try_asked());
    }

    pub(crate) fn hears_within(&self, time: Duration) -> bool {
        let mut ready = [PollFd::new(&self.socket, PollFlags::IN)];
        poll(&mut ready, Some(&Timespec::try_from(time).unwrap())).unwrap() > 0
    }

    /// Time until the agent closed the connection.
    #[track_caller]
    pub(crate) fn is_closed(&self) -> Duration {
        let began = Instant::now();
        assert!(self.receive().is_none(), "the agent goes on");
        began.elapsed()
    }
}

/// `WorkloadResponse{ack{error}}`.
pub(crate) fn nack(error: &str) -> Vec<u8> {
    field(1, &field(1, error.as_bytes()))
}

fn field(number: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    let mut length = body.len();
    while length > 0x7f {
        bytes.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    bytes.push(length as u8);
    [&bytes, body].concat()
}

/// Fields of a message that has only strings and messages.
fn fields(mut bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut fields = Vec::new();
    while let [tag, rest @ ..] = bytes {
        assert_eq!(tag & 7, 2, "wire type");
        let digits = rest.iter().position(|byte| *byte < 0x80).unwrap() + 1;
        let length = rest[..digits].iter().rev().fold(0, |sum, byte| sum << 7 | usize::from(byte & 0x7f));
        fields.push((tag >> 3, rest[digits..digits + length].to_vec()));
        bytes = &rest[digits + length..];
    }
    fields
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}
