//! TCP with a deadline on every operation.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Point in time after which no operation waits any longer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Instant);

impl Deadline {
    pub(crate) fn after(duration: Duration) -> Self {
        // No operation should wait for a day; a longer duration could overflow.
        Deadline(Instant::now() + duration.min(Duration::from_secs(86_400)))
    }

    /// Returns the time that is left; an error of kind `TimedOut` if there is none.
    pub(crate) fn time_left(self) -> io::Result<Duration> {
        let left = self.0.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(timed_out()) } else { Ok(left) }
    }
}

fn timed_out() -> io::Error {
    io::Error::new(ErrorKind::TimedOut, "no time left")
}

/// Connection on which every single read and write is limited to the rest of the deadline, so that a peer that sends an occasional
/// byte cannot extend it.
#[derive(Debug)]
pub(crate) struct DeadlineStream {
    stream: TcpStream,
    deadline: Deadline,
}

impl DeadlineStream {
    /// Tries the addresses in their order, each with its share of the remaining time.
    pub(crate) fn open(addresses: &[IpAddr], port: u16, deadline: Deadline) -> io::Result<Self> {
        let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
        for (tried, address) in addresses.iter().enumerate() {
            let share = deadline.time_left()? / u32::try_from(addresses.len() - tried).unwrap_or(u32::MAX);
            match TcpStream::connect_timeout(&SocketAddr::new(*address, port), share) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    return Ok(DeadlineStream { stream, deadline });
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

impl Read for DeadlineStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.deadline.time_left()?))?;
        self.stream.read(buffer).map_err(as_time_out)
    }
}

impl Write for DeadlineStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.deadline.time_left()?))?;
        self.stream.write(bytes).map_err(as_time_out)
    }

    /// TLS writes several records at a time, which belong in one segment.
    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.deadline.time_left()?))?;
        self.stream.write_vectored(parts).map_err(as_time_out)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Converts `EAGAIN`, by which a socket time-out is reported (socket(7), `SO_RCVTIMEO`).
fn as_time_out(error: io::Error) -> io::Error {
    if error.kind() == ErrorKind::WouldBlock { timed_out() } else { error }
}
