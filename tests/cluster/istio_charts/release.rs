//! A Helm release of a chart: its objects in the API server, and its pod on one node.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use kit::{ApiServer, Container, Daemon, Netns, Node, NodeOptions, Pod, PodSandbox, TempDir};
use serde_json::{Value, json};

use super::chart::{Chart, capability_options, strings, text};

const DAY: Duration = Duration::from_hours(24);
/// Script that becomes the container of `helm test`. `$1` is its directory, `$2` the node's directory at the path `$3`, `$4` are
/// options of `setpriv`, and the rest are arguments.
const ENTER_TEST: &str = r#"
set -e
cd "$1" && mount --bind . . && cd "$1"
mkdir -p usr dev "./$3" && ln -sfn usr/lib lib && ln -sfn usr/lib64 lib64
for name in usr dev; do mount --rbind "/$name" "$name"; done
mount --bind "$2" "./$3"
mount -o remount,bind,ro "./$3"
shift 3
options=$1
shift
exec chroot . setpriv $options --no-new-privs /install-cni "$@"
"#;
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
/// Variables of the kit's container that this one must not have.
const KIT_ENVIRONMENT: [&str; 5] =
    ["CNI_NETWORK_CONFIG", "CNI_NET_DIR", "REPAIR_ENABLED", "NODE_NAME", "LOG_LEVEL"];

pub(super) struct Release {
    pub(super) api: &'static ApiServer,
    pub(super) chart: Chart,
    pub(super) node: Node,
    pub(super) container: Container,
    before: Files,
    pods: usize,
    directories: Directories,
    sandbox: Option<PodSandbox>,
}

/// Directories of the node that charts mount, except for those that the kit mounts itself.
struct Directories {
    files: TempDir,
    proc_ns: PathBuf,
}

/// Name, mode and content of each file of a node that the agent may change.
pub(super) type Files = BTreeMap<PathBuf, (u32, Vec<u8>)>;

impl Release {
    /// Installs a chart, including the DaemonSet's pod, without starting the agent. `None` means that there is no API server.
    pub(super) fn install(chart: Chart) -> Option<Self> {
        let api = ApiServer::shared()?;
        let (admin, namespace) = (api.admin(), chart.name.clone());
        api.create_namespace(&namespace);
        let labels = json!({"kubernetes.io/os": "linux"});
        admin.create("/api/v1/nodes", &json!({"metadata": {"name": namespace, "labels": labels}}));
        let node = Node::new(NodeOptions::default());
        node.write_conflist("10-kit.conflist", &node.conflist(&[]));
        let container = Container::new(&node);
        let container = KIT_ENVIRONMENT.into_iter().fold(container, Container::without_env);
        let directories = Directories::new(node.netns());
        let mut release =
            Self { api, chart, node, container, before: Files::new(), pods: 0, directories, sandbox: None };
        release.before = release.files();
        release.create_objects();
        release.prepare_container();
        Some(release)
    }

    fn path(&self, group: &str, resource: &str, name: &str) -> String {
        let root = if group == "v1" { "/api" } else { "/apis" };
        format!("{root}/{group}/namespaces/{}/{resource}/{name}", self.chart.name)
    }

    fn collection(&self, group: &str, resource: &str) -> String {
        self.path(group, resource, "").trim_end_matches('/').to_owned()
    }

    fn role(&self, name: &str) -> String {
        format!("{}:{name}", self.chart.name)
    }

    fn create_objects(&self) {
        let admin = self.api.admin();
        admin.create(&self.collection("v1", "serviceaccounts"), &json!({"metadata": {"name": "istio-cni"}}));
        for (name, rules) in self.chart.roles() {
            let role = self.role(&name);
            admin.create(
                &format!("{RBAC}/clusterroles"),
                &json!({"metadata": {"name": role}, "rules": rules}),
            );
            let binding = json!({
                "metadata": {"name": role},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
                "subjects": [{"kind": "ServiceAccount", "namespace": self.chart.name, "name": "istio-cni"}],
            });
            admin.create(&format!("{RBAC}/clusterrolebindings"), &binding);
        }
        for (name, data) in self.chart.config_maps() {
            admin.create(
                &self.collection("v1", "configmaps"),
                &json!({"metadata": {"name": name}, "data": data}),
            );
        }
        admin.create(&self.collection("apps/v1", "daemonsets"), &self.chart.daemon_set());
    }

