//! The cluster, the node and the results of checks; and operations on pods that every scenario uses.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::agent::{collection, path};
use crate::checks::Checks;
use crate::control::{ControlPlane, Places};
use crate::machine::{Machine, OUTSIDE};
use crate::network::Network;
use crate::pods::{BEYOND, PORT};
use crate::running::Running;
use crate::runtime::Runtime;

/// Time limit for a pod to become ready if nothing delays it.
pub(crate) const START_LIMIT: Duration = Duration::from_secs(40);

/// The whole fixture. Fields are in drop order.
pub(crate) struct Fixture {
    pub(crate) checks: Checks,
    pub(crate) machine: Machine,
    /// The second node, in the part that needs two.
    pub(crate) second: Option<Machine>,
    pub(crate) control: ControlPlane,
    _outside: Running,
}

impl Fixture {
    pub(crate) fn start(places: &Places, runtime: Runtime, network: Network, checks: Checks) -> Self {
        let start = Instant::now();
        let outside = serve_outside();
        let control = ControlPlane::start(places);
        let machine = Machine::start(1, places, &control, runtime, network);
        let fixture = Self { checks, control, machine, second: None, _outside: outside };
        let version = fixture
            .control
            .find(&format!("/api/v1/nodes/{}", crate::machine::NAME))
            .expect("the node is there");
        let info = &version["status"]["nodeInfo"];
        let text = |field: &str| info[field].as_str().unwrap_or("?").to_owned();
        fixture.checks.note(format!(
            "kubelet {}, {}, ready {:.1} s after the start of etcd",
            text("kubeletVersion"),
            text("containerRuntimeVersion"),
            start.elapsed().as_secs_f32()
        ));
        fixture
    }

    /// Boots a second node, and returns when it is ready.
    pub(crate) fn add_node(&mut self, places: &Places) {
        let (runtime, network) = (self.machine.runtime, self.machine.network);
        self.second = Some(Machine::start(2, places, &self.control, runtime, network));
    }

    /// All nodes.
    pub(crate) fn machines(&self) -> impl Iterator<Item = &Machine> {
        std::iter::once(&self.machine).chain(&self.second)
    }

    /// Node of a pod.
    fn machine_of(&self, pod: &Value) -> &Machine {
        let is_its = |machine: &&Machine| pod["spec"]["nodeName"] == machine.name();
        self.machines().find(is_its).unwrap_or(&self.machine)
    }

    /// Creates a namespace in which pods can start.
    pub(crate) fn namespace(&self, name: &str, labels: &[(&str, &str)]) {
        let labels: BTreeMap<_, _> = labels.iter().copied().collect();
        self.control.apply("/api/v1/namespaces", &json!({"metadata": {"name": name, "labels": labels}}));
        let account = format!("/api/v1/namespaces/{name}/serviceaccounts/default");
        assert!(
            kit::found_within(START_LIMIT, || self.control.find(&account)).is_some(),
            "{name} gets no service account"
        );
    }

    /// Pods of a namespace.
    pub(crate) fn pods(&self, namespace: &str) -> Vec<Value> {
        self.control.pods(namespace)
    }

    pub(crate) fn is_ready(pod: &Value) -> bool {
        let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        conditions.into_iter().any(|one| one["type"] == "Ready" && one["status"] == "True")
    }

    pub(crate) fn create(&self, pod: &Value) {
        self.control.apply(&collection(pod), pod);
    }

    /// Waits until a pod is ready and returns it; `None` after a reported timeout.
    pub(crate) fn wait_ready(&mut self, pod: &Value) -> Option<Value> {
        let place = path(pod);
        let found = kit::found_within(START_LIMIT, || self.control.find(&place).filter(Self::is_ready));
        if found.is_none() {
            self.checks.check(false, format!("{} gets ready", place_of(pod)));
            self.explain(pod);
        }
        found
    }

    /// Creates a pod and waits for it.
    pub(crate) fn start_pod(&mut self, pod: &Value) -> Option<Value> {
        self.create(pod);
        self.wait_ready(pod)
    }

    /// Deletes pods without a grace period, and waits until they are removed.
    pub(crate) fn delete_pods(&mut self, pods: &[Value]) {
        for pod in pods {
            self.control.delete(&path(pod));
        }
        for pod in pods {
            let gone =
                kit::found_within(START_LIMIT, || self.control.find(&path(pod)).is_none().then_some(()));
            if gone.is_none() {
                self.checks.check(false, format!("{} goes", place_of(pod)));
                self.explain(pod);
            }
        }
    }

    /// Events of a pod, as the API server lists them.
    pub(crate) fn events(&self, pod: &Value) -> Vec<Value> {
        let meta = &pod["metadata"];
        let (namespace, name) =
            (meta["namespace"].as_str().unwrap_or(""), meta["name"].as_str().unwrap_or(""));
        let selector = format!("fieldSelector=involvedObject.name%3D{name}");
        let events = self.control.find(&format!("/api/v1/namespaces/{namespace}/events?{selector}"));
        events.and_then(|list| list["items"].as_array().cloned()).unwrap_or_default()
    }

    /// Prints events of a pod and its last state, after a failure.
    pub(crate) fn explain(&self, pod: &Value) {
        let events = self.events(pod);
        for event in &events[events.len().saturating_sub(4)..] {
            self.checks.note(format!("{}: {}", event["reason"], event["message"]));
        }
        let state = self.control.find(&path(pod));
        self.checks.note(
            state
                .map_or_else(|| "not there".to_owned(), |pod| pod["status"]["containerStatuses"].to_string()),
        );
    }

