//! The node: a container runtime and a kubelet in their own namespaces, which `hack/e2e.d/node` sets up from inside.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use kit::{Auth, Pki, copy_program, kubeconfig};
use serde_json::{Value, json};

use crate::control::{ControlPlane, Places, url};
use crate::network::Network;
use crate::running::Running;
use crate::runtime::Runtime;

/// Address at which nodes reach everything outside.
pub(crate) const OUTSIDE: &str = "10.99.0.254";
/// Name of the first node.
pub(crate) const NAME: &str = "node-1";
const READY_LIMIT: Duration = Duration::from_secs(60);
/// Image of the test's pods and their sandboxes.
pub(crate) const IMAGE: &str = "registry.invalid/e2e:test";

/// The node. Drop ends it and removes its disk.
pub(crate) struct Machine {
    pub(crate) disk: PathBuf,
    pub(crate) runtime: Runtime,
    pub(crate) network: Network,
    number: u8,
    programs: PathBuf,
    process: Running,
    init: u32,
}

/// Name of a node, which is also that of its link.
fn name_of(number: u8) -> String {
    format!("node-{number}")
}

impl Machine {
    /// Boots a new node, and returns when it is ready. The cluster's first one has the number 1.
    pub(crate) fn start(
        number: u8,
        places: &Places,
        control: &ControlPlane,
        runtime: Runtime,
        network: Network,
    ) -> Self {
        let disk = places.work.join(format!("disk-{number}"));
        fill(number, &disk, places, runtime, network);
        let (process, init) = boot(number, &disk, &places.programs, runtime, network);
        let programs = places.programs.clone();
        let machine = Self { disk, runtime, network, number, programs, process, init };
        let ready = machine.wait_until_ready(control, READY_LIMIT);
        assert!(ready, "the node does not get ready:\n{}", machine.logs());
        machine
    }

    pub(crate) fn wait_until_ready(&self, control: &ControlPlane, limit: Duration) -> bool {
        let node = format!("/api/v1/nodes/{}", self.name());
        kit::found_within(limit, || {
            control.find(&node).filter(|node| is_ready(node) && node["spec"]["taints"].is_null())
        })
        .is_some()
    }

    /// Name of the node.
    pub(crate) fn name(&self) -> String {
        name_of(self.number)
    }

    /// Ends all processes and namespaces of the node and discards its memory, as a power failure does.
    pub(crate) fn crash(&mut self) {
        let _ = Command::new("kill").args(["-KILL", &self.init.to_string()]).status();
        let _ = self.process.0.wait();
    }

    /// Boots the node from its disk.
    pub(crate) fn boot(&mut self) {
        (self.process, self.init) = boot(self.number, &self.disk, &self.programs, self.runtime, self.network);
    }

    /// Replaces the node by a new one of the same name.
    pub(crate) fn replace(&mut self, places: &Places, control: &ControlPlane) {
        self.crash();
        control.delete(&format!("/api/v1/nodes/{}", self.name()));
        fs::remove_dir_all(&self.disk).expect("nobody uses it any more");
        fill(self.number, &self.disk, places, self.runtime, self.network);
        self.boot();
        assert!(self.wait_until_ready(control, READY_LIMIT), "the node does not get ready:\n{}", self.logs());
    }

