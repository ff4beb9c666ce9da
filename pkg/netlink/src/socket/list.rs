//! Lists of objects (dumps): within bounds, and asked for again if they changed meanwhile.

use std::time::Instant;

use super::{ReplyMessages, Socket};
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
        self.receive_list(each, bytes, deadline)
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

    fn dump_until(
        &mut self,
        message: &NetlinkRequest,
        bounds: ListBounds,
    ) -> Result<(ReplyMessages, bool), Error> {
        let deadline = Instant::now() + bounds.time;
        for _ in 0..DUMP_ATTEMPTS {
            self.send(message.clone(), MessageFlags::DUMP)?;
            let mut replies = ReplyMessages::default();
            match self.receive_list(&mut |reply| replies.push(reply), bounds.bytes, deadline) {
                Err(Error::Interrupted(_)) => {}
                Err(Error::Bounds(_)) if Instant::now() >= deadline => return Err(Error::Bounds(bounds)),
                Err(Error::Bounds(_)) => return Ok((replies, false)),
                Err(other) => return Err(other),
                Ok(()) => return Ok((replies, true)),
            }
        }
        Err(Error::Interrupted(DUMP_ATTEMPTS))
    }

    fn receive_list(
        &mut self,
        each: &mut dyn FnMut(&ReceivedMessage<'_>),
        bytes: usize,
        deadline: Instant,
    ) -> Result<(), Error> {
        let (mut exchange, mut received) = (Exchange::new(self.sequence), 0);
        loop {
            let length = self.receive_datagram()?;
            let datagram = self.buffer.get(..length).unwrap_or_default();
            let progress = exchange.process_datagram(datagram, &mut |reply: &ReceivedMessage<'_>| {
                received += reply.payload.len();
                each(reply);
            })?;
            if progress == ExchangeProgress::Ended {
                return Ok(());
            }
            if received > bytes || Instant::now() >= deadline {
                return Err(Error::Bounds(self.bounds));
            }
        }
    }
}
