//! TCP with a deadline on everything.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// A point in time after which nothing waits any more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Instant);

impl Deadline {
    pub(crate) fn after(duration: Duration) -> Self {
        // Nothing here is to wait for a day; a longer duration would overflow at last.
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

/// A connection on which every single read and write gets only what is left of the deadline. A peer that sends a byte
/// now and then cannot hold it longer.
#[derive(Debug)]
pub(crate) struct DeadlineStream {
    stream: TcpStream,
    deadline: Deadline,
}

impl DeadlineStream {
    /// Tries the addresses in their order, each with its share of what is left.
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

    /// TLS hands over several records at once; they belong into one segment.
    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.deadline.time_left()?))?;
        self.stream.write_vectored(parts).map_err(as_time_out)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// A socket time-out shows as `EAGAIN` (socket(7), `SO_RCVTIMEO`).
fn as_time_out(error: io::Error) -> io::Error {
    if error.kind() == ErrorKind::WouldBlock { timed_out() } else { error }
}
