//! A ztunnel pod for in-pod capture: its proxy is a stub that connects to the agent's ZDS socket and listens in the network
//! namespaces of the pods that the agent sends. It reports messages of the agent and relayed connections.

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

/// Settings of an in-pod ztunnel.
#[derive(Debug, Clone)]
pub struct InpodOptions {
    /// Listens for DNS in every pod, and its manifest sets the variable.
    pub dns_capture: bool,
    /// Listens on both families, else on IPv4 only.
    pub ipv6: bool,
    /// UIDs of pods that cannot be started.
    pub refuse: Vec<String>,
    /// Sends the hello and nothing more.
    pub mute: bool,
    /// Drain time of connections after SIGTERM.
    pub drain: Duration,
    /// Connect timeout of onward connections.
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

/// A ztunnel pod with its proxy's process. Drop ends both.
#[derive(Debug)]
pub struct InpodZtunnel {
    // Dropped in this order: containers end before their sandbox.
    process: Helper,
    sandbox: PodSandbox,
    socket: PathBuf,
    options: InpodOptions,
    /// Connections accepted by earlier processes.
    past: Vec<Relayed>,
    /// Number of connections, of earlier processes and this one, that [`InpodZtunnel::seen`] leaves out.
    forgotten: usize,
}

impl InpodZtunnel {
    /// Starts a ztunnel pod with this name on a node, with the primary plugin alone. It retries `socket` until something listens
    /// there.
    #[must_use]
    pub fn start(node: &Node, name: &str, socket: &Path, options: InpodOptions) -> Self {
        let pod = Pod::new(NAMESPACE, name).label("app", APP).label("istio.io/dataplane-mode", "none");
        Self::start_in(node.pod(pod, &[]), socket, options)
    }

    /// As [`InpodZtunnel::start`], in a sandbox that the caller created with a chain of its own; the pod has to be in
    /// `istio-system`.
    #[must_use]
    pub fn start_in(sandbox: PodSandbox, socket: &Path, options: InpodOptions) -> Self {
        let process = start_process(&sandbox, socket, &options);
        Self { process, sandbox, socket: socket.to_owned(), options, past: Vec::new(), forgotten: 0 }
    }

    /// The pod's name, which is part of its DNS answers.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.sandbox.pod.name
    }

    /// The pod.
    #[must_use]
    pub fn pod(&self) -> &PodSandbox {
        &self.sandbox
    }

    /// All connections accepted since the start or [`InpodZtunnel::forget`].
    #[must_use]
    pub fn seen(&self) -> Vec<Relayed> {
        self.all_seen().split_off(self.forgotten)
    }

    /// Removes all current connections from [`InpodZtunnel::seen`].
    pub fn forget(&mut self) {
        self.forgotten = self.all_seen().len();
    }

    /// Waits for the first connection of [`InpodZtunnel::seen`] for which `wanted` holds.
    ///
    /// # Panics
    /// If none is accepted within 20 seconds.
    pub fn wait_seen(&self, wanted: impl Fn(&Relayed) -> bool) -> Relayed {
        let known = self.forgotten;
        let look = |lines: &[Value]| {
            let new = lines.iter().filter_map(relayed);
            self.past.iter().cloned().chain(new).skip(known).find(|one| wanted(one))
        };
        let found = self.process.wait(LIMIT, look);
        found.unwrap_or_else(|| panic!("{} has not seen it, but {:?}", self.name(), self.seen()))
    }

    /// Waits until [`InpodZtunnel::seen`] has at least `count` connections.
    ///
    /// # Panics
    /// If it has fewer after 20 seconds.
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

    /// State of all pods that the agent ever sent to this process, by UID.
    #[must_use]
    pub fn workloads(&self) -> BTreeMap<String, WorkloadState> {
        let all = self.process.look(workloads);
        all.into_iter().map(|(uid, workload)| (uid, workload.state)).collect()
    }

    /// The workload of one pod.
    #[must_use]
    pub fn workload(&self, uid: &str) -> Option<Workload> {
        self.process.look(workloads).remove(uid)
    }

    /// Waits until a pod is served.
    ///
    /// # Panics
    /// If it is not within 20 seconds.
    pub fn wait_for_workload(&self, uid: &str) -> Workload {
        self.wait_for_state(uid, WorkloadState::Up)
    }

    /// Waits until a pod is in this state.
    ///
    /// # Panics
    /// If it is not within 20 seconds.
    pub fn wait_for_state(&self, uid: &str, state: WorkloadState) -> Workload {
        let wanted = |lines: &[Value]| workloads(lines).remove(uid).filter(|one| one.state == state);
        let found = self.process.wait(LIMIT, wanted);
        found.unwrap_or_else(|| panic!("{uid} does not get {state:?}: {self:#?}"))
    }

