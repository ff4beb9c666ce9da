//! A ztunnel pod of today: its proxy is a stub that dials the agent's ZDS socket and listens in the namespaces
//! of the pods that it gets from there. It tells what it got, and what it relayed.

mod told;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use serde_json::Value;

pub use self::told::{Workload, WorkloadState, ZdsMessage};
use self::told::{events, is_ready, messages, workloads};
use crate::helper::Helper;
use crate::manifests::CREATED;
use crate::node::Node;
use crate::pod::{Pod, PodSandbox};
use crate::wait::LIMIT;
use crate::ztunnel::{APP, NAMESPACE, Relayed, manifest, relayed};

/// What an in-pod ztunnel shall be like.
#[derive(Debug, Clone)]
pub struct InpodOptions {
    /// It listens for DNS in every pod, and its manifest says so.
    pub dns_capture: bool,
    /// It listens for both families; otherwise, for IPv4.
    pub ipv6: bool,
    /// UIDs of pods that it cannot start.
    pub refuse: Vec<String>,
    /// It says hello, and then nothing more.
    pub mute: bool,
    /// How long connections may go on after SIGTERM.
    pub drain: Duration,
    /// An onward connection that is not made in this time has failed.
    pub connect_limit: Duration,
}

impl Default for InpodOptions {
    fn default() -> Self {
        Self {
            dns_capture: false,
            ipv6: true,
            refuse: Vec::new(),
            mute: false,
            drain: Duration::from_secs(3),
            connect_limit: Duration::from_secs(10),
        }
    }
}

/// A ztunnel pod with its proxy's process. Both go on drop.
#[derive(Debug)]
pub struct InpodZtunnel {
    // Dropped in this order: containers end before their sandbox.
    process: Helper,
    sandbox: PodSandbox,
    socket: PathBuf,
    options: InpodOptions,
    /// What processes before this one accepted.
    past: Vec<Relayed>,
    /// How much of the past, and of what came since, nobody wants to hear of any more.
    forgotten: usize,
}

impl InpodZtunnel {
    /// Starts a ztunnel pod of this name on a node, with only the primary plugin. It dials `socket` until
    /// somebody listens there.
    #[must_use]
    pub fn start(node: &Node, name: &str, socket: &Path, options: InpodOptions) -> Self {
        let pod = Pod::new(NAMESPACE, name).label("app", APP).label("istio.io/dataplane-mode", "none");
        Self::start_in(node.pod(pod, &[]), socket, options)
    }

    /// The same in a sandbox made by the caller, who chose the chain; the pod shall be in `istio-system`.
    #[must_use]
    pub fn start_in(sandbox: PodSandbox, socket: &Path, options: InpodOptions) -> Self {
        let process = start_process(&sandbox, socket, &options);
        Self { process, sandbox, socket: socket.to_owned(), options, past: Vec::new(), forgotten: 0 }
    }

