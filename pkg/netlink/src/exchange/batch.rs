//! Replies to many changes that were sent together.

use super::{ExchangeProgress, NLMSG_ERROR, ack};
use crate::Error;
use crate::parse::MessageIter;

/// State of waiting for the end of a group of changes, of which only the last one is acknowledged.
#[derive(Debug)]
pub(crate) struct Batch {
    first: u32,
    /// The kernel's answer to each request, in their order.
    pub(crate) outcomes: Vec<Result<(), Error>>,
    /// Whether the first message begins a transaction.
    is_transaction: bool,
}

impl Batch {
    /// Creates the state for replies to `count` requests, the first of which has this sequence number.
    pub(crate) fn new(first: u32, count: usize) -> Self {
        Self { first, outcomes: (0..count).map(|_| Ok(())).collect(), is_transaction: false }
    }

    /// Like [`Batch::new`], but a message with this number precedes the requests and begins a transaction. Its outcome
    /// is the first. A reply to it applies to all requests, and may be the last reply.
    pub(crate) fn new_transaction(first: u32, count: usize) -> Self {
        Self { is_transaction: true, ..Self::new(first, count + 1) }
    }

    /// Processes the next datagram. The batch ends with the reply to the last request: the kernel replies in order.
    pub(crate) fn process_datagram(&mut self, bytes: &[u8]) -> Result<ExchangeProgress, Error> {
        for message in MessageIter::new(bytes) {
            let message = message?;
            if message.kind != NLMSG_ERROR {
                continue;
            }
            let Ok(index) = usize::try_from(message.sequence.wrapping_sub(self.first)) else { continue };
            let (count, Some(slot)) = (self.outcomes.len(), self.outcomes.get_mut(index)) else {
                continue; // an answer to a request that timed out
            };
            *slot = match ack::message_outcome(&message) {
                Ok(()) => Ok(()),
                Err(refused @ Error::Kernel { .. }) => Err(refused),
                Err(other) => return Err(other),
            };
            if index + 1 == count || (index == 0 && self.is_transaction) {
                return Ok(ExchangeProgress::Ended);
            }
        }
        Ok(ExchangeProgress::More)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Errno, MessageFlags, NetlinkRequest};

    fn answer(sequence: u32, code: i32) -> Vec<u8> {
        let payload = [code.to_ne_bytes().as_slice(), &[0; 16]].concat();
        NetlinkRequest::new(NLMSG_ERROR, MessageFlags::CAPPED, &payload)
            .finish(sequence, MessageFlags::NONE)
            .unwrap()
            .to_vec()
    }

    fn errnos(batch: Batch) -> Vec<Option<Errno>> {
        batch.outcomes.into_iter().map(|outcome| outcome.err().and_then(|error| error.errno())).collect()
    }

    #[test]
    fn silence_on_a_request_before_the_last_is_success() {
        let mut batch = Batch::new(7, 4);
        assert_eq!(batch.process_datagram(&answer(8, -17)).unwrap(), ExchangeProgress::More);
        assert_eq!(batch.process_datagram(&answer(10, 0)).unwrap(), ExchangeProgress::Ended);
        assert_eq!(errnos(batch), [None, Some(Errno::EXIST), None, None]);
    }

    #[test]
    fn the_last_can_be_refused_and_numbers_wrap_around() {
        let mut batch = Batch::new(u32::MAX, 2);
        let datagram = [answer(u32::MAX, -1), answer(0, -4103)].concat();
        assert_eq!(batch.process_datagram(&datagram).unwrap(), ExchangeProgress::Ended);
        assert_eq!(errnos(batch), [Some(Errno::PERM), Some(Errno(4103))]);
    }

    #[test]
    fn answers_to_other_requests_are_left_out() {
        let mut batch = Batch::new(7, 2);
        for stranger in [6, 9] {
            assert_eq!(batch.process_datagram(&answer(stranger, -1)).unwrap(), ExchangeProgress::More);
        }
        assert_eq!(errnos(batch), [None, None]);
    }

    #[test]
    fn a_transaction_ends_when_it_is_refused_as_a_whole() {
        let mut batch = Batch::new_transaction(7, 2);
        assert_eq!(batch.process_datagram(&answer(8, -16)).unwrap(), ExchangeProgress::More);
        assert_eq!(batch.process_datagram(&answer(9, 0)).unwrap(), ExchangeProgress::Ended);
        assert_eq!(errnos(batch), [None, Some(Errno::BUSY), None]);
        let mut batch = Batch::new_transaction(7, 2);
        assert_eq!(batch.process_datagram(&answer(7, -1)).unwrap(), ExchangeProgress::Ended);
        assert_eq!(errnos(batch), [Some(Errno::PERM), None, None]);
    }

    proptest! {
        #[test]
        fn arbitrary_datagrams_never_panic(datagram in prop::collection::vec(any::<u8>(), 0..200), count in 0..5_usize) {
            let _ = Batch::new(7, count).process_datagram(&datagram);
        }
    }
}
