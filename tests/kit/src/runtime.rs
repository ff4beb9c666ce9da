//! A container runtime, limited to CNI: runs the plugins of a conflist as containerd 1.6 and 2.1 do (modelled on recorded calls of
//! both), inside the node's network namespace.

use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::artefacts::binary_dir;
use crate::netns::Netns;
use crate::pod::Pod;
use crate::process::{PluginOutput, exec_plugin};

/// Runs CNI chains on one node.
#[derive(Debug, Clone)]
pub struct Runtime {
    netns: Arc<Netns>,
    /// Plugin search path, in this order; becomes `CNI_PATH`.
    pub cni_path: Vec<PathBuf>,
    /// Additions to the environment that plugins inherit, such as another `PATH`.
    pub env: Vec<(String, String)>,
    /// Time limit of a plugin, after which it gets SIGKILL and counts as failed.
    pub limit: Duration,
    /// Plugin type whose ADD gets SIGKILL after this time.
    pub kill: Option<(String, Duration)>,
}

/// One plugin call of a chain.
#[derive(Debug, Clone)]
pub struct Call {
    /// `CNI_COMMAND`.
    pub command: String,
    /// The plugin's type.
    pub plugin: String,
    /// JSON that the plugin received on stdin.
    pub stdin: Value,
    /// Result of the call.
    pub output: PluginOutput,
}

/// Result of a successful ADD of a chain.
#[derive(Debug, Clone)]
pub struct Added {
    /// Result of the last plugin.
    pub result: Value,
    /// The calls, in order.
    pub calls: Vec<Call>,
}

/// A chain that failed.
#[derive(Debug, Clone)]
pub struct ChainError {
    /// The call that failed.
    pub failed: Call,
    /// The error that it reported on stdout; null if that is not JSON.
    pub error: Value,
    /// All calls up to the failed one and, after a failed ADD, those of the DEL that followed.
    pub calls: Vec<Call>,
}

impl ChainError {
    /// The CNI error code that the plugin reported.
    #[must_use]
    pub fn code(&self) -> Option<u64> {
        self.error["code"].as_u64()
    }
}

impl fmt::Display for ChainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Call { command, plugin, output, .. } = &self.failed;
        write!(f, "plugin {plugin} failed ({command}, {}", output.status)?;
        if output.killed {
            write!(f, ", killed after {:?}", output.wall)?;
        }
        let stdout = String::from_utf8_lossy(&output.stdout);
        write!(f, "): {stdout}; stderr: {}", output.stderr_text())
    }
}

impl Error for ChainError {}

/// The attachment for which a chain is run.
struct Subject<'a> {
    pod: &'a Pod,
    netns: &'a str,
}

impl Runtime {
    /// Creates a runtime on the node with this namespace.
    #[must_use]
    pub(crate) fn new(netns: Arc<Netns>) -> Self {
        let cni_path = vec![binary_dir(), "/usr/lib/cni".into(), "/opt/cni/bin".into()];
        Self { netns, cni_path, env: Vec::new(), limit: Duration::from_secs(60), kill: None }
    }

    /// The node's namespace.
    #[must_use]
    pub fn netns(&self) -> &Arc<Netns> {
        &self.netns
    }

