//! Replies to one request, from datagrams to an outcome. No I/O: the socket passes the datagrams in.

use crate::parse::{MessageIter, ReceivedMessage};
use crate::{Error, MessageFlags};

mod ack;
mod batch;

pub(crate) use batch::Batch;

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// First message type of a family; lower types are netlink's own (`NLMSG_MIN_TYPE`).
const FIRST_FAMILY_TYPE: u16 = 0x10;

/// Whether more messages are expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExchangeProgress {
    More,
    Ended,
}

/// State of waiting for the end of one request.
#[derive(Debug)]
pub(crate) struct Exchange {
    sequence: u32,
    interrupted: bool,
}

impl Exchange {
    /// Creates the state for replies to the request with this sequence number.
    pub(crate) const fn new(sequence: u32) -> Self {
        Self { sequence, interrupted: false }
    }

    /// Processes the next datagram and passes on the replies in it.
    ///
    /// An interrupted dump is reported only at its end: the kernel starts no other dump on the socket before.
    pub(crate) fn process_datagram(
        &mut self,
        bytes: &[u8],
        each: &mut dyn FnMut(&ReceivedMessage<'_>),
    ) -> Result<ExchangeProgress, Error> {
        for message in MessageIter::new(bytes) {
            let message = message?;
            if message.sequence != self.sequence {
                continue; // an answer to a request that timed out
            }
            self.interrupted |= is_part(&message) && message.flags.contains(MessageFlags::DUMP_INTERRUPTED);
            match message.kind {
                NLMSG_ERROR | NLMSG_DONE => {
                    ack::message_outcome(&message)?;
                    return if self.interrupted {
                        Err(Error::Interrupted(1))
                    } else {
                        Ok(ExchangeProgress::Ended)
                    };
                }
                FIRST_FAMILY_TYPE.. => each(&message),
                _ => {} // NLMSG_NOOP, NLMSG_OVERRUN
            }
        }
        Ok(ExchangeProgress::More)
    }
}

/// Returns whether the flags of this message are those of a part of a dump: in an acknowledgement the same bits have
/// another meaning.
const fn is_part(message: &ReceivedMessage<'_>) -> bool {
    message.kind >= FIRST_FAMILY_TYPE || message.kind == NLMSG_DONE
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Errno, NetlinkRequest};

    const OURS: u32 = 7;

    fn bytes(kind: u16, flags: MessageFlags, sequence: u32, payload: &[u8]) -> Vec<u8> {
        NetlinkRequest::new(kind, flags, payload).finish(sequence, MessageFlags::NONE).unwrap().to_vec()
    }

    /// `NLM_F_MULTI`: one of several parts.
    const MULTI: MessageFlags = MessageFlags(0x2);

    fn ended(sequence: u32, code: i32) -> Vec<u8> {
        bytes(NLMSG_DONE, MULTI, sequence, &code.to_ne_bytes())
    }

    /// Feeds datagrams; returns the payloads' first bytes and the end, if any.
    fn feed(datagrams: &[Vec<u8>]) -> (Vec<u8>, Result<ExchangeProgress, Error>) {
        let (mut exchange, mut seen) = (Exchange::new(OURS), Vec::new());
        for datagram in datagrams {
            let step = exchange.process_datagram(datagram, &mut |reply| seen.push(reply.payload[0]));
            if !matches!(step, Ok(ExchangeProgress::More)) {
                return (seen, step);
            }
        }
        (seen, Ok(ExchangeProgress::More))
    }

    #[test]
    fn parts_come_in_several_datagrams_until_the_end() {
        let part = |number| bytes(20, MULTI, OURS, &[number; 4]);
        let (seen, outcome) = feed(&[[part(1), part(2)].concat(), part(3), ended(OURS, 0), part(4)]);
        assert_eq!(seen, [1, 2, 3]);
        assert_eq!(outcome.unwrap(), ExchangeProgress::Ended);
        assert_eq!(feed(&[part(1)]).1.unwrap(), ExchangeProgress::More);
    }

    #[test]
    fn answers_to_other_requests_are_left_out() {
        let late = [bytes(20, MULTI, OURS - 1, &[9; 4]), ended(OURS - 1, -22)].concat();
        let (seen, outcome) = feed(&[late, bytes(20, MULTI, OURS, &[1; 4]), ended(OURS, 0)]);
        assert_eq!((seen, outcome.unwrap()), (vec![1], ExchangeProgress::Ended));
    }

    #[test]
    fn a_list_that_changed_is_read_to_its_end_and_refused() {
        let changed = MULTI | MessageFlags::DUMP_INTERRUPTED;
        let part = |flags| bytes(20, flags, OURS, &[1; 4]);
        let (seen, outcome) = feed(&[part(changed), part(MULTI), ended(OURS, 0)]);
        assert_eq!(seen.len(), 2);
        assert!(matches!(outcome, Err(Error::Interrupted(_))));
        let at_end = bytes(NLMSG_DONE, changed, OURS, &[0; 4]);
        assert!(matches!(feed(&[at_end]).1, Err(Error::Interrupted(_))));
    }

    #[test]
    fn a_list_can_fail_at_its_end() {
        let (_, outcome) = feed(&[bytes(20, MULTI, OURS, &[1; 4]), ended(OURS, -1)]);
        assert_eq!(outcome.unwrap_err().errno(), Some(Errno::PERM));
    }

    #[test]
    fn a_datagram_cut_short_is_malformed() {
        let mut cut = bytes(20, MULTI, OURS, &[1; 8]);
        cut.truncate(20);
        assert!(matches!(feed(&[cut]).1, Err(Error::Malformed(_))));
    }

    proptest! {
        #[test]
        fn arbitrary_datagrams_never_panic(datagram in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Exchange::new(OURS).process_datagram(&datagram, &mut |_| {});
        }
    }
}
