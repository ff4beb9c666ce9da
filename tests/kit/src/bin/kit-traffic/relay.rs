//! A relay between two connections that is transparent to their peers.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use socket2::SockRef;

use crate::poller::{EventFlags, Poller};

/// Bytes in flight from one end to the other.
#[derive(Default)]
struct Flow {
    pending: Vec<u8>,
    /// The sender has shut down its side.
    ended: bool,
    /// The shutdown was passed on to the receiver.
    told: bool,
}

/// A relay. End 0 connected to us, we connected to end 1.
pub(crate) struct Relay {
    ends: [TcpStream; 2],
    /// Flow `i` carries data from end `i`.
    flows: [Flow; 2],
    registered: [EventFlags; 2],
    key: u64,
}

/// Size of one read; also the most that a flow buffers.
const CHUNK: usize = 64 * 1024;

impl Relay {
    /// A relay whose end 1 is still connecting; its sources have the keys `key` and `key + 1`.
    pub(crate) fn new(near: TcpStream, far: TcpStream, key: u64, poller: &Poller) -> io::Result<Self> {
        let mut registered = [EventFlags::empty(); 2];
        poller.change(&far, key + 1, &mut registered[1], EventFlags::OUT)?;
        Ok(Self { ends: [near, far], flows: Default::default(), registered, key })
    }

    /// Result of the connection to end 1, after an event on it.
    pub(crate) fn connected(&self) -> io::Result<()> {
        match self.ends[1].take_error()? {
            Some(error) => Err(error),
            None => self.ends[1].peer_addr().map(drop),
        }
    }

    /// Moves all available data. Returns whether more is to come.
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

    /// Resets both ends: an error of one end is passed on to the other.
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
                // The receiver may have closed already; reading from it reports that.
                let _ = to.shutdown(Shutdown::Write);
                return Ok(());
            }
            buffer.resize(CHUNK, 0);
            match (&self.ends[from]).read(buffer) {
                Ok(0) => flow.ended = true,
                Ok(length) => {
                    let written = write_some(to, &buffer[..length])?;
                    flow.pending.extend_from_slice(&buffer[written..length]);
                    // Less than fits: most likely nothing is left; if there is, epoll reports it.
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

/// Writes until it would block; returns the number of bytes.
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
