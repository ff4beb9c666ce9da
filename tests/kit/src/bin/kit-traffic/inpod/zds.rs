//! Messages of ZDS, encoded and decoded byte by byte, and their socket. As the agent's peer, it shares no code with it.
//!
//! Ztunnel skips unknown fields and accepts an empty UID, which then has no effect and is not reported. Here both are errors.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags,
    SocketAddrUnix, SocketFlags, SocketType,
};

/// `ZdsHello` with version V1.
const HELLO: [u8; 2] = [0x08, 0x01];
/// Maximum length of a message that either side reads.
const LONGEST: usize = 1024;

/// Identity of a pod.
#[derive(Clone, Default)]
pub(crate) struct Info {
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) service_account: String,
}

/// `WorkloadRequest`.
pub(crate) enum Request {
    Add { uid: String, info: Option<Info>, netns: OwnedFd },
    Del { uid: String },
    SnapshotSent,
    Keep { uid: String },
}

/// Result of a read.
pub(crate) enum Received {
    /// A message, or the reason why it is invalid.
    Message(Result<Request, String>),
    /// Nothing to read at present.
    Nothing,
    /// The agent closed the connection.
    End,
}

/// A connection to the agent.
pub(crate) struct Channel(OwnedFd);

impl Channel {
    /// Connects without blocking and sends the hello.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        let channel = Self(socket);
        channel.send(&HELLO)?;
        Ok(channel)
    }

    /// Acknowledges a request; no error means success.
    pub(crate) fn acknowledge(&self, error: Option<&str>) -> io::Result<()> {
        let text = error.map_or_else(Vec::new, |error| field(1, error.as_bytes()));
        self.send(&field(1, &text))
    }

    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let mut nothing = rustix::net::SendAncillaryBuffer::default();
        let sent = rustix::net::sendmsg(&self.0, &[IoSlice::new(bytes)], &mut nothing, SendFlags::NOSIGNAL)?;
        assert_eq!(sent, bytes.len(), "a packet is sent whole");
        Ok(())
    }

    pub(crate) fn receive(&self) -> io::Result<Received> {
        let (mut bytes, mut fds) = ([0; LONGEST], Vec::new());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let into = &mut [IoSliceMut::new(&mut bytes)];
        let message = match rustix::net::recvmsg(&self.0, into, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(message) => message,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(Received::Nothing),
            Err(error) => return Err(error.into()),
        };
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = part {
                fds.extend(rights);
            }
        }
        if message.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Ok(Received::Message(Err("the message is truncated".to_owned())));
        }
        if message.bytes == 0 {
            return Ok(Received::End);
        }
        Ok(Received::Message(request(&bytes[..message.bytes], fds)))
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn request(bytes: &[u8], mut fds: Vec<OwnedFd>) -> Result<Request, String> {
    let payloads = fields("WorkloadRequest", bytes, &[1, 2, 3, 5])?;
    let [(number, payload)] = payloads[..] else {
        return Err(format!("{} payloads instead of one", payloads.len()));
    };
    let wanted = usize::from(number == 1);
    if fds.len() != wanted {
        return Err(format!("payload {number} came with {} file descriptors, not {wanted}", fds.len()));
    }
    match (number, fds.pop()) {
        (1, Some(netns)) => add(payload, netns),
        (2, _) => Ok(Request::Del { uid: uid("DelWorkload", payload, 2)? }),
        (3, _) => fields("SnapshotSent", payload, &[]).map(|_| Request::SnapshotSent),
        _ => Ok(Request::Keep { uid: uid("KeepWorkload", payload, 1)? }),
    }
}

fn add(payload: &[u8], netns: OwnedFd) -> Result<Request, String> {
    let (mut uid, mut info) = (String::new(), None);
    for (number, value) in fields("AddWorkload", payload, &[1, 2])? {
        match number {
            1 => uid = text("uid", value)?,
            _ => info = Some(workload_info(value)?),
        }
    }
    named(uid).map(|uid| Request::Add { uid, info, netns })
}

fn workload_info(payload: &[u8]) -> Result<Info, String> {
    let mut info = Info::default();
    for (number, value) in fields("WorkloadInfo", payload, &[1, 2, 3])? {
        match number {
            1 => info.name = text("name", value)?,
            2 => info.namespace = text("namespace", value)?,
            _ => info.service_account = text("service_account", value)?,
        }
    }
    Ok(info)
}

/// UID of a message that has no other field.
fn uid(message: &str, payload: &[u8], number: u64) -> Result<String, String> {
    let mut uid = String::new();
    for (_, value) in fields(message, payload, &[number])? {
        uid = text("uid", value)?;
    }
    named(uid)
}

fn named(uid: String) -> Result<String, String> {
    if uid.is_empty() { Err("the uid is empty".to_owned()) } else { Ok(uid) }
}

fn text(what: &str, bytes: &[u8]) -> Result<String, String> {
    String::from_utf8(bytes.to_vec()).map_err(|_| format!("{what} is not UTF-8"))
}

/// Fields of a message whose fields are all length-delimited, as strings and messages are.
fn fields<'bytes>(
    message: &str,
    mut bytes: &'bytes [u8],
    known: &[u64],
) -> Result<Vec<(u64, &'bytes [u8])>, String> {
    const WITH_LENGTH: u64 = 2;
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes).ok_or_else(|| format!("{message} ends in a key"))?;
        let (number, kind) = (key >> 3, key & 7);
        if kind != WITH_LENGTH || !known.contains(&number) {
            return Err(format!("{message} has no field {number} of wire type {kind}"));
        }
        let length = varint(&mut bytes).and_then(|length| usize::try_from(length).ok());
        let value = length.and_then(|length| bytes.split_off(..length));
        found.push((number, value.ok_or_else(|| format!("{message} ends in field {number}"))?));
    }
    Ok(found)
}

/// Consumes a varint at the front.
fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = bytes.split_off_first()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// A length-delimited field.
fn field(number: u8, value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    let mut length = value.len();
    while length >= 0x80 {
        bytes.push(length as u8 | 0x80);
        length >>= 7;
    }
    bytes.push(length as u8);
    bytes.extend_from_slice(value);
    bytes
}
