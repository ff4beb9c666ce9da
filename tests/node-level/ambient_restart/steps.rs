//! Records the system calls of a plan, and kills the agent at any one of them.
//!
//! strace is attached to the thread that applies the steps, while it waits for the change that results in the plan. The first run
//! only records the calls, those of each step between the log line of the previous step and its own. The next runs replace one of
//! the calls by SIGKILL.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use kit::{Daemon, TempDir};
use rustix::process::{Pid, Signal, kill_process};

/// A system call, and its index among the calls of the same name since strace was attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    pub(crate) call: String,
    pub(crate) number: usize,
    /// The step during or after which it is made.
    pub(crate) step: String,
    /// The step is complete and was logged: the kill happens between two steps.
    pub(crate) between: bool,
}

/// Calls that change state, or start a process that does; and writes to the log.
const CALLS: &str = "sendto,sendmsg,write,clone3,clone,vfork,rename,renameat,renameat2,unlink,unlinkat";

/// strace attached to one thread. Drop detaches it.
pub(crate) struct Tracer {
    strace: Child,
    files: TempDir,
}

impl Tracer {
    /// Attaches to the agent's thread with this name.
    pub(crate) fn attach(daemon: &Daemon, name: &str, kill_at: Option<&Point>) -> Self {
        let files = TempDir::new().unwrap();
        let mut command = Command::new("strace");
        command.args(["-qq", "-s", "300", "-o"]).arg(files.path().join("calls"));
        match kill_at {
            None => command.args(["-e", &format!("trace={CALLS}")]),
            Some(Point { call, number, .. }) => command.args([
                "-e",
                &format!("trace={call}"),
                "-e",
                &format!("inject={call}:signal=KILL:when={number}"),
            ]),
        };
        command.args(["-p", &thread_of(daemon, name).to_string()]);
        let mut strace = command.stderr(Stdio::null()).spawn().expect("strace is installed");
        let traced = format!("/proc/{}/task/{}/status", daemon.pid(), thread_of(daemon, name));
        // Being attached is not enough: every call is seen from the thread's first stop on.
        let is_traced =
            || fs::read_to_string(&traced).is_ok_and(|text| !kit::has_line(&text, "TracerPid:\t0"));
        kit::until("strace has got hold of the thread", || {
            assert!(strace.try_wait().unwrap().is_none(), "strace has ended");
            is_traced()
        });
        thread::sleep(Duration::from_millis(5)); // strace resumes it then, which nothing shows
        Self { strace, files }
    }

    /// Detaches, and returns the plan's calls.
    pub(crate) fn points(mut self) -> Vec<Point> {
        self.detach();
        points(&self.files.path().join("calls"))
    }

    /// Detaches, and returns every call that could change state, whatever its purpose.
    pub(crate) fn calls(mut self) -> Vec<Point> {
        self.detach();
        let text = fs::read_to_string(self.files.path().join("calls")).unwrap();
        let mut counts = BTreeMap::<&str, usize>::new();
        let names = text.lines().filter_map(|line| line.split_once('(')).map(|(call, _)| call);
        let all = names.filter(|call| *call != "write").map(|call| {
            let count = counts.entry(call).or_default();
            *count += 1;
            Point { call: call.to_owned(), number: *count, step: String::new(), between: false }
        });
        all.collect()
    }

    /// Waits until the kill has happened; false if the thread completed without that call.
    pub(crate) fn killed(mut self, mut is_over: impl FnMut() -> bool) -> bool {
        let killed = kit::until("it is killed or done", || {
            let has_ended = self.strace.try_wait().unwrap().is_some();
            if has_ended { Some(true) } else { is_over().then_some(false) }
        });
        if killed {
            return true;
        }
        // It may be just about to end, or be late.
        kit::found_within(Duration::from_secs(1), || self.strace.try_wait().unwrap()).is_some()
    }

    fn detach(&mut self) {
        if self.strace.try_wait().unwrap().is_none() {
            kill_process(Pid::from_child(&self.strace), Signal::INT).unwrap();
            self.strace.wait().unwrap();
        }
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        self.detach();
    }
}

fn thread_of(daemon: &Daemon, name: &str) -> u32 {
    let tasks = format!("/proc/{}/task", daemon.pid());
    let named =
        |task: &u32| fs::read_to_string(format!("{tasks}/{task}/comm")).is_ok_and(|comm| comm.trim() == name);
    // A thread that has just started has no name yet.
    kit::until(format_args!("there is a thread {name}"), || {
        let all = fs::read_dir(&tasks).unwrap().map(|task| task.unwrap().file_name().into_string().unwrap());
        all.filter_map(|task| task.parse::<u32>().ok()).find(&named)
    })
}

/// Whether a step changes more than one object. Within one that does not, a kill is equivalent to one before or after it.
fn has_parts(step: &str) -> bool {
    ["addresses to the sets", "addresses from the sets", "firewall", "node: set"]
        .iter()
        .any(|part| step.contains(part))
}

/// Whether a step changes rules.
fn is_firewall(step: &str) -> bool {
    step.split(' ').any(|word| word == "firewall:")
}

/// Calls of steps: only the last one of the first step, as the thread has observed state before it; then the calls that notify
/// the plugin.
fn points(file: &Path) -> Vec<Point> {
    let text = fs::read_to_string(file).unwrap();
    let mut counts = BTreeMap::<&str, usize>::new();
    let (mut found, mut pending): (Vec<Point>, Vec<Point>) = (Vec::new(), Vec::new());
    for line in text.lines() {
        let Some((call, rest)) = line.split_once('(') else { continue };
        let count = counts.entry(call).or_default();
        *count += 1;
        let point = Point { call: call.to_owned(), number: *count, step: String::new(), between: false };
        let logged = rest.split_once("\\tdebug\\tambient\\t").filter(|_| call == "write");
        let Some((_, words)) = logged else {
            pending.push(point);
            continue;
        };
        let step = words.split("\\n").next().unwrap_or_default().to_owned();
        let from = if found.is_empty() { pending.len().saturating_sub(1) } else { 0 };
        let within = pending.drain(from..).filter(|_| has_parts(&step));
        found.extend(within.map(|point| Point { step: step.clone(), ..point }));
        found.push(Point { step, between: true, ..point });
        pending.clear();
    }
    let last = pending.into_iter().filter(|point| point.call.starts_with("rename"));
    found.extend(last.map(|point| Point { step: "tell the plugin".to_owned(), ..point }));
    found
}

/// The first and the last call of each kind of step, and all within steps of several parts; within a change of the firewall, whose
/// calls mostly read, the first and the last of each call.
pub(crate) fn some_of(points: Vec<Point>) -> Vec<Point> {
    let mut sorts: BTreeMap<String, Vec<Point>> = BTreeMap::new();
    let (between, within): (Vec<_>, Vec<_>) = points.into_iter().partition(|point| point.between);
    let (firewall, mut some): (Vec<_>, Vec<_>) =
        within.into_iter().partition(|point| is_firewall(&point.step));
    for point in firewall {
        sorts.entry(format!("{} {}", point.step, point.call)).or_default().push(point);
    }
    for point in between {
        let words: Vec<&str> = point
            .step
            .split(' ')
            .filter(|word| word.chars().all(char::is_alphabetic) && !word.contains("istio"))
            .collect();
        sorts.entry(words.concat()).or_default().push(point);
    }
    for points in sorts.into_values() {
        let chosen: BTreeSet<usize> = [0, points.len() - 1].into();
        some.extend(chosen.into_iter().map(|at| points[at].clone()));
    }
    some
}