    /// A path on the node, including those on its tmpfs.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        // /var/run is a link to /run, and would be resolved outside the node.
        let path = path.strip_prefix("/var").filter(|rest| rest.starts_with("/run/")).unwrap_or(path);
        format!("/proc/{}/root{path}", self.init).into()
    }

    /// Runs a command line on the node, in its mounts and network.
    pub(crate) fn run(&self, line: &str) -> Output {
        let mut command = Command::new("nsenter");
        command.args([
            &format!("--target={}", self.init),
            "--mount",
            "--net",
            "--uts",
            "--ipc",
            "--cgroup",
            "--pid",
        ]);
        command.args(["--", "sh", "-c", line]);
        command.output().expect("nsenter can be run")
    }

    /// Arguments that start a shell on the node.
    pub(crate) fn shell(&self) -> String {
        format!("nsenter --target={} --all bash", self.init)
    }

    /// Output of a shell command on the node, which must succeed.
    pub(crate) fn sh(&self, line: &str) -> String {
        let output = self.run(line);
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Sends SIGKILL to a program of the node, which its supervisor restarts.
    pub(crate) fn kill(&self, program: &str) {
        self.sh(&format!("pkill -KILL -x {program}"));
    }

    /// Kills the process that holds a pod's namespaces: the kubelet creates new ones.
    pub(crate) fn kill_sandbox(&self, pod: &Value) {
        let uid = pod["metadata"]["uid"].as_str().expect("a pod has it");
        self.sandboxes(uid).iter().for_each(|id| drop(self.run(&self.runtime.kill_sandbox(id))));
    }

    /// IDs of the sandboxes of the pod with this UID.
    pub(crate) fn sandboxes(&self, uid: &str) -> Vec<String> {
        self.sh(&self.runtime.list_sandboxes(uid)).lines().map(str::to_owned).collect()
    }

    /// Log of the container runtime since the node was installed.
    pub(crate) fn runtime_log(&self) -> String {
        let log = self.disk.join("log").join(format!("{}.log", self.runtime.process()));
        String::from_utf8_lossy(&fs::read(log).unwrap_or_default()).into_owned()
    }

    /// Output of a container, including its earlier attempts.
    pub(crate) fn container_log(&self, pod: &Value, container: &str) -> String {
        self.log_in(&log_directory(pod), container)
    }

    /// Output of a container since it last started.
    pub(crate) fn last_container_log(&self, pod: &Value, container: &str) -> String {
        self.log_files(&log_directory(pod), container).last().map(read_log).unwrap_or_default()
    }

    /// Output of a container of all pods of a namespace with this name prefix, for use without the API server.
    pub(crate) fn logs_of(&self, namespace: &str, name: &str, container: &str) -> String {
        let start = format!("{namespace}_{name}");
        let entries = fs::read_dir(self.disk.join("log/pods")).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(|name| name.starts_with(&start)).map(|name| self.log_in(&name, container)).collect()
    }

    fn log_in(&self, pod: &str, container: &str) -> String {
        self.log_files(pod, container).iter().map(read_log).collect()
    }

    /// One file for each start of a container, in order: `0.log` and so on.
    fn log_files(&self, pod: &str, container: &str) -> Vec<PathBuf> {
        let directory = self.disk.join("log/pods").join(pod).join(container);
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let mut files: Vec<_> = entries.map(|file| file.path()).collect();
        files.sort_by_key(|file| file.file_stem().and_then(|stem| stem.to_str()?.parse::<u32>().ok()));
        files
    }

    /// Ends of the node's logs.
    pub(crate) fn logs(&self) -> String {
        ["node", "import", self.runtime.process(), "kubelet"]
            .map(|name| {
                format!("-- {name}\n{}", crate::control::tail(&self.disk.join(format!("log/{name}.log"))))
            })
            .join("\n")
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.crash();
        let _ = fs::remove_dir_all(&self.disk);
    }
}

/// Name of the kubelet's log directory of a pod.
fn log_directory(pod: &Value) -> String {
    let text = |field: &str| pod["metadata"][field].as_str().expect("a pod has it").to_owned();
    format!("{}_{}_{}", text("namespace"), text("name"), text("uid"))
}

/// Lines of a container without the runtime's prefix: "TIME stdout F text".
fn read_log(file: &PathBuf) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().filter_map(|line| line.splitn(4, ' ').nth(3)).map(|line| format!("{line}\n")).collect()
}

fn is_ready(node: &Value) -> bool {
    let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|one| one["type"] == "Ready" && one["status"] == "True")
}

/// Installs the node: settings, images, and the network's own plugins.
fn fill(number: u8, disk: &Path, places: &Places, runtime: Runtime, network: Network) {
    for directory in ["etc/cni/net.d", "etc/kubernetes/manifests", "opt/cni/bin", "lib/images", "log"] {
        fs::create_dir_all(disk.join(directory)).expect("cannot make a directory");
    }
    for file in fs::read_dir(&places.images).expect("hack/e2e makes images").flatten() {
        fs::copy(file.path(), disk.join("lib/images").join(file.file_name())).expect("cannot copy an image");
    }
    if network.has_legacy_tables() {
        let image = disk.join("lib/images/image-ambient.tar");
        fs::copy("dist/image-ambient.tar", image).expect("hack/image makes images");
        use_legacy_tables(&disk.join("etc/alternatives"));
    }
    for plugin in network.plugins() {
        let from = network.directory(plugin).unwrap_or_else(|| runtime.cni(&places.programs));
        copy_program(&from.join(plugin), &disk.join("opt/cni/bin").join(plugin));
    }
    let auth =
        Auth::ClientCert { user: format!("system:node:{}", name_of(number)), group: "system:nodes".into() };
    let mut files = vec![
        ("kubernetes/client-ca.pem", Pki::shared().client_ca_pem().to_owned()),
        ("kubernetes/kubelet.kubeconfig", kubeconfig(&url(), &auth)),
        ("kubernetes/kubelet.json", kubelet(runtime).to_string()),
    ];
    files.extend(runtime.settings(network.default_network()));
    files.extend(network.files(number, runtime.cni_version()));
    for (name, text) in files {
        let file = disk.join("etc").join(name);
        fs::create_dir_all(file.parent().expect("it is below etc")).expect("cannot make a directory");
        fs::write(file, text).expect("cannot write a file");
    }
}

