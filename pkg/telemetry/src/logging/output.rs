//! Output of log lines: one open file, pipe or terminal.

use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FileType, OFlags, fstat};
use rustix::io::Errno;

/// Timeout for a reader that is behind. While it reads nothing, further lines are not delayed again.
const PATIENCE: Duration = Duration::from_secs(1);

pub(super) struct LogOutput {
    file: File,
    /// Whether the last write timed out.
    stalled: bool,
    /// Whether the last line was written partially: the next one must start on a new line.
    torn: bool,
}

impl LogOutput {
    /// Opens `stdout`, `stderr`, or a file for appending.
    pub(super) fn open(name: &str) -> io::Result<LogOutput> {
        match name {
            "stdout" => Self::open_standard(io::stdout().as_fd()),
            "stderr" => Self::open_standard(io::stderr().as_fd()),
            path => Self::open_file(Path::new(path)),
        }
    }

    pub(super) fn open_file(path: &Path) -> io::Result<LogOutput> {
        OpenOptions::new().create(true).append(true).mode(0o644).open(path).map(Self::new)
    }

    pub(super) fn new(file: File) -> LogOutput {
        LogOutput { file, stalled: false, torn: false }
    }

    /// Opens stdout or stderr. A pipe is opened a second time: O_NONBLOCK belongs to the open file description, which we share with
    /// other processes. Where that is forbidden, and for all other kinds of files, the descriptor is duplicated.
    pub(super) fn open_standard(fd: BorrowedFd<'_>) -> io::Result<LogOutput> {
        if FileType::from_raw_mode(fstat(fd)?.st_mode) == FileType::Fifo {
            let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
            let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
            if let Ok(own) = rustix::fs::open(path, flags, rustix::fs::Mode::empty()) {
                return Ok(Self::new(own.into()));
            }
        }
        Ok(Self::new(fd.try_clone_to_owned()?.into()))
    }

    /// Writes the line with one call, unless the system accepts it only partially. Returns whether it was written.
    pub(super) fn write_line(&mut self, line: &[u8]) -> bool {
        let line = if self.torn { Cow::Owned([b"\n", line].concat()) } else { Cow::Borrowed(line) };
        let deadline = Instant::now() + if self.stalled { Duration::ZERO } else { PATIENCE };
        let mut rest = &*line;
        let written = loop {
            match self.write_some(rest, deadline) {
                Ok(length) if length >= rest.len() => break true,
                Ok(length) => rest = rest.get(length..).unwrap_or_default(),
                Err(_) => break false,
            }
        };
        self.stalled = !written;
        self.torn = !written && (self.torn || rest.len() < line.len());
        written
    }

    fn write_some(&mut self, rest: &[u8], deadline: Instant) -> io::Result<usize> {
        loop {
            wait_writable(&self.file, deadline)?;
            match self.file.write(rest) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Another writer of the same pipe filled it first.
                Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < deadline => {}
                result => return result,
            }
        }
    }
}

/// Waits until there is room, or the pipe has no reader: the next write then returns the error.
fn wait_writable(file: &File, deadline: Instant) -> io::Result<()> {
    let mut fds = [PollFd::new(file, PollFlags::OUT)];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match poll(&mut fds, Some(&left.try_into().unwrap_or_default())) {
            Ok(0) => return Err(ErrorKind::TimedOut.into()),
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
