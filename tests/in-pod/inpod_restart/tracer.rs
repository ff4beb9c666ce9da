//! Records the agent's system calls that change something, on any of its threads, and kills the agent at any one of them.
//!
//! Short-lived threads work in pods, so the whole process is traced, and calls are counted across threads. The first run only
//! records the points. The next runs send SIGKILL at one of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use kit::Daemon;
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// Threads that change kernel state, or answer requests.
const THREADS: [&str; 5] = ["agent", "in-pod", "netns", "ztunnel", "plugin"];

/// Far longer than from one step to the next.
const QUIET: Duration = Duration::from_secs(1);

/// Just before a call that changes something, or just after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    thread: String,
    what: String,
    after: bool,
}

#[derive(Debug, Default)]
struct Shared {
    points: Mutex<Vec<Point>>,
    over: AtomicBool,
}

/// Traces an agent until drop, or until it has killed the agent.
#[derive(Debug)]
pub(crate) struct Tracer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Tracer {
    /// Attaches to all threads of the agent. `kill_at` is the index of the point at which it is killed.
    pub(crate) fn attach(daemon: &Daemon, kill_at: Option<usize>) -> Self {
        let shared = Arc::new(Shared::default());
        let (attached, wait) = mpsc::channel();
        let (pid, of_thread) = (Pid::from_raw(i32::try_from(daemon.pid()).unwrap()), Arc::clone(&shared));
        let body = move || {
            seize_all(pid);
            attached.send(()).unwrap();
            Trace { pid, kill_at, within: BTreeMap::new(), shared: of_thread }.run();
        };
        let thread = Some(thread::spawn(body));
        wait.recv().unwrap();
        Self { shared, thread }
    }

    /// Waits for the end of the change, whose last steps leave no trace in the kernel, detaches, and returns the recorded points.
    pub(crate) fn points(mut self) -> Vec<Point> {
        kit::until_steady(QUIET, "no more calls", || self.shared.points.lock().unwrap().len());
        self.end();
        std::mem::take(&mut self.shared.points.lock().unwrap())
    }

    /// Waits until it has killed the agent, and returns the point. `None` if the change was complete before.
    pub(crate) fn killed(mut self, mut is_over: impl FnMut() -> bool) -> Option<Point> {
        let has_ended = |tracer: &Self| tracer.thread.as_ref().is_none_or(JoinHandle::is_finished);
        kit::until("it is killed or done", || has_ended(&self) || is_over());
        let killed = has_ended(&self);
        self.end();
        killed.then(|| self.shared.points.lock().unwrap().last().cloned()).flatten()
    }

    fn end(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        drop(self.thread.take().map(JoinHandle::join));
    }
}

/// Seizes all threads; those that they start are traced from the beginning.
fn seize_all(pid: Pid) {
    let options = Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_TRACECLONE;
    let mut seized = BTreeSet::new();
    loop {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let tasks =
            tasks.map(|task| task.unwrap().file_name().into_string().unwrap().parse::<i32>().unwrap());
        let new: Vec<i32> = tasks.filter(|task| !seized.contains(task)).collect();
        if new.is_empty() {
            return;
        }
        for task in new {
            seized.insert(task);
            // A thread that has ended meanwhile, or is already traced, needs nothing.
            if ptrace::seize(Pid::from_raw(task), options).is_ok() {
                ptrace::interrupt(Pid::from_raw(task)).unwrap();
            }
        }
    }
}

/// The tracer's own thread: the kernel detaches all its tracees when it ends.
struct Trace {
    pid: Pid,
    kill_at: Option<usize>,
    /// Pending calls.
    within: BTreeMap<Pid, String>,
    shared: Arc<Shared>,
}