/// Makes the iptables tools of the node those of legacy tables.
fn use_legacy_tables(alternatives: &Path) {
    fs::create_dir_all(alternatives).expect("cannot make a directory");
    for tool in ["iptables", "ip6tables"] {
        for verb in ["", "-restore", "-save"] {
            let program = format!("/usr/sbin/{tool}-legacy{verb}");
            symlink(program, alternatives.join(format!("{tool}{verb}"))).expect("cannot make a link");
        }
    }
}

fn kubelet(runtime: Runtime) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": false}, "webhook": {"enabled": true},
            "x509": {"clientCAFile": "/etc/kubernetes/client-ca.pem"},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": runtime.endpoint(),
        "cgroupDriver": "cgroupfs", "failCgroupV1": false, "failSwapOn": false, "oomScoreAdj": 0,
        // No server is there; without the setting every pod has an Event about it.
        "clusterDNS": ["10.96.0.10"], "clusterDomain": "cluster.local",
        "staticPodPath": "/etc/kubernetes/manifests",
        "maxPods": 200, "seccompDefault": true, "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "1Mi", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%"},
    })
}

/// Starts the first process of the node, and connects its network; returns that process' parent, and its PID.
fn boot(number: u8, disk: &Path, programs: &Path, runtime: Runtime, network: Network) -> (Running, u32) {
    let script = std::env::current_dir().expect("a directory").join("hack/e2e.d/node");
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    // The sandbox's temporary directory does not exist on the node.
    command.env_remove("TMPDIR");
    command.arg(script).arg(number.to_string());
    command.args([disk, programs, Path::new(runtime.process()), &runtime.directory(programs)]);
    let log = fs::File::options()
        .create(true)
        .append(true)
        .open(disk.join("log/node.log"))
        .expect("cannot make a log");
    command.stdin(Stdio::null()).stdout(log.try_clone().expect("a file can be shared")).stderr(log);
    let process = Running(command.spawn().expect("unshare can be run"));
    let children = format!("/proc/{0}/task/{0}/children", process.0.id());
    let first = || fs::read_to_string(&children).ok()?.split_whitespace().next()?.parse().ok();
    let init = kit::found_within(Duration::from_secs(10), first).expect("unshare forks");
    connect(number, init, network);
    (process, init)
}

/// Creates a link from the node to the sandbox's own network, as to a switch.
fn connect(number: u8, init: u32, network: Network) {
    let link = name_of(number);
    // The kernel removes the namespaces of a crashed node, and this link with them, asynchronously.
    drop(Command::new("ip").args(["link", "delete", &link]).output());
    ip(None, &format!("link add {link} type veth peer name eth0 netns {init}"));
    ip(None, &format!("address add 10.99.{}.254/24 dev {link}", number - 1));
    ip(None, &format!("link set {link} up"));
    network.outside(number).iter().for_each(|line| ip(None, line));
    network.inside().iter().for_each(|line| ip(Some(init), line));
}

/// Runs `ip` with these arguments, in the network namespace of a process if given.
fn ip(of: Option<u32>, line: &str) {
    let net = of.map(|process| format!("--net=/proc/{process}/ns/net"));
    let command = ["nsenter"].into_iter().chain(net.as_deref()).chain(["ip"]).chain(line.split(' '));
    let command: Vec<_> = command.skip(usize::from(net.is_none())).collect();
    let output = Command::new(command[0]).args(&command[1..]).output().expect("ip can be run");
    assert!(output.status.success(), "ip {line}: {}", String::from_utf8_lossy(&output.stderr));
}
