//! Many changes with one system call: independent of each other, or as one transaction.

use rustix::io::Errno;
use rustix::net::{RecvFlags, sockopt};

use super::Socket;
use crate::exchange::{Batch, ExchangeProgress};
use crate::{Error, MessageFlags, NetlinkRequest};

/// Changes that are sent together. If the kernel refuses each of them, its replies need about 1 KiB of the receive
/// buffer for each, which has 208 KiB.
const BATCH: usize = 64;

/// Bytes of the receive buffer for each change of a larger transaction; the kernel doubles them.
const REFUSAL: usize = 2 << 10;

/// Bytes that fit into one message: a socket's send buffer has 208 KiB (`net.core.wmem_default`), less on small
/// machines.
const SEND_BUFFER: usize = 64 << 10;

impl Socket {
    /// Sends many small changes, 64 with one system call, and waits for each such group. The kernel applies them in
    /// this order, independently. Returns the outcome of each.
    ///
    /// # Errors
    ///
    /// If an exchange fails, with [`Error`]s other than [`Error::Kernel`]; any part of the changes may have been made.
    pub fn send_batch(
        &mut self,
        messages: impl IntoIterator<Item = NetlinkRequest>,
    ) -> Result<Vec<Result<(), Error>>, Error> {
        let (mut messages, mut outcomes) = (messages.into_iter(), Vec::new());
        loop {
            let group: Vec<NetlinkRequest> = messages.by_ref().take(BATCH).collect();
            if group.is_empty() {
                return Ok(outcomes);
            }
            outcomes.extend(self.send_group(group)?);
        }
    }

    /// Sends changes between the messages that begin and end a transaction: all are applied, or none
    /// (`NFNL_MSG_BATCH_BEGIN`).
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] with the kernel's error for the first change that it refused, or for the whole; others if the
    /// exchange fails, after which it is unknown what was applied.
    pub fn send_transaction(
        &mut self,
        begin: NetlinkRequest,
        changes: Vec<NetlinkRequest>,
        end: NetlinkRequest,
    ) -> Result<(), Error> {
        if changes.is_empty() {
            return Ok(());
        }
        let count = changes.len();
        let mut batch = Batch::new_transaction(self.sequence.wrapping_add(1), count);
        let mut bytes = Vec::new();
        self.append_request(begin, MessageFlags::NONE, &mut bytes)?;
        self.put_group(changes, &mut bytes)?;
        self.append_request(end, MessageFlags::NONE, &mut bytes)?;
        // Beyond `net.core.wmem_max` and `rmem_max` outside of user namespaces only. Inside, sending more than twice the
        // former fails (EMSGSIZE), and `receive_transaction` handles refusals that do not fit.
        if bytes.len() > SEND_BUFFER {
            let _ = sockopt::set_socket_send_buffer_size_force(&self.fd, bytes.len())
                .or_else(|_| sockopt::set_socket_send_buffer_size(&self.fd, bytes.len()));
        }
        if count > BATCH {
            let _ = sockopt::set_socket_recv_buffer_size_force(&self.fd, count * REFUSAL);
        }
        self.send_bytes(&bytes)?;
        self.receive_transaction(&mut batch)?;
        batch.outcomes.into_iter().collect()
    }

    /// Receives the replies to a transaction. If the receive buffer did not hold all of them, the first ones suffice:
    /// one refusal refuses the transaction, and the kernel queues all replies before sending returns.
    fn receive_transaction(&mut self, batch: &mut Batch) -> Result<(), Error> {
        match self.receive_outcomes(batch, RecvFlags::TRUNC) {
            Err(overflow) if is_overflow(&overflow) => {
                let held = self.receive_outcomes(batch, RecvFlags::TRUNC | RecvFlags::DONTWAIT);
                let is_refused = batch.outcomes.iter().any(Result::is_err);
                if matches!(held, Err(Error::Timeout(_))) && is_refused { Ok(()) } else { Err(overflow) }
            }
            received => received,
        }
    }

    fn send_group(&mut self, group: Vec<NetlinkRequest>) -> Result<Vec<Result<(), Error>>, Error> {
        let mut batch = Batch::new(self.sequence.wrapping_add(1), group.len());
        let mut bytes = Vec::new();
        self.put_group(group, &mut bytes)?;
        self.send_bytes(&bytes)?;
        self.receive_outcomes(&mut batch, RecvFlags::TRUNC)?;
        Ok(batch.outcomes)
    }

    /// Only the last request of the group asks for an acknowledgement: the kernel replies to the others only if it
    /// refuses them.
    fn put_group(&mut self, group: Vec<NetlinkRequest>, bytes: &mut Vec<u8>) -> Result<(), Error> {
        let count = group.len();
        (1..).zip(group).try_for_each(|(number, message)| {
            let added = if number == count { MessageFlags::ACK } else { MessageFlags::NONE };
            self.append_request(message, added, bytes)
        })
    }

    fn receive_outcomes(&mut self, batch: &mut Batch, flags: RecvFlags) -> Result<(), Error> {
        while batch.process_datagram(self.receive_datagram_with(flags)?)? == ExchangeProgress::More {}
        Ok(())
    }
}

/// Returns whether replies are lost because the receive buffer was full.
fn is_overflow(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.raw_os_error() == Some(Errno::NOBUFS.raw_os_error()))
}