    /// Waits until a condition holds for all messages that ztunnel received.
    ///
    /// # Panics
    /// If it does not hold within 20 seconds.
    pub fn wait_for(&self, what: &str, holds: impl Fn(&[ZdsMessage]) -> bool) {
        let met = self.process.wait(LIMIT, |lines| holds(&messages(lines)).then_some(()));
        met.unwrap_or_else(|| panic!("{what} does not come: {self:#?}"));
    }

    /// Waits until `count` snapshots, each of its own connection, were completed and applied.
    ///
    /// # Panics
    /// If they are not within 20 seconds.
    pub fn wait_for_snapshots(&self, count: usize) {
        let met = self.process.wait(LIMIT, |lines| (events(lines, "snapshot") >= count).then_some(()));
        met.unwrap_or_else(|| panic!("no {count} snapshots: {self:#?}"));
    }

    /// Messages of the agent in the order received.
    #[must_use]
    pub fn messages(&self) -> Vec<ZdsMessage> {
        self.process.look(messages)
    }

    /// Time that the stub itself took to answer each message about a new pod.
    #[must_use]
    pub fn answer_times(&self) -> Vec<Duration> {
        let answered = |line: &Value| {
            let micros = line["micros"].as_u64().filter(|_| line["event"] == "answered");
            micros.map(Duration::from_micros)
        };
        self.process.look(|lines| lines.iter().filter_map(answered).collect())
    }

    /// Number of completed snapshots.
    #[must_use]
    pub fn snapshots(&self) -> usize {
        self.process.look(|lines| events(lines, "snapshot"))
    }

    /// Number of successful connections to the agent.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.process.look(|lines| events(lines, "connected"))
    }

    /// Whether it is connected to the agent.
    #[must_use]
    pub fn connected(&self) -> bool {
        self.process.look(|lines| events(lines, "connected") > events(lines, "disconnected"))
    }

    /// The agent's protocol violation, if any. The process has then exited with status 1.
    #[must_use]
    pub fn protocol_error(&self) -> Option<String> {
        let of = |line: &Value| (line["event"] == "protocol-error").then(|| line["what"].to_string());
        self.process.look(|lines| lines.iter().find_map(of))
    }

    /// Whether the readiness probe succeeds as ztunnel's does: it is connected, has received the end of the snapshot on this
    /// connection, and no pod waits to be started.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.alive() && self.process.look(is_ready)
    }

    /// Waits until the readiness probe succeeds.
    ///
    /// # Panics
    /// If it does not within 20 seconds.
    pub fn wait_ready(&self) {
        let ready = self.process.wait(LIMIT, |lines| is_ready(lines).then_some(()));
        ready.unwrap_or_else(|| panic!("{} does not get ready: {self:#?}", self.name()));
    }

    /// Closes the connection to the agent and does not reconnect.
    pub fn disconnect(&mut self) {
        self.command("disconnect");
    }

    /// Reconnects and waits until the connection is established.
    ///
    /// # Panics
    /// If it is not within 20 seconds.
    pub fn connect(&mut self) {
        let before = self.connections();
        self.command("connect");
        let met = self.process.wait(LIMIT, |lines| (events(lines, "connected") > before).then_some(()));
        met.unwrap_or_else(|| panic!("{} does not reach the agent", self.name()));
    }

    /// Waits until all events that the stub has reported so far have been read.
    pub fn catch_up(&mut self) {
        self.command("connect"); // already connected; its reports arrive in order
    }

    /// Makes starts of this pod fail.
    pub fn refuse(&mut self, uid: &str) {
        self.command(&format!("refuse {uid}"));
    }

    /// Allows starts of this pod again, and retries a pending one immediately.
    pub fn accept(&mut self, uid: &str) {
        self.command(&format!("accept {uid}"));
    }

    /// Sends a command and waits for its acknowledgement: messages of the agent arrive on another socket and could overtake it.
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

    /// Sends SIGKILL to the process; the pod stays.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Sends SIGTERM to the process, which exits with its last connection or after the drain time.
    pub fn stop(&self) {
        self.process.terminate();
    }

    /// Waits until the process has exited by itself.
    ///
    /// # Panics
    /// If it does not within 20 seconds.
    pub fn wait_end(&mut self) -> ExitStatus {
        let end = self.process.wait_end(LIMIT);
        end.unwrap_or_else(|| panic!("{} does not end", self.name()))
    }

    /// Sends SIGKILL to the process, if it runs, and starts a new one in the same pod, as the kubelet would.
    pub fn restart(&mut self) {
        self.process.kill();
        self.past = self.all_seen();
        self.process = start_process(&self.sandbox, &self.socket, &self.options);
    }

    /// Process ID of the proxy, for measurements.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The pod's API object; ready if the stub is.
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