    /// Prepares the container as the runtime does from the manifest: mounts, capabilities, and the pod's own network or the node's.
    fn prepare_container(&mut self) {
        for (host, at) in self.chart.mounts() {
            match host.as_str() {
                "/proc" => self.container.add_mount(&self.directories.files.path().join("proc"), &at),
                "/var/run/netns" | "/run/netns" | "/var/run/docker/netns" => {
                    self.container.add_mount(&self.node.netns_dir(), &at);
                }
                _ if is_in_the_kit(&at) => {}
                _ => self.container.add_mount(&self.directories.of(&host), &at),
            }
        }
        let program = self.container.root().join("agent");
        kit::copy_program(&kit::binary("install-cni"), &program);
        match self.chart.privileges() {
            options if options.is_empty() => self.run_as("/agent"),
            options => self.run_as(&format!("setpriv {options} /agent")),
        }
    }

    /// Removes a capability from an otherwise privileged container.
    pub(super) fn drop_capability(&mut self, name: &str) {
        self.run_as(&format!("setpriv --bounding-set=-{name} /agent"));
    }

    fn run_as(&mut self, command: &str) {
        let script = self.container.root().join("confine");
        kit::write_script(&script, &format!("#!/bin/bash\nexec {command} \"$@\"\n"));
        self.container.set_program(&script);
    }