impl Trace {
    fn run(&mut self) {
        // Only tracees of this thread: other children belong to other threads.
        let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD | WaitPidFlag::WNOHANG;
        while !self.shared.over.load(Ordering::Relaxed) {
            match waitpid(Pid::from_raw(-1), Some(flags)) {
                Ok(WaitStatus::PtraceSyscall(thread)) => {
                    if self.strikes(thread) {
                        kill(self.pid, Signal::SIGKILL).unwrap();
                        return;
                    }
                    resume(thread, None);
                }
                Ok(WaitStatus::PtraceEvent(thread, ..)) => resume(thread, None),
                Ok(WaitStatus::Stopped(thread, signal)) => resume(thread, Some(signal)),
                Ok(WaitStatus::StillAlive) => thread::sleep(Duration::from_micros(50)), // between two polls
                Ok(_) => {}
                Err(error) => panic!("the daemon has ended by itself: {error}"),
            }
        }
    }

    /// Records the thread's position. True if the agent is to be killed there.
    fn strikes(&mut self, thread: Pid) -> bool {
        let is_entry =
            ptrace::syscall_info(thread).is_ok_and(|info| info.op == libc::PTRACE_SYSCALL_INFO_ENTRY);
        let (what, after) = if is_entry {
            let Some(what) = change(thread) else { return false };
            self.within.insert(thread, what.clone());
            (what, false)
        } else {
            // Netlink requests are complete by then, so this point equals the one before the next call.
            let Some(what) = self.within.remove(&thread).filter(|what| !what.contains("netlink")) else {
                return false;
            };
            (what, true)
        };
        let mut points = self.shared.points.lock().unwrap();
        points.push(Point { thread: comm(thread), what, after });
        self.kill_at == Some(points.len() - 1)
    }
}

/// A thread that was killed meanwhile needs nothing.
fn resume(thread: Pid, signal: Option<Signal>) {
    let _ = ptrace::syscall(thread, signal);
}

fn comm(thread: Pid) -> String {
    fs::read_to_string(format!("/proc/{thread}/comm")).unwrap_or_default().trim().to_owned()
}

/// Description of the change that a thread's next call makes, if any.
fn change(thread: Pid) -> Option<String> {
    let line = fs::read_to_string(format!("/proc/{thread}/syscall")).ok()?;
    let mut words = line.split_whitespace();
    let number: libc::c_long = words.next()?.parse().ok()?;
    let arguments: Vec<u64> =
        words.filter_map(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok()).collect();
    let by = comm(thread);
    if !THREADS.contains(&by.as_str()) {
        return None;
    }
    match number {
        libc::SYS_sendto if by == "plugin" => Some("an answer".to_owned()),
        libc::SYS_sendto => netlink_change(u64_at(thread, arguments[1])?),
        libc::SYS_sendmsg if by == "ztunnel" => Some("a message to ztunnel".to_owned()),
        libc::SYS_write => {
            let file = fs::read_link(format!("/proc/{thread}/fd/{}", arguments[0])).ok()?;
            file.to_str()?.starts_with("pipe:").then(|| "rules for a tool".to_owned())
        }
        // The thread observes the node's own rules at intervals.
        libc::SYS_clone3 if by == "netns" => child(u64_at(thread, arguments[0])?),
        libc::SYS_clone if by == "netns" => child(arguments[0]),
        _ => None,
    }
}

fn child(flags: u64) -> Option<String> {
    (flags & u64::try_from(libc::CLONE_THREAD).unwrap() == 0).then(|| "a tool".to_owned())
}

/// By the header of a netlink message; queries change nothing.
fn netlink_change(head: u64) -> Option<String> {
    /// ipset commands that add and remove members. Sets are created at startup.
    const IPSET: [u8; 2] = [9, 10];
    let bytes = head.to_ne_bytes();
    let kind = u16::from_ne_bytes([bytes[4], bytes[5]]);
    let [subsystem, command] = kind.to_be_bytes();
    match (subsystem, command) {
        (0, 16..) if command % 4 != 2 => Some(format!("rtnetlink {command}")),
        (6, _) if IPSET.contains(&command) => Some(format!("netlink to ipset {command}")),
        _ => None,
    }
}

fn u64_at(thread: Pid, address: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    File::open(format!("/proc/{thread}/mem")).ok()?.read_exact_at(&mut bytes, address).ok()?;
    Some(u64::from_ne_bytes(bytes))
}