    /// Attempts of a container's first process until it received an answer: the lines of its log.
    pub(crate) fn attempts(&self, pod: &Value, container: &str) -> Vec<Value> {
        lines_of_json(&self.machine_of(pod).container_log(pod, container))
    }

    /// Lines of JSON that a container wrote since it last started.
    pub(crate) fn last_attempts(&self, pod: &Value, container: &str) -> Vec<Value> {
        lines_of_json(&self.machine_of(pod).last_container_log(pod, container))
    }

    /// Attempts of the application, once it has received an answer.
    pub(crate) fn first_answers(&mut self, pod: &Value) -> Vec<Value> {
        let found = kit::found_within(START_LIMIT, || {
            let attempts = self.attempts(pod, "app");
            attempts.last()?["server"].is_string().then_some(attempts)
        });
        found.unwrap_or_else(|| self.attempts(pod, "app"))
    }

    /// Name of the server that answers a connection of a pod to the outside now.
    pub(crate) fn connect(&self, pod: &Value) -> Value {
        self.connect_to(pod, &format!("{OUTSIDE}:{PORT}"))
    }

    /// Name of the server that answers a connection of a pod to this address now.
    pub(crate) fn connect_to(&self, pod: &Value, to: &str) -> Value {
        let Some(net) = Self::net_of(pod) else { return json!({"error": "the pod has no process"}) };
        let mut command = Command::new("nsenter");
        command.arg(net).arg(kit_traffic());
        connect(command, to)
    }

    /// Answer to a connection from outside the node to this address now.
    pub(crate) fn connect_from_outside(&self, to: &str) -> Value {
        connect(Command::new(kit_traffic()), to)
    }

    /// Argument of `nsenter` for a pod's network; `None` if the pod has no process.
    pub(crate) fn net_of(pod: &Value) -> Option<String> {
        Some(format!("--net=/proc/{}/ns/net", process_of(pod)?))
    }

    /// A sysctl in a pod's network namespace, by its path below `/proc/sys`.
    pub(crate) fn setting(&self, pod: &Value, path: &str) -> String {
        let Some(net) = Self::net_of(pod) else { return "no process".into() };
        let output = Command::new("nsenter").args([&net, "cat", &format!("/proc/sys/{path}")]).output();
        output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
    }

    /// Removes the rules of a pod, as a foreign script would.
    pub(crate) fn flush_rules(&self, pod: &Value) {
        let Some(net) = Self::net_of(pod) else { return };
        let flushed = Command::new("nsenter").args([&net, "iptables-nft", "-t", "nat", "-F"]).output();
        assert!(flushed.is_ok_and(|output| output.status.success()), "iptables can be run");
    }

    /// The rules in a pod's namespace, of both backends.
    pub(crate) fn rules_in(&self, pod: &Value) -> String {
        let Some(net) = Self::net_of(pod) else { return "no process".into() };
        let save = |tool: &str| {
            Command::new("nsenter")
                .args([&net, tool])
                .output()
                .map(|output| output.stdout)
                .unwrap_or_default()
        };
        let both = [save("iptables-nft-save"), save("iptables-legacy-save")].concat();
        String::from_utf8_lossy(&both)
            .lines()
            .filter(|line| line.starts_with("-A"))
            .map(|line| format!("{line}\n"))
            .collect()
    }
}

fn connect(mut traffic: Command, to: &str) -> Value {
    traffic.args(["connect", "tcp", "--timeout-ms", "3000", "--to", to]);
    let output = traffic.output().expect("kit-traffic can be run");
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| json!({"error": String::from_utf8_lossy(&output.stderr)}))
}

fn lines_of_json(text: &str) -> Vec<Value> {
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// `namespace/name`.
pub(crate) fn place_of(pod: &Value) -> String {
    let text = |field: &str| pod["metadata"][field].as_str().unwrap_or("?").to_owned();
    format!("{}/{}", text("namespace"), text("name"))
}

/// Finds a process of a pod by the pod's cgroup. CRI-O's monitor of a container is in this cgroup, too, but in the node's network.
fn process_of(pod: &Value) -> Option<u32> {
    let group = format!("/pod{}/", pod["metadata"]["uid"].as_str()?);
    let processes =
        fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut processes = processes.filter(|id: &u32| {
        fs::read_to_string(format!("/proc/{id}/cgroup"))
            .is_ok_and(|groups| groups.contains(&group) && !groups.contains("/crio-conmon-"))
    });
    processes.next()
}

fn kit_traffic() -> PathBuf {
    std::env::current_exe().expect("a path").with_file_name("kit-traffic")
}

/// Starts a server outside the node.
fn serve_outside() -> Running {
    let mut command = Command::new(kit_traffic());
    command.args(["serve", "tcp", "--name", BEYOND, "--bind", &format!("0.0.0.0:{PORT}")]);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut outside = Running(child.expect("kit-traffic is built"));
    let mut line = String::new();
    BufReader::new(outside.0.stdout.as_mut().expect("a pipe")).read_line(&mut line).expect("it answers");
    assert_eq!(line, "ready\n", "nobody listens outside");
    outside
}
