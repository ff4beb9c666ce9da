//! Replies to one request, in contiguous memory.

use crate::parse::ReceivedMessage;
use crate::{Error, Malformed, MessageFlags};

/// Parses one message; `None`: another kind of message.
pub type ParseReply<T> = fn(&ReceivedMessage<'_>) -> Result<Option<T>, Malformed>;

/// The messages of a reply, in the kernel's order.
#[derive(Clone, Debug, Default)]
pub struct ReplyMessages {
    messages: Vec<(u16, MessageFlags, usize)>,
    payloads: Vec<u8>,
}

impl ReplyMessages {
    /// Returns the number of messages.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Returns whether there are no messages.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Returns the messages. (`sequence` is 0, because it is no longer needed.)
    pub fn iter(&self) -> impl Iterator<Item = ReceivedMessage<'_>> {
        let mut rest = self.payloads.as_slice();
        self.messages.iter().map_while(move |&(kind, flags, length)| {
            let (payload, after) = rest.split_at_checked(length)?;
            rest = after;
            Some(ReceivedMessage { kind, flags, sequence: 0, payload })
        })
    }

    /// Parses the messages; `parse` returns `None` for another kind of message.
    ///
    /// # Errors
    /// A message is malformed.
    pub fn parse_all<T>(&self, parse: ParseReply<T>) -> Result<Vec<T>, Error> {
        Ok(self.iter().filter_map(|reply| parse(&reply).transpose()).collect::<Result<_, _>>()?)
    }

    /// Like [`ReplyMessages::parse_all`], up to the first of the kind.
    ///
    /// # Errors
    /// As [`ReplyMessages::parse_all`].
    pub fn parse_first<T>(&self, parse: ParseReply<T>) -> Result<Option<T>, Error> {
        Ok(self.iter().find_map(|reply| parse(&reply).transpose()).transpose()?)
    }

    pub(super) fn push(&mut self, message: &ReceivedMessage<'_>) {
        self.messages.push((message.kind, message.flags, message.payload.len()));
        self.payloads.extend_from_slice(message.payload);
    }
}