    /// Adds a variable to the plugins' environment.
    #[must_use]
    pub fn with_env(mut self, key: &str, value: &str) -> Self {
        self.env.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Sets the time limit of plugins.
    #[must_use]
    pub fn with_limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Kills the ADD of this plugin after this time, as the OOM killer would; the DEL that follows is not limited.
    #[must_use]
    pub fn with_kill(mut self, plugin: &str, after: Duration) -> Self {
        self.kill = Some((plugin.to_owned(), after));
        self
    }

    /// Adds a directory to the front of the plugin search path.
    #[must_use]
    pub fn with_plugins(mut self, directory: &Path) -> Self {
        self.cni_path.insert(0, directory.to_owned());
        self
    }

    /// Runs ADD through the chain. If a plugin fails, DEL immediately runs through the whole chain, in reverse order and without a
    /// `prevResult`, and the error is returned.
    pub fn add(&self, conflist: &Value, pod: &Pod, netns: &str) -> Result<Added, Box<ChainError>> {
        let subject = Subject { pod, netns };
        let mut result = Value::Null;
        let mut calls = Vec::new();
        for plugin in plugins(conflist) {
            let call = self.call("ADD", conflist, plugin, Some(&subject), &result);
            result = match Self::note(call, &mut calls) {
                Ok(result) => result,
                Err(mut error) => {
                    match self.del(conflist, pod, netns, &Value::Null) {
                        Ok(deleted) => error.calls.extend(deleted),
                        Err(also) => error.calls.extend(also.calls),
                    }
                    return Err(error);
                }
            };
        }
        Ok(Added { result, calls })
    }

    /// Runs DEL through the chain in reverse order, up to the first failure. `result` is that of ADD if the runtime still has it,
    /// else null; `netns` is empty if it no longer exists.
    pub fn del(
        &self,
        conflist: &Value,
        pod: &Pod,
        netns: &str,
        result: &Value,
    ) -> Result<Vec<Call>, Box<ChainError>> {
        // DEL has no prevResult before 0.4.0.
        let result = if version_of(conflist) < (0, 4, 0) { &Value::Null } else { result };
        self.pass("DEL", conflist, plugins(conflist).rev(), Some(&Subject { pod, netns }), result)
    }

    /// Runs CHECK through the chain, up to the first failure.
    pub fn check(
        &self,
        conflist: &Value,
        pod: &Pod,
        netns: &str,
        result: &Value,
    ) -> Result<Vec<Call>, Box<ChainError>> {
        self.pass("CHECK", conflist, plugins(conflist), Some(&Subject { pod, netns }), result)
    }

    /// Runs STATUS through the chain, up to the first failure. All variables except `CNI_PATH` are empty.
    pub fn status(&self, conflist: &Value) -> Result<Vec<Call>, Box<ChainError>> {
        self.pass("STATUS", conflist, plugins(conflist), None, &Value::Null)
    }

    /// Runs GC through the chain with the attachments, as (container ID, interface), that are still in use. Calls every plugin even
    /// after a failure, as libcni does; returns the first failure.
    pub fn gc(&self, conflist: &Value, valid: &[(&str, &str)]) -> Result<Vec<Call>, Box<ChainError>> {
        let attachments: Vec<_> =
            valid.iter().map(|(id, ifname)| json!({"containerID": id, "ifname": ifname})).collect();
        let mut calls = Vec::new();
        let mut first = None;
        for plugin in plugins(conflist) {
            let mut plugin = plugin.clone();
            plugin["cni.dev/valid-attachments"] = json!(attachments);
            let call = self.call("GC", conflist, &plugin, None, &Value::Null);
            first = first.or(Self::note(call, &mut calls).err());
        }
        first.map_or(Ok(calls), Err)
    }

    /// Runs one plugin of the conflist, given by its type, with this command.
    ///
    /// # Panics
    /// If the conflist has no such plugin.
    pub fn single(
        &self,
        command: &str,
        conflist: &Value,
        plugin: &str,
        pod: &Pod,
        netns: &str,
        prev_result: &Value,
    ) -> Call {
        let entry = plugins(conflist).find(|entry| entry["type"] == plugin);
        let entry = entry.unwrap_or_else(|| panic!("no plugin {plugin} in the conflist"));
        self.call(command, conflist, entry, Some(&Subject { pod, netns }), prev_result)
    }

    /// Runs a binary inside the node's namespace with exactly these CNI variables and bytes.
    #[must_use]
    pub fn exec(&self, binary: &Path, env: &[(String, String)], stdin: &[u8]) -> PluginOutput {
        self.exec_within(binary, env, stdin, self.limit)
    }

    fn exec_within(
        &self,
        binary: &Path,
        env: &[(String, String)],
        stdin: &[u8],
        limit: Duration,
    ) -> PluginOutput {
        let env = [&self.env, env].concat();
        self.netns.run(|| exec_plugin(binary, &env, stdin, limit))
    }

    fn pass<'a>(
        &self,
        command: &str,
        conflist: &Value,
        plugins: impl Iterator<Item = &'a Value>,
        subject: Option<&Subject<'_>>,
        result: &Value,
    ) -> Result<Vec<Call>, Box<ChainError>> {
        let mut calls = Vec::new();
        for plugin in plugins {
            let call = self.call(command, conflist, plugin, subject, result);
            Self::note(call, &mut calls)?;
        }
        Ok(calls)
    }

    /// Appends a call to the journal; returns the plugin's result, or the failure with all calls so far. Only ADD has a result; a
    /// runtime reads no other.
    fn note(call: Call, calls: &mut Vec<Call>) -> Result<Value, Box<ChainError>> {
        calls.push(call.clone());
        let parsed = serde_json::from_slice(&call.output.stdout);
        match (call.output.status.success(), call.command.as_str(), parsed) {
            (true, "ADD", Ok(result)) => Ok(result),
            (false, _, Ok(error)) => Err(Box::new(ChainError { failed: call, error, calls: calls.clone() })),
            (false, _, Err(_)) | (true, "ADD", Err(_)) => {
                Err(Box::new(ChainError { failed: call, error: Value::Null, calls: calls.clone() }))
            }
            (true, ..) => Ok(Value::Null),
        }
    }