    /// Creates the next pod of the DaemonSet: its object, its token, its environment.
    pub(super) fn create_pod(&mut self) {
        self.pods += 1;
        let (admin, name) = (self.api.admin(), self.pod_name());
        let owner = admin.get(&self.path("apps/v1", "daemonsets", "istio-cni-node"));
        let mut pod = owner["spec"]["template"].clone();
        pod["metadata"]["name"] = json!(name);
        pod["metadata"]["namespace"] = json!(self.chart.name);
        pod["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "istio-cni-node", "controller": true,
            "blockOwnerDeletion": true, "uid": owner["metadata"]["uid"],
        }]);
        pod["spec"]["nodeName"] = json!(self.chart.name);
        let pod = self.api.create_pod(&pod);
        self.container.set_account_in(&self.chart.name, &self.token(&pod), self.api.ca_pem());
        for (key, value) in self.chart.environment(&self.chart.name, &name) {
            self.container.set_env(&key, &value);
        }
        if !self.chart.is_host_network() {
            let sandbox = self.node.pod(Pod::new(&self.chart.name, &name), &[]);
            self.container.set_netns(&sandbox.netns);
            self.sandbox = Some(sandbox);
        }
    }

    fn pod_name(&self) -> String {
        format!("istio-cni-node-x7k{}", self.pods)
    }

    /// A token as the kubelet requests it: bound to the pod.
    fn token(&self, pod: &Value) -> String {
        let bound = json!({
            "kind": "Pod", "apiVersion": "v1", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"],
        });
        let request = json!({"spec": {"expirationSeconds": 3607, "boundObjectRef": bound}});
        let path = self.path("v1", "serviceaccounts", "istio-cni/token");
        text(&self.api.admin().create(&path, &request)["status"]["token"])
    }

    /// Starts the agent in the newest pod, and waits until it is ready and its entry is installed.
    pub(super) fn start(&self) -> Daemon {
        let arguments = self.chart.arguments();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let mut daemon = self.container.start_with(&arguments, &[]);
        daemon.wait_until_ready();
        assert!(self.is_installed(), "{}: {}", self.chart.name, daemon.log());
        daemon
    }

    /// Waits until the agent has requested its own pod, without which it cannot know at its end that permissions are gone.
    pub(super) fn wait_until_pod_is_read(&self) {
        let path = self.path("v1", "pods", &self.pod_name());
        kit::until("the agent has read its own pod", || {
            self.api.requests_with(&path).iter().any(|request| request.verb == "get" && request.uri == path)
        });
    }

    /// Asserts that the agent answers the plugin's request about a pod, in every mode: here its own pod in the API server.
    pub(super) fn answers_the_plugin(&self) {
        let pod = self.api.admin().get(&self.path("v1", "pods", &self.pod_name()));
        let (name, uid) = (&pod["metadata"]["name"], &pod["metadata"]["uid"]);
        let request = json!({"verb": "check", "namespace": self.chart.name, "name": name, "uid": uid});
        let mut stream = UnixStream::connect(self.node.run_dir().join("agent.sock")).unwrap();
        writeln!(stream, "{request}").unwrap();
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).unwrap();
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(&answer["pod"]["metadata"]["uid"], uid, "{}: {answer}", self.chart.name);
    }

    /// Runs the command of `helm test` with what the chart gives it and no network, as often as the kubelet would restart it, and
    /// checks whether it succeeds. Charts without a test pass.
    pub(super) fn test(&self, succeeds: bool) {
        let pod = self.chart.test_pod();
        if pod.is_null() {
            return;
        }
        let (container, volume) = (&pod["containers"][0], &pod["volumes"][0]["hostPath"]["path"]);
        assert_eq!(volume, "/var/run/istio-cni");
        assert_eq!(container["volumeMounts"].as_array().unwrap().len(), 1, "{container}");
        let root = TempDir::new().unwrap();
        kit::copy_program(&kit::binary("install-cni"), &root.path().join("install-cni"));
        let [program, arguments @ ..] = &strings(&container["command"])[..] else { panic!("{container}") };
        assert_eq!(program, "install-cni");
        let run = || {
            let mut command = Command::new("unshare");
            command.args(["--mount", "--net", "bash", "-c", ENTER_TEST, "enter"]).arg(root.path());
            command.arg(self.node.run_dir()).arg(text(&container["volumeMounts"][0]["mountPath"]));
            command.arg(capability_options(&container["securityContext"]["capabilities"])).args(arguments);
            command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").output().unwrap()
        };
        let name = &self.chart.name;
        if succeeds {
            let last = std::cell::RefCell::new(None);
            let what = std::fmt::from_fn(|f| write!(f, "{name}: `helm test`: {:?}", last.borrow()));
            kit::until(what, || last.borrow_mut().insert(run()).status.success());
        } else {
            let output = run();
            assert_eq!(output.status.code(), Some(2), "{name}: {output:?}");
        }
    }

    /// Sends SIGTERM; returns the agent's log, and the duration of its end according to that. It exits well before SIGKILL.
    pub(super) fn stop(&self, daemon: Daemon) -> (String, Duration) {
        let (status, log) = daemon.terminate();
        assert!(status.success(), "{}: {status}: {log}", self.chart.name);
        let took = logged_shutdown(&log);
        let limit = Duration::from_secs(self.chart.grace_period().saturating_sub(1));
        assert!(took < limit, "{}: {took:?}: {log}", self.chart.name);
        (log, took)
    }

    /// Deletes the newest pod in the API server, after which the kubelet sends SIGTERM.
    pub(super) fn delete_pod(&self) {
        let answer = self.api.admin().request("DELETE", &self.path("v1", "pods", &self.pod_name()), None);
        assert!(answer.body["metadata"]["deletionTimestamp"].is_string(), "{answer:?}");
    }

    /// Reports the end of the newest pod, as the kubelet does.
    pub(super) fn finish_pod(&mut self) {
        self.api.admin().delete(&self.path("v1", "pods", &self.pod_name()));
        self.sandbox = None;
    }

    pub(super) fn delete_daemon_set(&self) {
        self.api.admin().delete(&self.path("apps/v1", "daemonsets", "istio-cni-node"));
    }

    /// Deletes the rest of a release, in Helm's order, which begins with the DaemonSet.
    pub(super) fn delete_rest(&self) {
        let admin = self.api.admin();
        for kind in ["clusterrolebindings", "clusterroles"] {
            for (name, _) in self.chart.roles() {
                admin.delete(&format!("{RBAC}/{kind}/{}", self.role(&name)));
            }
        }
        for (name, _) in self.chart.config_maps() {
            admin.delete(&self.path("v1", "configmaps", &name));
        }
        admin.delete(&self.path("v1", "serviceaccounts", "istio-cni"));
    }

    /// Recreates roles and bindings, as `helm upgrade --force` does.
    pub(super) fn replace_bindings(&self) {
        let admin = self.api.admin();
        for (name, _) in self.chart.roles() {
            let path = format!("{RBAC}/clusterrolebindings/{}", self.role(&name));
            let mut binding = admin.get(&path);
            binding["metadata"] = json!({"name": binding["metadata"]["name"]});
            admin.delete(&path);
            admin.create(&format!("{RBAC}/clusterrolebindings"), &binding);
        }
    }

    /// Whether the plugin has an entry in one of the node's network configurations, or a file of its own.
    pub(super) fn is_installed(&self) -> bool {
        let configurations = fs::read_dir(self.container.net_d()).unwrap().map(|entry| entry.unwrap().path());
        let named = |path: &PathBuf| path.extension().is_some_and(|end| end == "conflist" || end == "conf");
        configurations.filter(named).any(|path| {
            let network: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap_or_default();
            let plugins = network["plugins"].as_array().into_iter().flatten();
            plugins.chain([&network]).any(|plugin| plugin["type"] == "istio-cni")
        })
    }

    /// Files on the node that are new or changed since before the release, and missing ones.
    pub(super) fn left_behind(&self) -> Vec<PathBuf> {
        let (before, now) = (&self.before, self.files());
        let all: BTreeSet<_> = before.keys().chain(now.keys()).collect();
        all.into_iter().filter(|path| before.get(*path) != now.get(*path)).cloned().collect()
    }

    /// The node's rules, sets and policy routes in the kernel.
    pub(super) fn kernel(&self) -> String {
        let shown = ["nft list ruleset", "ip rule", "ip -6 rule", "ipset list -name"];
        shown.map(|command| self.node.netns().sh(command)).concat()
    }

    /// The files that the agent may change.
    pub(super) fn files(&self) -> Files {
        let mut files = Files::new();
        let run = self.node.run_dir();
        for directory in [
            self.container.net_d(),
            self.container.bin_dir(),
            run,
            self.directories.of("/etc/ambient-config"),
        ] {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                let meta = fs::symlink_metadata(&path).unwrap();
                let content = if meta.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
                files.insert(path, (meta.permissions().mode() & 0o7777, content));
            }
        }
        files
    }
}

