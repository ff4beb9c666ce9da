//! Two connections that are one to those at their ends.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use socket2::SockRef;

use crate::poller::{EventFlags, Poller};

/// Bytes on their way from one end to the other.
#[derive(Default)]
struct Flow {
    pending: Vec<u8>,
    /// The sender has said its last word.
    ended: bool,
    /// The receiver knows.
    told: bool,
}

/// The relay. End 0 is who connected to us, end 1 is whom we connected to.
pub(crate) struct Relay {
    ends: [TcpStream; 2],
    /// Flow `i` comes from end `i`.
    flows: [Flow; 2],
    registered: [EventFlags; 2],
    key: u64,
}

/// Read at once; also the most that a flow holds.
const CHUNK: usize = 64 * 1024;

impl Relay {
    /// A relay whose end 1 is still connecting; its sources are known as `key` and `key + 1`.
    pub(crate) fn new(near: TcpStream, far: TcpStream, key: u64, poller: &Poller) -> io::Result<Self> {
        let mut registered = [EventFlags::empty(); 2];
        poller.change(&far, key + 1, &mut registered[1], EventFlags::OUT)?;
        Ok(Self { ends: [near, far], flows: Default::default(), registered, key })
    }

    /// What became of the connection at end 1, now that something did.
    pub(crate) fn connected(&self) -> io::Result<()> {
        match self.ends[1].take_error()? {
            Some(error) => Err(error),
            None => self.ends[1].peer_addr().map(drop),
        }
    }

    /// Moves what can be moved. Returns whether anything is still to come.
    pub(crate) fn pump(&mut self, poller: &Poller, buffer: &mut Vec<u8>) -> io::Result<bool> {
        for from in 0..2 {
            self.pump_from(from, buffer)?;
        }
        for end in 0..2 {
            let wanted = self.wanted(end);
            poller.change(&self.ends[end], self.key + end as u64, &mut self.registered[end], wanted)?;
        }
        Ok(!self.flows.iter().all(|flow| flow.told))
    }

    /// Both ends get a reset: what is wrong with one is wrong with the other.
    pub(crate) fn abort(self) {
        for end in &self.ends {
            let _ = SockRef::from(end).set_linger(Some(Duration::ZERO));
        }
    }

    fn wanted(&self, end: usize) -> EventFlags {
        let (from, to) = (&self.flows[end], &self.flows[1 - end]);
        let mut wanted = EventFlags::empty();
        wanted.set(EventFlags::IN, !from.ended && from.pending.is_empty());
        wanted.set(EventFlags::OUT, !to.pending.is_empty());
        wanted
    }

    fn pump_from(&mut self, from: usize, buffer: &mut Vec<u8>) -> io::Result<()> {
        let flow = &mut self.flows[from];
        let mut to = &self.ends[1 - from];
        loop {
            let written = write_some(to, &flow.pending)?;
            flow.pending.drain(..written);
            if !flow.pending.is_empty() || flow.told {
                return Ok(());
            }
            if flow.ended {
                flow.told = true;
                // The receiver may be gone already, which it then said itself.
                let _ = to.shutdown(Shutdown::Write);
                return Ok(());
            }
            buffer.resize(CHUNK, 0);
            match (&self.ends[from]).read(buffer) {
                Ok(0) => flow.ended = true,
                Ok(length) => {
                    let written = write_some(to, &buffer[..length])?;
                    flow.pending.extend_from_slice(&buffer[written..length]);
                    // Less than fits: most likely there is no more, and if there is, we are told.
                    if written == length && length < CHUNK {
                        return to.flush();
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Writes until it would block; returns how much that was.
fn write_some(mut to: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    let mut written = 0;
    while written < bytes.len() {
        match to.write(&bytes[written..]) {
            Ok(length) => written += length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(written)
}