    fn call(
        &self,
        command: &str,
        conflist: &Value,
        plugin: &Value,
        subject: Option<&Subject<'_>>,
        prev_result: &Value,
    ) -> Call {
        let name = plugin["type"].as_str().expect("a plugin has a type");
        let stdin = stdin(conflist, plugin, subject.map(|subject| subject.pod), prev_result);
        let env = self.environment(command, subject);
        let limit = match &self.kill {
            Some((plugin, after)) if command == "ADD" && plugin == name => *after,
            _ => self.limit,
        };
        let output = self.exec_within(&self.find(name), &env, stdin.to_string().as_bytes(), limit);
        Call { command: command.to_owned(), plugin: name.to_owned(), stdin, output }
    }

    fn environment(&self, command: &str, subject: Option<&Subject<'_>>) -> Vec<(String, String)> {
        let path = self.cni_path.iter().map(|dir| dir.to_string_lossy()).collect::<Vec<_>>().join(":");
        let (id, netns, ifname, args) = match subject {
            Some(Subject { pod, netns }) => (pod.container_id.as_str(), *netns, "eth0", cni_args(pod)),
            None => ("", "", "", String::new()),
        };
        [
            ("CNI_COMMAND", command),
            ("CNI_CONTAINERID", id),
            ("CNI_NETNS", netns),
            ("CNI_IFNAME", ifname),
            ("CNI_ARGS", &args),
            ("CNI_PATH", &path),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .to_vec()
    }

    fn find(&self, plugin: &str) -> PathBuf {
        let found = self.cni_path.iter().map(|dir| dir.join(plugin)).find(|path| path.is_file());
        found.unwrap_or_else(|| {
            panic!("no plugin {plugin} in {:?}; run hack/setup and cargo build", self.cni_path)
        })
    }
}

/// Plugin entries of a conflist.
fn plugins(conflist: &Value) -> std::slice::Iter<'_, Value> {
    conflist["plugins"].as_array().expect("a conflist has plugins").iter()
}

fn version_of(conflist: &Value) -> (u32, u32, u32) {
    let text = conflist["cniVersion"].as_str().expect("a conflist has a version");
    let mut numbers = text.split('.').map(|number| number.parse().expect("a version is numbers"));
    let mut next = || numbers.next().unwrap_or(0);
    (next(), next(), next())
}

/// The plugin's entry with the runtime's additions.
fn stdin(conflist: &Value, plugin: &Value, pod: Option<&Pod>, prev_result: &Value) -> Value {
    let mut config = plugin.clone();
    config["cniVersion"] = conflist["cniVersion"].clone();
    config["name"] = conflist["name"].clone();
    let runtime_config = pod.map(|pod| declared(plugin, pod)).unwrap_or_default();
    if !runtime_config.is_empty() {
        config["runtimeConfig"] = Value::Object(runtime_config);
    }
    if !prev_result.is_null() {
        config["prevResult"] = prev_result.clone();
    }
    config
}

/// The runtime's data about a pod for which the entry declares a capability.
fn declared(plugin: &Value, pod: &Pod) -> Map<String, Value> {
    let mut offered: Map<String, Value> = pod.capability_args.clone().into_iter().collect();
    if !pod.annotations.is_empty() {
        offered.insert("io.kubernetes.cri.pod-annotations".into(), json!(pod.annotations));
    }
    offered.retain(|capability, _| plugin["capabilities"][capability] == json!(true));
    offered
}

/// `CNI_ARGS`, whose keys are in another order with each call, as containerd's are.
fn cni_args(pod: &Pod) -> String {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let mut pairs = vec![
        ("IgnoreUnknown", "1"),
        ("K8S_POD_NAMESPACE", &pod.namespace),
        ("K8S_POD_NAME", &pod.name),
        ("K8S_POD_INFRA_CONTAINER_ID", &pod.container_id),
        ("K8S_POD_UID", &pod.uid),
    ];
    // Cycles through every permutation of the five: the call's number in the factorial number system.
    let mut number = CALLS.fetch_add(1, Ordering::Relaxed);
    let mut shuffled = Vec::new();
    while !pairs.is_empty() {
        let left = pairs.len();
        shuffled.push(pairs.remove(number % left));
        number /= left;
    }
    shuffled.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(";")
}
