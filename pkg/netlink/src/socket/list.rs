//! Lists of objects (dumps): within limits, and requested again if the objects changed meanwhile.

use std::time::Instant;

use super::{ParseReply, ReplyMessages, Socket};
use crate::exchange::{Exchange, ExchangeProgress};
use crate::parse::ReceivedMessage;
use crate::{Error, ListBounds, MessageFlags, NetlinkRequest};

/// Maximum number of requests for a list whose objects changed meanwhile.
const DUMP_ATTEMPTS: u32 = 8;

impl Socket {
    /// Requests a list, up to eight times if the kernel reports that it changed while it was read.
    ///
    /// # Errors
    ///
    /// As [`Socket::request`], [`Error::Interrupted`] and [`Error::Bounds`]; after the last, open a new socket before
    /// the next request.
    pub fn dump(&mut self, message: &NetlinkRequest) -> Result<ReplyMessages, Error> {
        match self.dump_until(message, self.bounds)? {
            (replies, true) => Ok(replies),
            (_, false) => Err(Error::Bounds(self.bounds)),
        }
    }

    /// Requests a list as [`Socket::dump`] does, and keeps the objects for which `keep` returns true, given those kept
    /// so far. The rest of the list takes time, but no memory: only kept messages count towards the bytes of
    /// [`ListBounds`].
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

    /// Requests a list once, and passes on its messages as they arrive: at most one datagram is in memory.
    ///
    /// # Errors
    ///
    /// As [`Socket::dump`]. After [`Error::Interrupted`], the list is incomplete; it may be requested again.
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

    /// Requests the beginning of a list: its first `bytes` bytes at most. Also returns the socket if that is the
    /// complete list; otherwise the socket is closed, because the kernel would continue the list.
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

    /// Like [`Socket::dump_head`], with these limits, for callers that open a new socket if the list is incomplete.
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

    /// Requests a list, whose messages `take` adds to a collection; it returns whether a message counts towards the
    /// bytes. Also returns whether the list is complete.
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
            let datagram = self.receive_datagram()?;
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