    /// The pod's name, with which it answers DNS.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.sandbox.pod.name
    }

    /// The pod.
    #[must_use]
    pub fn pod(&self) -> &PodSandbox {
        &self.sandbox
    }

    /// All that it accepted since the start or [`InpodZtunnel::forget`].
    #[must_use]
    pub fn seen(&self) -> Vec<Relayed> {
        self.all_seen().split_off(self.forgotten)
    }

    /// Leaves out of [`InpodZtunnel::seen`] what is in there now.
    pub fn forget(&mut self) {
        self.forgotten = self.all_seen().len();
    }

    /// Waits for the first connection of [`InpodZtunnel::seen`] for which `wanted` holds.
    ///
    /// # Panics
    /// If none comes in 20 seconds.
    pub fn wait_seen(&self, wanted: impl Fn(&Relayed) -> bool) -> Relayed {
        let known = self.forgotten;
        let look = |lines: &[Value]| {
            let new = lines.iter().filter_map(relayed);
            self.past.iter().cloned().chain(new).skip(known).find(|one| wanted(one))
        };
        let found = self.process.wait(LIMIT, look);
        found.unwrap_or_else(|| panic!("{} has not seen it, but {:?}", self.name(), self.seen()))
    }

    /// Waits until [`InpodZtunnel::seen`] has at least so many.
    ///
    /// # Panics
    /// If it has not in 20 seconds.
    pub fn wait_seen_count(&self, count: usize) -> Vec<Relayed> {
        let wanted = (self.forgotten + count).saturating_sub(self.past.len());
        let enough = |lines: &[Value]| lines.iter().filter_map(relayed).nth(wanted.checked_sub(1)?);
        if wanted > 0 && self.process.wait(LIMIT, enough).is_none() {
            panic!("{} has not seen {count}, but {:?}", self.name(), self.seen());
        }
        self.seen()
    }

    fn all_seen(&self) -> Vec<Relayed> {
        let new = self.process.look(|lines| lines.iter().filter_map(relayed).collect::<Vec<_>>());
        [self.past.clone(), new].concat()
    }

    /// All pods that this process was ever told of, by UID.
    #[must_use]
    pub fn workloads(&self) -> BTreeMap<String, WorkloadState> {
        let all = self.process.look(workloads);
        all.into_iter().map(|(uid, workload)| (uid, workload.state)).collect()
    }

    /// One of them.
    #[must_use]
    pub fn workload(&self, uid: &str) -> Option<Workload> {
        self.process.look(workloads).remove(uid)
    }

    /// Waits until a pod is served.
    ///
    /// # Panics
    /// If it is not in 20 seconds.
    pub fn wait_for_workload(&self, uid: &str) -> Workload {
        self.wait_for_state(uid, WorkloadState::Up)
    }

    /// Waits until a pod is in this state.
    ///
    /// # Panics
    /// If it is not in 20 seconds.
    pub fn wait_for_state(&self, uid: &str, state: WorkloadState) -> Workload {
        let wanted = |lines: &[Value]| workloads(lines).remove(uid).filter(|one| one.state == state);
        let found = self.process.wait(LIMIT, wanted);
        found.unwrap_or_else(|| panic!("{uid} does not get {state:?}: {self:#?}"))
    }

    /// Waits until this holds for all that ztunnel was told, which is there for the closure to look at.
    ///
    /// # Panics
    /// If it does not in 20 seconds.
    pub fn wait_for(&self, what: &str, holds: impl Fn(&[ZdsMessage]) -> bool) {
        let met = self.process.wait(LIMIT, |lines| holds(&messages(lines)).then_some(()));
        met.unwrap_or_else(|| panic!("{what} does not come: {self:#?}"));
    }

    /// Waits until so many snapshots were completed and acted upon, of one connection each.
    ///
    /// # Panics
    /// If they are not in 20 seconds.
    pub fn wait_for_snapshots(&self, count: usize) {
        let met = self.process.wait(LIMIT, |lines| (events(lines, "snapshot") >= count).then_some(()));
        met.unwrap_or_else(|| panic!("no {count} snapshots: {self:#?}"));
    }

    /// Every message of the agent, as it came.
    #[must_use]
    pub fn messages(&self) -> Vec<ZdsMessage> {
        self.process.look(messages)
    }

    /// How long it took itself to answer each message about a new pod.
    #[must_use]
    pub fn answer_times(&self) -> Vec<Duration> {
        let answered = |line: &Value| {
            let micros = line["micros"].as_u64().filter(|_| line["event"] == "answered");
            micros.map(Duration::from_micros)
        };
        self.process.look(|lines| lines.iter().filter_map(answered).collect())
    }

    /// How many snapshots were completed.
    #[must_use]
    pub fn snapshots(&self) -> usize {
        self.process.look(|lines| events(lines, "snapshot"))
    }

    /// How often it reached the agent.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.process.look(|lines| events(lines, "connected"))
    }

    /// Whether it has a connection to the agent.
    #[must_use]
    pub fn connected(&self) -> bool {
        self.process.look(|lines| events(lines, "connected") > events(lines, "disconnected"))
    }

    /// What the agent did that no agent may do. The process has ended then, with status 1.
    #[must_use]
    pub fn protocol_error(&self) -> Option<String> {
        let of = |line: &Value| (line["event"] == "protocol-error").then(|| line["what"].to_string());
        self.process.look(|lines| lines.iter().find_map(of))
    }

    /// Whether its readiness probe succeeds, as that of the real one: it has a connection, has got the end of the snapshot
    /// there, and no pod waits to be started.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.alive() && self.process.look(is_ready)
    }

    /// Waits for that.
    ///
    /// # Panics
    /// If it does not get ready in 20 seconds.
    pub fn wait_ready(&self) {
        let ready = self.process.wait(LIMIT, |lines| is_ready(lines).then_some(()));
        ready.unwrap_or_else(|| panic!("{} does not get ready: {self:#?}", self.name()));
    }

    /// Ends its connection to the agent, and makes no other.
    pub fn disconnect(&mut self) {
        self.command("disconnect");
    }

    /// Dials again, and waits until it has reached the agent.
    ///
    /// # Panics
    /// If it does not in 20 seconds.
    pub fn connect(&mut self) {
        let before = self.connections();
        self.command("connect");
        let met = self.process.wait(LIMIT, |lines| (events(lines, "connected") > before).then_some(()));
        met.unwrap_or_else(|| panic!("{} does not reach the agent", self.name()));
    }

    /// Waits until everything is known here that it has noted so far.
    pub fn catch_up(&mut self) {
        self.command("connect"); // as it is already; what it notes comes in order
    }

    /// From now on it cannot start this pod.
    pub fn refuse(&mut self, uid: &str) {
        self.command(&format!("refuse {uid}"));
    }

    /// From now on it can, and does so at once if it waits to.
    pub fn accept(&mut self, uid: &str) {
        self.command(&format!("accept {uid}"));
    }

    /// Waits until it is done: messages of the agent come another way, and could come first.
    fn command(&mut self, line: &str) {
        let before = self.process.look(|lines| events(lines, "commanded"));
        self.process.command(line);
        let done = self.process.wait(LIMIT, |lines| (events(lines, "commanded") > before).then_some(()));
        done.unwrap_or_else(|| panic!("{} does not {line}", self.name()));
    }

    /// Whether the process runs.
    #[must_use]
    pub fn alive(&self) -> bool {
        self.process.alive()
    }

    /// SIGKILL for the process; the pod stays.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// SIGTERM for the process; it ends when its connections do, or their time is up.
    pub fn stop(&self) {
        self.process.terminate();
    }

    /// Waits until the process has ended by itself.
    ///
    /// # Panics
    /// If it does not in 20 seconds.
    pub fn wait_end(&mut self) -> ExitStatus {
        let end = self.process.wait_end(LIMIT);
        end.unwrap_or_else(|| panic!("{} does not end", self.name()))
    }

    /// SIGKILL, if it runs, and a new process in the same pod, as the kubelet would start one.
    pub fn restart(&mut self) {
        self.process.kill();
        self.past = self.all_seen();
        self.process = start_process(&self.sandbox, &self.socket, &self.options);
    }

    /// Process id of the proxy, for those who want to know what it costs.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The pod's object as the API has it; ready if the stub is.
    #[must_use]
    pub fn manifest(&self) -> Value {
        manifest(&self.sandbox, self.options.dns_capture, self.is_ready(), CREATED)
    }
}

fn start_process(sandbox: &PodSandbox, socket: &Path, options: &InpodOptions) -> Helper {
    let socket = socket.to_str().expect("a path is text");
    let (drain, limit) =
        (options.drain.as_millis().to_string(), options.connect_limit.as_millis().to_string());
    let mut arguments = vec!["inpod-ztunnel", "--socket", socket, "--name", &sandbox.pod.name];
    arguments.extend(["--drain-ms", &drain, "--timeout-ms", &limit]);
    let flags = [(options.dns_capture, "--dns"), (options.mute, "--mute"), (!options.ipv6, "--no-ipv6")];
    arguments.extend(flags.into_iter().filter_map(|(wanted, flag)| wanted.then_some(flag)));
    arguments.extend(options.refuse.iter().flat_map(|uid| ["--refuse", uid]));
    Helper::start(&sandbox.netns, &arguments)
}
