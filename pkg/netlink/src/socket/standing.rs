//! Questions that are asked again and again, of which only a new answer is of interest.

use super::{NetlinkProtocol, Socket};
use crate::exchange::{Exchange, ExchangeProgress};
use crate::{Error, ListBounds, MessageFlags, NetlinkRequest};

/// Questions to the kernel that are sent with one system call, and what it answered last. To ask and learn that nothing is new
/// parses next to nothing, which is what counts for whoever asks ten times a second: the processor has forgotten his code by then.
#[derive(Debug)]
pub struct StandingQuestions {
    socket: Socket,
    questions: Vec<u8>,
    answers: Vec<u8>,
    before: Vec<u8>,
}

impl StandingQuestions {
    /// Opens a socket in the calling thread's netns for questions that the kernel answers in this order: `first` with one message,
    /// and `list` with a list.
    ///
    /// # Errors
    ///
    /// As [`Socket::open`], and if a question is too long for a message.
    pub fn open(
        protocol: NetlinkProtocol,
        mut first: NetlinkRequest,
        mut list: NetlinkRequest,
    ) -> Result<Self, Error> {
        let socket = Socket::open(protocol)?.with_bounds(ListBounds::POD);
        let mut questions = first.finish(FIRST, MessageFlags::REQUEST)?.to_vec();
        questions.extend_from_slice(list.finish(LIST, MessageFlags::REQUEST | MessageFlags::DUMP)?);
        Ok(Self { socket, questions, answers: Vec::new(), before: Vec::new() })
    }

    /// Asks, and returns whether the kernel answers with the same bytes as before; never at the first time.
    ///
    /// # Errors
    ///
    /// As [`Socket::dump`]; afterwards, open a new socket before asking again.
    pub fn have_same_answers(&mut self) -> Result<bool, Error> {
        std::mem::swap(&mut self.answers, &mut self.before);
        self.answers.clear();
        self.socket.send_bytes(&self.questions)?;
        self.receive_answers()?;
        Ok(self.answers == self.before)
    }

    fn receive_answers(&mut self) -> Result<(), Error> {
        let mut exchange = Exchange::new(LIST);
        loop {
            let length = self.socket.receive_datagram()?;
            let datagram = self.socket.buffer.get(..length).unwrap_or_default();
            self.answers.extend_from_slice(datagram);
            if exchange.process_datagram(datagram, &mut |_| {})? == ExchangeProgress::Ended {
                return Ok(());
            }
            if self.answers.len() > self.socket.bounds.bytes {
                return Err(Error::Bounds(self.socket.bounds));
            }
        }
    }
}

/// Numbers of the questions. They stay, so that the same answers have the same bytes.
const FIRST: u32 = 1;
const LIST: u32 = 2;
