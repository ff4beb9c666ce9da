//! Errors of conversations with ztunnels.

use std::io;
use std::time::Duration;

use prost::DecodeError;
use rustix::io::Errno;

/// Reason why a conversation with a ztunnel ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConversationEnd {
    #[error("it closed the connection")]
    Closed,
    #[error("cannot determine its user: {0}")]
    Peer(io::Error),
    #[error("it runs as user {0}, not as root")]
    NotRoot(u32),
    #[error("no hello within {0:?}")]
    NoHello(Duration),
    #[error("its hello cannot be read: {0}")]
    Hello(DecodeError),
    #[error("its hello names no version")]
    NoVersion,
    #[error("cannot create the event that wakes its thread: {0}")]
    Event(Errno),
    #[error("cannot wait for it: {0}")]
    Wait(io::Error),
    #[error("cannot send: {0}")]
    Send(Errno),
    #[error("it accepted no request within {0:?}")]
    NotAccepted(Duration),
    #[error("no answer within {0:?}")]
    NoAnswer(Duration),
    #[error("cannot receive: {0}")]
    Receive(Errno),
    #[error("its message is longer than {0} bytes")]
    TooLong(usize),
    #[error("it sent file descriptors")]
    Descriptors,
    #[error("its answer cannot be read: {0}")]
    Answer(DecodeError),
    #[error("it sent a message that is not an answer")]
    NoAck,
    #[error("it sent an unsolicited message")]
    Unasked,
    #[error("it refuses the end of the snapshot: {0}")]
    Snapshot(String),
}
