//! A cluster of 300 nodes whose agents are simulated by one simulated kubelet.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use kit::{
    ApiServer, Auth, Forwarded, ForwardedReply, ForwardedStart, SimulatedKubelet, StoredPod, TempDir, binary,
};
use report::{
    CaptureState, Comparison, DifferenceKind, InstalledFile, KernelView, NodeSimulation, NodeState,
    PartHealth, PodState, PreflightFact, RedirectionMode, SCHEMA, SimulatedPod, StateDifference, StateReason,
    StateReport, ZtunnelState, explain_pod, judge_preflight,
};
use serde_json::{Value, json};

pub(super) const NODES: usize = 300;
pub(super) const PODS: usize = 10_000;
pub(super) const AGENTS: &str = "cli-agents";
pub(super) const MESH: &str = "cli-mesh";
/// Agents that do not answer.
pub(super) const SILENT: [usize; 3] = [7, 8, 9];
/// An agent whose port is closed.
pub(super) const REFUSED: usize = 10;
/// An agent whose kernel reports a user other than root as its client.
pub(super) const WRONG_USER: usize = 11;
/// An agent that answers after two seconds.
pub(super) const LATE: usize = 12;
/// An agent whose connection breaks.
pub(super) const BROKEN: usize = 13;
/// A node whose kubelet does not listen.
pub(super) const UNREACHABLE: usize = 14;
/// A node without an agent.
const WITHOUT_AGENT: usize = 25;
/// A node whose agent does not run.
const NOT_RUNNING: usize = 19;
const THREADS: usize = 6;
/// Arguments for agents that are late.
pub(super) const PATIENT: &[&str] = &["--timeout", "30s"];
const OUR_LABEL: &str = "cli-agent";

pub(super) fn node(at: usize) -> String {
    format!("cli-n{at}")
}

pub(super) fn pods_of_silent_nodes() -> usize {
    let silent =
        SILENT.into_iter().chain([REFUSED, WRONG_USER, BROKEN, UNREACHABLE, NOT_RUNNING, WITHOUT_AGENT]);
    silent.map(|at| pods_of(at).count()).sum()
}

/// Number of pods of the agent that would not start with other settings.
pub(super) fn pods_without_settings() -> usize {
    pods_of(1).count()
}

fn pods_of(at: usize) -> impl Iterator<Item = usize> {
    (at..PODS).step_by(NODES)
}

/// Result of a run of the program.
pub(super) struct Run {
    pub(super) status: i32,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

impl Run {
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{error}: {} {}", self.stdout, self.stderr))
    }

    /// Number of nodes that did not answer.
    pub(super) fn unanswered(&self) -> usize {
        self.json()["unanswered"].as_array().map_or(0, Vec::len)
    }
}

/// Runs a request to all nodes, until `is_whole`. Agents may be late if other tests keep the CPUs busy, so it runs three times at
/// most, the last time with a longer limit.
fn run_until_whole(run: impl Fn(&[&str]) -> Run, is_whole: impl Fn(&Run) -> bool) -> Run {
    let limits = [&[][..], PATIENT];
    limits.into_iter().fold(run(&[]), |last, limit| if is_whole(&last) { last } else { run(limit) })
}

pub(super) fn run(words: &[&str]) -> Run {
    output(Command::new(binary("millrace")).args(words))
}

