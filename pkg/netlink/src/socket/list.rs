//! Lists of objects (dumps): within bounds, and asked for again if they changed meanwhile.

use std::time::Instant;

use super::{ParseReply, ReplyMessages, Socket};
use crate::exchange::{Exchange, ExchangeProgress};
use crate::parse::ReceivedMessage;
use crate::{Error, ListBounds, MessageFlags, NetlinkRequest};

/// How often a list is asked for again when its objects changed meanwhile.
const DUMP_ATTEMPTS: u32 = 8;

impl Socket {
    /// Asks for a list; asks again, up to eight times, if the kernel says that it changed while it was read.
    ///
    /// # Errors
    ///
    /// As [`Socket::request`], [`Error::Interrupted`] and [`Error::Bounds`]; after the last, open a new socket before asking
    /// again.
    pub fn dump(&mut self, message: &NetlinkRequest) -> Result<ReplyMessages, Error> {
        match self.dump_until(message, self.bounds)? {
            (replies, true) => Ok(replies),
            (_, false) => Err(Error::Bounds(self.bounds)),
        }
    }

    /// Asks for a list as [`Socket::dump`] does, and keeps what `keep` says, which is told what is kept already. The rest of the list
    /// costs time, but no memory: only messages that are kept count towards the bytes of [`ListBounds`].
    ///
    /// # Errors
    ///
    /// As [`Socket::dump`]; a message is malformed.
    pub fn dump_some<T>(
        &mut self,
        message: &NetlinkRequest,
        parse: ParseReply<T>,
        mut keep: impl FnMut(&[T], &T) -> bool,
    ) -> Result<Vec<T>, Error> {
        let take = |(kept, malformed): &mut (Vec<T>, Option<_>), reply: &ReceivedMessage<'_>| {
            match parse(reply) {
                Ok(Some(found)) if keep(kept, &found) => kept.push(found),
                Ok(_) => return false,
                Err(error) => *malformed = Some(error),
            }
            true
        };
        match self.dump_into(message, self.bounds, take)? {
            ((_, Some(malformed)), _) => Err(malformed.into()),
            ((kept, None), true) => Ok(kept),
            (_, false) => Err(Error::Bounds(self.bounds)),
        }
    }

    /// Asks for a list once, and hands over its messages as they come: no more of it is held than one datagram.
    ///
    /// # Errors
    ///
    /// As [`Socket::dump`]. After [`Error::Interrupted`], what was handed over is not the whole list; it may be asked for again.
    pub fn dump_each(
        &mut self,
        message: &NetlinkRequest,
        each: &mut dyn FnMut(&ReceivedMessage<'_>),
    ) -> Result<(), Error> {
        let (bytes, deadline) = (self.bounds.bytes, Instant::now() + self.bounds.time);
        self.send(message.clone(), MessageFlags::DUMP)?;
        self.receive_list(
            &mut |reply| {
                each(reply);
                true
            },
            bytes,
            deadline,
        )
    }

    /// Asks for the beginning of a list: what comes before it has more than `bytes`. If that is all of it, the socket is in the
    /// second place; otherwise it ends here, for the kernel would go on with the list.
    ///
    /// # Errors
    ///
    /// As [`Socket::dump`].
    pub fn dump_head(
        mut self,
        message: &NetlinkRequest,
        bytes: usize,
    ) -> Result<(ReplyMessages, Option<Socket>), Error> {
        let (replies, is_all) = self.dump_until(message, ListBounds { bytes, ..self.bounds })?;
        Ok((replies, is_all.then_some(self)))
    }

    /// As [`Socket::dump_head`], within these bounds, and for whoever opens a new socket if that is not all.
    ///
    /// # Errors
    ///
    /// As [`Socket::dump`].
    pub fn dump_until(
        &mut self,
        message: &NetlinkRequest,
        bounds: ListBounds,
    ) -> Result<(ReplyMessages, bool), Error> {
        self.dump_into(message, bounds, |replies: &mut ReplyMessages, reply| {
            replies.push(reply);
            true
        })
    }

    /// Has `take` put a list's messages into a collection, and say which of them count towards the bytes. Whether that is all of the
    /// list is in the second place.
    fn dump_into<C: Default>(
        &mut self,
        message: &NetlinkRequest,
        bounds: ListBounds,
        mut take: impl FnMut(&mut C, &ReceivedMessage<'_>) -> bool,
    ) -> Result<(C, bool), Error> {
        let deadline = Instant::now() + bounds.time;
        for _ in 0..DUMP_ATTEMPTS {
            self.send(message.clone(), MessageFlags::DUMP)?;
            let mut taken = C::default();
            match self.receive_list(&mut |reply| take(&mut taken, reply), bounds.bytes, deadline) {
                Err(Error::Interrupted(_)) => {}
                Err(Error::Bounds(_)) if Instant::now() >= deadline => return Err(Error::Bounds(bounds)),
                Err(Error::Bounds(_)) => return Ok((taken, false)),
                Err(other) => return Err(other),
                Ok(()) => return Ok((taken, true)),
            }
        }
        Err(Error::Interrupted(DUMP_ATTEMPTS))
    }

    fn receive_list(
        &mut self,
        take: &mut dyn FnMut(&ReceivedMessage<'_>) -> bool,
        bytes: usize,
        deadline: Instant,
    ) -> Result<(), Error> {
        let (mut exchange, mut taken) = (Exchange::new(self.sequence), 0);
        loop {
            let length = self.receive_datagram()?;
            let datagram = self.buffer.get(..length).unwrap_or_default();
            let progress = exchange.process_datagram(datagram, &mut |reply: &ReceivedMessage<'_>| {
                taken += if take(reply) { reply.payload.len() } else { 0 };
            })?;
            if progress == ExchangeProgress::Ended {
                return Ok(());
            }
            if taken > bytes || Instant::now() >= deadline {
                return Err(Error::Bounds(self.bounds));
            }
        }
    }
}
