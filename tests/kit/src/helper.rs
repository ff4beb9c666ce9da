//! A `kit-traffic` process that writes lines of JSON and takes commands.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::artefacts::kit_traffic;
use crate::netns::Netns;
use crate::wait::LIMIT;

/// A helper process. Drop sends SIGKILL.
#[derive(Debug)]
pub(crate) struct Helper {
    child: Child,
    stdin: ChildStdin,
    lines: Arc<Lines>,
}

#[derive(Debug, Default)]
struct Lines {
    written: Mutex<Written>,
    more: Condvar,
}

#[derive(Debug, Default)]
struct Written {
    values: Vec<Value>,
    ended: bool,
}

impl Helper {
    /// Starts the process and waits until it reports that it is ready.
    pub(crate) fn start(netns: &Netns, arguments: &[&str]) -> Self {
        let mut command = Command::new(kit_traffic());
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = netns.spawn(&mut command);
        let stdin = child.stdin.take().expect("stdin is a pipe");
        let stdout = child.stdout.take().expect("stdout is a pipe");
        let lines = Arc::new(Lines::default());
        let reading = Arc::clone(&lines);
        thread::spawn(move || reading.read(stdout));
        let helper = Self { child, stdin, lines };
        let ready = helper.wait(LIMIT, |values| values.first().map(|first| first["ready"] == true));
        assert_eq!(ready, Some(true), "kit-traffic {arguments:?} did not start");
        helper
    }

    /// Writes one line to the process.
    pub(crate) fn command(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").unwrap_or_else(|e| panic!("kit-traffic does not take {line}: {e}"));
    }

    /// Passes all lines so far to `look`.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&[Value]) -> T) -> T {
        look(&self.lines.written.lock().unwrap_or_else(PoisonError::into_inner).values)
    }

    /// Waits until `look` finds a value in the lines; `None` at the timeout or when no more lines can arrive.
    pub(crate) fn wait<T>(&self, limit: Duration, look: impl Fn(&[Value]) -> Option<T>) -> Option<T> {
        let deadline = Instant::now() + limit;
        let mut written = self.lines.written.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match look(&written.values) {
                None if !written.ended && !left.is_zero() => {}
                found => return found,
            }
            let waited = self.lines.more.wait_timeout(written, left);
            written = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Sends SIGKILL. All output of the process has been read when this returns.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let mut written = self.lines.written.lock().unwrap_or_else(PoisonError::into_inner);
        while !written.ended {
            written = self.lines.more.wait(written).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Sends SIGTERM, which each helper handles in its own manner.
    pub(crate) fn terminate(&self) {
        // Not yet waited for, so the process ID has not been reused.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
    }

    /// Whether the process can still write lines.
    pub(crate) fn alive(&self) -> bool {
        !self.lines.written.lock().unwrap_or_else(PoisonError::into_inner).ended
    }

    /// Waits until the process exits by itself and returns its status; `None` at the timeout.
    pub(crate) fn wait_end(&mut self, limit: Duration) -> Option<ExitStatus> {
        let _ = self.wait(limit, |_| None::<()>);
        if self.alive() { None } else { self.child.wait().ok() }
    }

    /// Process ID, for measurements.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Lines {
    fn read(&self, stdout: ChildStdout) {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            // The last line of a killed process may be incomplete.
            let Ok(value) = serde_json::from_str(&line) else { continue };
            self.written.lock().unwrap_or_else(PoisonError::into_inner).values.push(value);
            self.more.notify_all();
        }
        self.written.lock().unwrap_or_else(PoisonError::into_inner).ended = true;
        self.more.notify_all();
    }
}
