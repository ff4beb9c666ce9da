//! Runs one plugin process: stdin in, stdout and stderr out, with a time measurement and a limit.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::Value;

/// Exit status, output and duration of a plugin.
#[derive(Debug, Clone)]
pub struct PluginOutput {
    /// Exit status, or the signal that killed it.
    pub status: ExitStatus,
    /// All of stdout.
    pub stdout: Vec<u8>,
    /// All of stderr.
    pub stderr: Vec<u8>,
    /// From just before the start of the process to its end.
    pub wall: Duration,
    /// Whether it was killed at the time limit.
    pub killed: bool,
}

impl PluginOutput {
    /// Stdout as JSON; null if it is empty.
    ///
    /// # Panics
    /// If it is neither empty nor JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        if self.stdout.iter().all(u8::is_ascii_whitespace) {
            return Value::Null;
        }
        serde_json::from_slice(&self.stdout)
            .unwrap_or_else(|e| panic!("stdout is not JSON ({e}): {}", String::from_utf8_lossy(&self.stdout)))
    }

    /// Stderr as text.
    #[must_use]
    pub fn stderr_text(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }
}

/// Runs a plugin binary once in the caller's network namespace, with `/` as its working directory and `env` added to the caller's
/// environment. It is killed with SIGKILL after `limit`.
///
/// # Panics
/// If it cannot be started.
#[must_use]
pub fn exec_plugin(binary: &Path, env: &[(String, String)], stdin: &[u8], limit: Duration) -> PluginOutput {
    let mut command = Command::new(binary);
    command.current_dir("/").envs(env.iter().map(|(key, value)| (key, value)));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let started = Instant::now();
    let child = command.spawn().unwrap_or_else(|e| panic!("cannot start {}: {e}", binary.display()));
    converse(child, stdin, started, limit)
}

/// Writes stdin and reads both outputs concurrently, so that no full pipe can block either side.
fn converse(mut child: Child, stdin: &[u8], started: Instant, limit: Duration) -> PluginOutput {
    let mut input = child.stdin.take().expect("stdin is a pipe");
    let mut stdout = child.stdout.take().expect("stdout is a pipe");
    let mut stderr = child.stderr.take().expect("stderr is a pipe");
    thread::scope(|scope| {
        // A plugin may exit without reading stdin.
        scope.spawn(move || input.write_all(stdin).ok());
        let out = scope.spawn(move || drain(&mut stdout));
        let err = scope.spawn(move || drain(&mut stderr));
        let killed = !ended_within(&child, limit);
        if killed {
            child.kill().expect("a running child can be killed");
        }
        let status = child.wait().expect("a child can be waited for");
        let wall = started.elapsed();
        PluginOutput { status, stdout: out.join().unwrap(), stderr: err.join().unwrap(), wall, killed }
    })
}

fn drain(pipe: &mut impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    pipe.read_to_end(&mut bytes).expect("a pipe can be read");
    bytes
}

/// Waits at most `limit` for a child to exit.
fn ended_within(child: &Child, limit: Duration) -> bool {
    let pid = Pid::from_child(child);
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).expect("an unreaped child has a pidfd");
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&timeout)) {
            Ok(ready) => return ready > 0,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => panic!("cannot wait for a child: {e}"),
        }
    }
}