impl Drop for Release {
    fn drop(&mut self) {
        let admin = self.api.admin();
        let roles = self.chart.roles();
        let of = |kind: &'static str| roles.iter().map(move |(name, _)| (kind, name));
        for (kind, name) in of("clusterrolebindings").chain(of("clusterroles")) {
            // Objects may have been deleted already; a failure here must not hide the test's own.
            drop(admin.try_request("DELETE", &format!("{RBAC}/{kind}/{}", self.role(name)), None));
        }
        drop(admin.try_request("DELETE", &format!("/api/v1/nodes/{}", self.chart.name), None));
    }
}

fn is_in_the_kit(at: &str) -> bool {
    ["/host/opt/cni/bin", "/host/etc/cni/net.d", "/var/run/istio-cni"].contains(&at)
}

impl Directories {
    /// With a process list that has only the node's first process.
    fn new(node: &Netns) -> Self {
        let files = TempDir::new().unwrap();
        let directory = files.path().join("proc/1/ns");
        fs::create_dir_all(&directory).unwrap();
        fs::write(files.path().join("proc/1/cgroup"), "0::/\n").unwrap();
        let fields = (4..22).map(|field| field.to_string()).collect::<Vec<_>>().join(" ");
        fs::write(files.path().join("proc/1/stat"), format!("1 (init) S {fields} 100 0\n")).unwrap();
        let proc_ns = directory.join("net");
        fs::write(&proc_ns, "").unwrap();
        let mounted = Command::new("mount").arg("--bind").arg(node.path()).arg(&proc_ns).status().unwrap();
        assert!(mounted.success(), "cannot mount the node's network namespace");
        Self { files, proc_ns }
    }

    /// The directory that stands in for one of the node's.
    fn of(&self, host: &str) -> PathBuf {
        let directory = self.files.path().join("host").join(host.trim_start_matches('/'));
        fs::create_dir_all(&directory).unwrap();
        directory
    }
}

impl Drop for Directories {
    fn drop(&mut self) {
        drop(Command::new("umount").arg(&self.proc_ns).status());
    }
}

/// Duration of an agent's end, according to its log: when a dozen agents start and end at the same time, starting and ending
/// processes takes longer.
pub(crate) fn logged_shutdown(log: &str) -> Duration {
    let is_signal = |line: &&str| kit::has_logged(line, "shutting down", &[("signal", "SIGTERM")]);
    let began = log.lines().find(is_signal);
    let [began, ended] = [began, log.lines().last()].map(|line| logged_at(line.unwrap()));
    ended.checked_sub(began).unwrap_or_else(|| ended + DAY - began)
}

/// Time of day of a log line, such as `2026-01-02T03:04:05.678901Z<TAB>info<TAB>...`.
fn logged_at(line: &str) -> Duration {
    let time = line.split_once('T').and_then(|(_, rest)| rest.split_once('Z')).unwrap().0;
    let [hours, minutes, seconds] = time.split(':').collect::<Vec<_>>().try_into().unwrap();
    let minutes = hours.parse::<u64>().unwrap() * 60 + minutes.parse::<u64>().unwrap();
    Duration::from_secs(minutes * 60) + Duration::from_secs_f64(seconds.parse().unwrap())
}