fn output(command: &mut Command) -> Run {
    let output = command.env("KUBECONFIG", "/nowhere").output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Run { status: output.status.code().unwrap(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
}

pub(super) struct Fixture {
    api: &'static ApiServer,
    pub(super) kubelet: SimulatedKubelet,
    files: TempDir,
    /// Number of commands: each has its own kubeconfig.
    commands: AtomicUsize,
}

impl Fixture {
    pub(super) fn new(api: &'static ApiServer) -> Self {
        let kubelet = SimulatedKubelet::start(start, answer);
        for (name, labels) in [
            (AGENTS, json!({})),
            (MESH, json!({"istio.io/dataplane-mode": "ambient"})),
            ("cli-mixed", json!({"istio.io/dataplane-mode": "ambient", "istio-injection": "enabled"})),
        ] {
            let namespace = json!({"metadata": {"name": name, "labels": labels}});
            api.admin().create("/api/v1/namespaces", &namespace);
        }
        let port = kubelet.address().port();
        in_parallel(NODES, |at| create_node(api, at, port));
        api.store_pods((0..PODS).map(pod));
        running(api, MESH, "pod-26");
        let policy = json!({
            "metadata": {"name": "web-only"},
            "spec": {
                "podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Ingress"],
                "ingress": [{"from": [{"namespaceSelector": {}}], "ports": [{"port": 8080}]}],
            },
        });
        api.admin().create(&format!("/apis/networking.k8s.io/v1/namespaces/{MESH}/networkpolicies"), &policy);
        grant(api);
        Self { api, kubelet, files: TempDir::new().unwrap(), commands: AtomicUsize::new(0) }
    }

    pub(super) fn directory(&self) -> &Path {
        self.files.path()
    }

    /// Runs the program with the permissions of the manifest, and nothing else.
    pub(super) fn millrace(&self, words: &[&str]) -> Run {
        self.millrace_as(&Auth::ClientCert { user: "viewer".into(), group: "viewers".into() }, words)
    }

    /// Runs a request to all nodes until all answers are there: see [`run_until_whole`].
    pub(super) fn millrace_until(&self, words: &[&str], is_whole: impl Fn(&Run) -> bool) -> Run {
        run_until_whole(|limit| self.millrace(&[words, limit].concat()), is_whole)
    }

    /// Runs a request to all nodes, of which eight do not answer and one runs no agent.
    pub(super) fn millrace_of_all(&self, words: &[&str]) -> Run {
        let line = "millrace: partial: 9 nodes did not answer";
        self.millrace_until(words, |run| kit::has_line(&run.stderr, line))
    }

    /// Runs a simulation on all nodes with this text on stdin; it prints no such line.
    pub(super) fn simulation_of_all(&self, words: &[&str], input: &str) -> Run {
        let file = self.files.path().join("input");
        fs::write(&file, input).unwrap();
        let viewer = Auth::ClientCert { user: "viewer".into(), group: "viewers".into() };
        let run = |limit: &[&str]| {
            let mut command = self.command(&viewer, &[words, limit].concat());
            output(command.stdin(File::open(&file).unwrap()))
        };
        run_until_whole(run, |run| run.unanswered() == 8)
    }

    pub(super) fn millrace_as(&self, auth: &Auth, words: &[&str]) -> Run {
        output(&mut self.command(auth, words))
    }

    fn command(&self, auth: &Auth, words: &[&str]) -> Command {
        let file =
            self.files.path().join(format!("kubeconfig-{}", self.commands.fetch_add(1, Ordering::Relaxed)));
        fs::write(&file, self.api.kubeconfig(auth)).unwrap();
        let mut command = Command::new(binary("millrace"));
        command.args(words).arg("--kubeconfig").arg(&file);
        command.args(["--selector", &format!("app={OUR_LABEL}")]);
        command
    }
}

fn in_parallel(count: usize, work: impl Fn(usize) + Sync) {
    thread::scope(|scope| {
        for first in 0..THREADS {
            let work = &work;
            scope.spawn(move || (first..count).step_by(THREADS).for_each(work));
        }
    });
}

fn create_node(api: &ApiServer, at: usize, port: u16) {
    let name = node(at);
    let taints =
        if at == 24 { json!([{"key": "cni.istio.io/not-ready", "effect": "NoSchedule"}]) } else { json!([]) };
    api.admin().create("/api/v1/nodes", &json!({"metadata": {"name": name}, "spec": {"taints": taints}}));
    let port = if at == UNREACHABLE { 1 } else { port };
    let status = json!({
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "conditions": [{"type": "Ready", "status": "True"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    });
    api.admin().patch_status(&format!("/api/v1/nodes/{name}"), &status);
    if at != WITHOUT_AGENT {
        create_agent(api, at);
    }
}

fn create_agent(api: &ApiServer, at: usize) {
    let mut agent = ApiServer::pod(AGENTS, &format!("agent-{at}"));
    agent["metadata"]["labels"] = json!({"app": OUR_LABEL});
    agent["spec"]["nodeName"] = node(at).into();
    api.create_pod(&agent);
    if at != NOT_RUNNING {
        running(api, AGENTS, &format!("agent-{at}"));
    }
}

fn running(api: &ApiServer, namespace: &str, name: &str) {
    let status = json!({
        "phase": "Running", "startTime": "2026-01-01T00:00:00Z",
        "conditions": [{"type": "Ready", "status": "True"}],
    });
    api.admin().patch_status(&format!("/api/v1/namespaces/{namespace}/pods/{name}"), &status);
}

fn pod(at: usize) -> StoredPod {
    let app = (at == 40 || at == 41).then_some("web");
    StoredPod { namespace: MESH, name: format!("pod-{at}"), node: node(at % NODES), app }
}

/// Creates the objects of deploy/millrace-viewer.yaml for the namespace of these agents, and bindings to a user.
fn grant(api: &ApiServer) {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../deploy/millrace-viewer.yaml");
    let text =
        fs::read_to_string(file).unwrap().replace("namespace: kube-system", &format!("namespace: {AGENTS}"));
    let objects: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    for object in objects {
        let (kind, name) = (object["kind"].as_str().unwrap(), object["metadata"]["name"].clone());
        let place = match kind {
            "ClusterRole" => rbac.to_owned(),
            "Role" => format!("{rbac}/namespaces/{AGENTS}"),
            other => panic!("{other} is no role"),
        };
        let collection = kind.to_lowercase();
        api.admin().create(&format!("{place}/{collection}s"), &object);
        let binding = json!({
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
            "subjects": [{"kind": "User", "name": "viewer", "apiGroup": "rbac.authorization.k8s.io"}],
        });
        api.admin().create(&format!("{place}/{collection}bindings"), &binding);
    }
    wait_until_granted(api);
}

/// Waits for the authorizer, which receives roles from its own watch.
fn wait_until_granted(api: &ApiServer) {
    let viewer = api.client(&Auth::ClientCert { user: "viewer".into(), group: "viewers".into() });
    // Without an upgrade the API server has nothing to forward: any status except 403 shows that the role is in force.
    let paths = [
        "/api/v1/nodes?limit=1".to_owned(),
        format!("/api/v1/namespaces/{AGENTS}/pods/agent-1/portforward?ports=9876"),
    ];
    for path in paths {
        kit::until(format_args!("{path} is allowed"), || viewer.request("GET", &path, None).status != 403);
    }
}

fn number(agent: &str) -> usize {
    agent.strip_prefix("agent-").and_then(|at| at.parse().ok()).unwrap()
}

fn start(agent: &str) -> ForwardedStart {
    match number(agent) {
        REFUSED => ForwardedStart::Error("dial tcp4 127.0.0.1:9876: connect: connection refused".into()),
        _ => ForwardedStart::Connect,
    }
}

fn answer(asked: &Forwarded) -> ForwardedReply {
    let at = number(&asked.pod);
    assert_eq!((asked.namespace.as_str(), asked.port), (AGENTS, 9876));
    match at {
        _ if SILENT.contains(&at) => return ForwardedReply::Silence,
        WRONG_USER => return ForwardedReply::Http(403, b"root only\n".to_vec()),
        BROKEN => return ForwardedReply::Broken,
        _ => {}
    }
    let mut state = state(at);
    state.fill_conclusions();
    let removal = format!("/debug/simulate?namespace={MESH}&labels=istio.io/dataplane-mode-");
    let body = match asked.path.split_once("?pod=") {
        None if asked.path == "/debug/state" => serde_json::to_vec_pretty(&state).unwrap(),
        None if asked.path == removal => serde_json::to_vec(&removed_label(at)).unwrap(),
        None if asked.path.starts_with("/debug/simulate?settings=%7B") => {
            assert!(asked.path.len() <= 64 + report::MAX_SETTINGS, "an agent refuses longer ones");
            serde_json::to_vec(&other_settings(at)).unwrap()
        }
        None if asked.path == "/debug/lines" => b"a line, token: abc\n".to_vec(),
        Some(("/debug/explain", pod)) => {
            let (namespace, name) = pod.split_once('/').unwrap();
            serde_json::to_vec(&explain_pod(&state, namespace, name)).unwrap()
        }
        _ => return ForwardedReply::Http(404, b"no such path\n".to_vec()),
    };
    let reply = ForwardedReply::Http(200, body);
    if at == LATE { ForwardedReply::Late(Duration::from_secs(2), Box::new(reply)) } else { reply }
}

/// Simulated removal of the mesh's label: its pods leave.
fn removed_label(at: usize) -> NodeSimulation {
    let leaving = |pod: usize| SimulatedPod {
        namespace: MESH.to_owned(),
        name: format!("pod-{pod}"),
        before: Some(RedirectionMode::InPod),
        ..SimulatedPod::default()
    };
    let pods = pods_of(at).map(leaving).collect();
    let mode = Some(RedirectionMode::InPod);
    NodeSimulation { mode, synced: true, ztunnel_ready: true, pods, ..NodeSimulation::default() }
}

/// Simulated change of settings: its pods stay, and something changes for them. One agent would not start with them.
fn other_settings(at: usize) -> NodeSimulation {
    if at == 1 {
        let mistakes = vec!["a mistake".to_owned()];
        return NodeSimulation { synced: true, mistakes, ..NodeSimulation::default() };
    }
    let mut simulation = removed_label(at);
    for pod in &mut simulation.pods {
        pod.after = pod.before;
        pod.changes = vec!["its DNS would be captured".to_owned()];
    }
    simulation.not_simulated = vec!["AMBIENT_TABLES".to_owned()];
    simulation
}

fn state(at: usize) -> StateReport {
    let mut state = StateReport {
        schema: SCHEMA.to_owned(),
        version: if at == 23 { "0.0.9" } else { "0.1.0" }.to_owned(),
        node: NodeState {
            name: node(at),
            agent_started_at: Some("2026-02-01T00:00:00Z".to_owned()),
            ambient_enabled: true,
            mode: Some(RedirectionMode::InPod),
            configured_mode: "in-pod".to_owned(),
            synced: true,
            ..NodeState::default()
        },
        preflight: judge_preflight(&[PreflightFact::Files(None)]),
        ztunnels: vec![ZtunnelState {
            namespace: "istio-system".to_owned(),
            name: format!("ztunnel-{at}"),
            ready: at != 30,
            connected: Some(true),
            synced: Some(true),
            ..ZtunnelState::default()
        }],
        network: report::NetworkState::nothing_desired(),
        pods: pods_of(at).filter(|pod| *pod != 26).map(pod_state).collect(),
        ..StateReport::default()
    };
    state.observation.observed_at = "2026-03-01T00:00:00Z".to_owned();
    match at {
        22 => {
            let missing = StateDifference {
                kind: DifferenceKind::Missing,
                family: Some(4),
                object: "add istio-inpod-probes-v4 10.0.0.1".to_owned(),
            };
            state.network.ipsets =
                Comparison { differences: vec![missing], ..Comparison::compare_sets(Vec::new(), Vec::new()) };
        }
        28 => {
            let why = "cannot write the plugin".to_owned();
            state.health =
                vec![PartHealth { component: "installer".to_owned(), healthy: false, message: why.clone() }];
            state.installation = vec![InstalledFile {
                kind: "plugin".to_owned(),
                path: "/host/opt/cni/bin/istio-cni".to_owned(),
                correct: false,
                message: why,
            }];
        }
        29 => state.node.problem = Some("iptables cannot be run".to_owned()),
        _ => {}
    }
    state
}

fn pod_state(at: usize) -> PodState {
    let capture = match at {
        20 | 320 => CaptureState::Bypassing,
        21 => CaptureState::Held,
        31 => CaptureState::Pending,
        32 => CaptureState::Leaving,
        33 => CaptureState::Unknown,
        _ => CaptureState::Captured,
    };
    PodState {
        namespace: MESH.to_owned(),
        name: format!("pod-{at}"),
        ips: vec![std::net::Ipv4Addr::from(0x0a00_0000 + u32::try_from(at).unwrap()).into()],
        phase: "Running".to_owned(),
        capture,
        mode: Some(RedirectionMode::InPod),
        reason: StateReason {
            code: "ambient-namespace".to_owned(),
            message: "its namespace is labelled istio.io/dataplane-mode=ambient".to_owned(),
        },
        last_transition_time: Some("2026-02-01T00:00:01Z".to_owned()),
        redirection_annotation: Some("enabled".to_owned()),
        kernel: KernelView { observed_at: Some("2026-03-01T00:00:00Z".to_owned()), ..KernelView::default() },
        ztunnel: Some(report::ZtunnelView { acknowledged: capture == CaptureState::Captured, error: None }),
        ..PodState::default()
    }
}
