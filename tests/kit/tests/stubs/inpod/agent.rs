//! The agent's side of ZDS without any behaviour of its own: a test determines every byte.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use kit::{Netns, TempDir};
use rustix::io::retry_on_intr;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    SocketAddrUnix, SocketFlags, SocketType,
};

pub(super) const LIMIT: Duration = Duration::from_secs(20);
/// Acknowledgement of success.
pub(super) const DONE: [u8; 2] = [0x0a, 0x00];
pub(super) const SNAPSHOT: [u8; 2] = [0x1a, 0x00];

/// A directory for a socket, with a listener or without.
pub(super) struct Agent {
    files: TempDir,
    listener: Option<OwnedFd>,
}

/// A connection of a ztunnel that has sent the hello.
pub(super) struct Connection(OwnedFd);

impl Agent {
    /// No listener.
    pub(super) fn absent() -> Self {
        Self { files: TempDir::new().unwrap(), listener: None }
    }

    pub(super) fn listening() -> Self {
        let mut agent = Self::absent();
        agent.listen();
        agent
    }

    pub(super) fn path(&self) -> PathBuf {
        self.files.path().join("ztunnel.sock")
    }

    pub(super) fn listen(&mut self) {
        let flags = SocketFlags::CLOEXEC;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        rustix::net::bind(&socket, &SocketAddrUnix::new(self.path()).unwrap()).unwrap();
        rustix::net::listen(&socket, 8).unwrap();
        set_socket_timeout(&socket, Timeout::Recv, Some(LIMIT)).unwrap();
        self.listener = Some(socket);
    }

    pub(super) fn accept(&self) -> Connection {
        let listener = self.listener.as_ref().expect("somebody listens");
        let socket = retry_on_intr(|| rustix::net::accept(listener)).expect("a ztunnel dials");
        set_socket_timeout(&socket, Timeout::Recv, Some(LIMIT)).unwrap();
        let connection = Connection(socket);
        assert_eq!(connection.receive(), [0x08, 0x01], "hello, version 1");
        connection
    }
}

impl Connection {
    pub(super) fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        }
        let sent =
            rustix::net::sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).unwrap();
        assert_eq!(sent, bytes.len());
    }

    /// A message, empty when ztunnel has closed the connection.
    pub(super) fn receive(&self) -> Vec<u8> {
        self.try_receive().expect("ztunnel answers")
    }

    fn try_receive(&self) -> rustix::io::Result<Vec<u8>> {
        let mut bytes = vec![0; 1024];
        let mut control = RecvAncillaryBuffer::default();
        let into = &mut [IoSliceMut::new(&mut bytes)];
        // The kernel restarts an interrupted call only without a timeout.
        let received =
            retry_on_intr(|| rustix::net::recvmsg(&self.0, into, &mut control, RecvFlags::empty()));
        let message = match received {
            // Closing with unread data resets the connection.
            Err(rustix::io::Errno::CONNRESET) => return Ok(Vec::new()),
            other => other?,
        };
        bytes.truncate(message.bytes);
        Ok(bytes)
    }

    /// Whether nothing is received for a while.
    pub(super) fn is_silent(&self) -> bool {
        set_socket_timeout(&self.0, Timeout::Recv, Some(Duration::from_millis(300))).unwrap();
        self.try_receive() == Err(rustix::io::Errno::AGAIN)
    }

    /// Sends without descriptors, and returns the answer.
    pub(super) fn ask(&self, bytes: &[u8]) -> Vec<u8> {
        self.send(bytes, &[]);
        self.receive()
    }

    /// Adds a pod of this UID, and returns the answer.
    pub(super) fn add(&self, uid: &str, netns: &Netns) -> Vec<u8> {
        self.send(&add(uid), &[open(netns).as_fd()]);
        self.receive()
    }
}

/// The descriptor of the namespace that the agent sends.
pub(super) fn open(netns: &Netns) -> OwnedFd {
    std::fs::File::open(netns.path()).unwrap().into()
}

pub(super) fn add(uid: &str) -> Vec<u8> {
    let info = [field(1, b"app"), field(2, b"default"), field(3, b"robot")].concat();
    field(1, &[field(1, uid.as_bytes()), field(2, &info)].concat())
}

pub(super) fn del(uid: &str) -> Vec<u8> {
    field(2, &field(2, uid.as_bytes()))
}

pub(super) fn keep(uid: &str) -> Vec<u8> {
    field(5, &field(1, uid.as_bytes()))
}

/// The error of an acknowledgement.
pub(super) fn refusal(answer: &[u8]) -> String {
    // WorkloadResponse { ack: Ack { error } }, with lengths of one or two bytes.
    let inner = payload(answer);
    assert!(!inner.is_empty(), "it is a success");
    String::from_utf8(payload(inner).to_vec()).unwrap()
}

fn payload(field: &[u8]) -> &[u8] {
    assert_eq!(field[0], 0x0a);
    let (length, start) = match field[1] {
        low @ 0x80.. => (usize::from(low & 0x7f) | usize::from(field[2]) << 7, 3),
        length => (usize::from(length), 2),
    };
    assert_eq!(field.len(), start + length, "{field:x?}");
    &field[start..]
}

pub(super) fn field(number: u8, value: &[u8]) -> Vec<u8> {
    let length = u8::try_from(value.len()).ok().filter(|length| *length < 0x80).expect("a short value");
    [&[number << 3 | 2, length], value].concat()
}
