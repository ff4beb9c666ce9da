//! An agent simulated by the test, and its document.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::net::{UnixListener, UnixStream},
    path::PathBuf,
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    thread,
};

use kit::binary;
use report::{
    CaptureState, Comparison, EffectiveSetting, FirewallRule, InstalledFile, KernelView, NodeState, PodState,
    RedirectionMode, SCHEMA, StateReason, StateReport, SysctlState,
};
use serde_json::Value;

/// The agent's directory, and the agent, if any.
pub(super) struct Fixture {
    pub(super) directory: PathBuf,
    /// The served document as JSON.
    document: Arc<Mutex<String>>,
}

impl Fixture {
    /// No agent.
    pub(super) fn without_agent() -> Fixture {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let name = format!("commands-{}-{}", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed));
        let directory = std::env::temp_dir().join(name);
        fs::create_dir_all(&directory).unwrap();
        Fixture { directory, document: Arc::default() }
    }

    /// An agent that serves this document.
    pub(super) fn new(document: &StateReport) -> Fixture {
        let fixture = Fixture::without_agent();
        fixture.set(document);
        let listener = UnixListener::bind(fixture.directory.join("debug.sock")).unwrap();
        let document = Arc::clone(&fixture.document);
        thread::spawn(move || listener.incoming().for_each(|stream| answer(stream.unwrap(), &document)));
        fixture
    }

    /// Starts an agent whose socket is gone once it answers its first request, as one that ends.
    pub(super) fn answer_once(&self) {
        let socket = self.directory.join("debug.sock");
        let (listener, document) = (UnixListener::bind(&socket).unwrap(), Arc::clone(&self.document));
        thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            fs::remove_file(socket).unwrap();
            answer(stream, &document);
        });
    }

    pub(super) fn set(&self, document: &StateReport) {
        let mut document = document.clone();
        document.fill_conclusions();
        self.set_raw(serde_json::to_string(&document).unwrap());
    }

    pub(super) fn set_raw(&self, document: String) {
        *self.document.lock().unwrap() = document;
    }

    pub(super) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary("install-cni"));
        command.args(arguments).env_clear().env("CNI_AGENT_RUN_DIR", &self.directory);
        command.current_dir(&self.directory);
        command
    }

    /// Exit status, stdout and stderr.
    pub(super) fn call(&self, arguments: &[&str]) -> (i32, String, String) {
        let output = self.command(arguments).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }

    /// Stdout of a call that exits with this status and prints no error.
    pub(super) fn said(&self, status: i32, arguments: &[&str]) -> String {
        let (ended, said, complaint) = self.call(arguments);
        assert_eq!((ended, complaint.as_str()), (status, ""), "{arguments:?}: {said}");
        said
    }

    pub(super) fn json(&self, status: i32, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.said(status, &[arguments, &["-o", "json"]].concat())).unwrap()
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.directory));
    }
}

/// Answers one request; a client that disconnects early is ignored.
fn answer(mut stream: UnixStream, document: &Mutex<String>) {
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line).unwrap();
    let body = document.lock().unwrap().clone();
    let (status, body) = match line.split(' ').nth(1) {
        Some("/debug/state") => ("200 OK", body),
        _ => ("404 Not Found", "no such path".to_owned()),
    };
    let head = format!("HTTP/1.0 {status}\r\nContent-Length: {}\r\n\r\n", body.len());
    drop(stream.write_all(format!("{head}{body}").as_bytes()));
}

pub(super) fn pod(namespace: &str, name: &str, capture: CaptureState) -> PodState {
    let outside = capture == CaptureState::Outside;
    let (code, words) = match outside {
        true => ("opted-out", "its annotation ambient.istio.io/redirection is disabled"),
        false => ("ambient-namespace", "its namespace is labelled istio.io/dataplane-mode=ambient"),
    };
    PodState {
        namespace: namespace.into(),
        name: name.into(),
        uid: format!("uid-{name}").into(),
        ips: vec!["10.0.0.7".parse().unwrap()],
        phase: "Running".into(),
        capture,
        mode: (!outside).then_some(RedirectionMode::Sidecar),
        reason: StateReason { code: code.into(), message: words.into() },
        last_transition_time: Some("2026-11-21T01:00:00.5Z".into()),
        kernel: KernelView { observed_at: Some("2026-11-21T03:00:00Z".into()), ..KernelView::default() },
        ..PodState::default()
    }
}

/// A healthy node.
pub(super) fn document() -> StateReport {
    let mut node =
        NodeState { name: "node-1".into(), ambient_enabled: true, synced: true, ..NodeState::default() };
    node.agent_started_at = Some("2026-11-21T00:00:00Z".into());
    let pods = vec![pod("shop", "cart", CaptureState::Captured), pod("shop", "web", CaptureState::Outside)];
    let mut document =
        StateReport { schema: SCHEMA.into(), version: "0.1.0".into(), node, pods, ..StateReport::default() };
    document.fill_conclusions();
    document
}

pub(super) fn bypassing() -> StateReport {
    let mut document = document();
    let mut pod = pod("store", "web", CaptureState::Bypassing);
    pod.kernel.differences = vec!["the rules of IPv4 are missing".into()];
    document.pods.push(pod);
    document
}

/// A document with entries in each part, and a credential where none should be.
pub(super) fn full() -> StateReport {
    let mut document = bypassing();
    let place = || "node".to_owned();
    let rule = FirewallRule {
        netns: place(),
        family: 4,
        table: "nat".into(),
        chain: "X".into(),
        rule: "-j RETURN".into(),
    };
    document.network.firewall = Comparison::compare_sets(Vec::new(), vec![rule]);
    let before = Some("0".into());
    let sysctl = SysctlState {
        netns: place(),
        name: "net/ipv4/ip_forward".into(),
        value: "1".into(),
        previous_value: before,
    };
    document.network.sysctls = Comparison::compare_sets(Vec::new(), vec![sysctl]);
    let detail = "as it should be".into();
    document.installation = vec![InstalledFile {
        kind: "entry".into(),
        path: "/net.d/10.conflist".into(),
        correct: true,
        message: detail,
    }];
    let (name, value) = ("cni-network-config".into(), r#"{"token": "hunter2secret"}"#.into());
    document.config = vec![EffectiveSetting { name, value, source: "flag".into() }];
    let inside =
        PodState { mode: Some(RedirectionMode::InPod), ..pod("shop", "inside", CaptureState::Captured) };
    document.pods.push(inside);
    document
}
