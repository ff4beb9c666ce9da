//! The agent's container as the kubelet creates it: its own root with the node's directories, the service account and the image's
//! binaries mounted where the DaemonSet's manifest mounts them, and the agent in it.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::artefacts::{binary, copy_program, kit_traffic};
use crate::wait::found_within;
use crate::{ApiServer, Netns, Node};

/// A container for `install-cni` on a node.
#[derive(Debug)]
pub struct Container {
    files: TempDir,
    net_d: PathBuf,
    run_dir: PathBuf,
    netns: Arc<Netns>,
    env: Vec<(String, String)>,
    program: PathBuf,
    /// A file below `/proc/sys/user` and its value.
    limit: Option<(String, u32)>,
    /// Feature that the kernel denies to the container.
    refused: Option<&'static str>,
    /// Further directories of the node, each with its mount point in the container.
    mounts: Vec<(PathBuf, String)>,
}

/// A running agent. Drop sends SIGKILL.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    log: PathBuf,
    started: PathBuf,
    netns: Arc<Netns>,
}

/// The plugin's conflist entry as in our manifests.
pub const NETWORK_CONFIG: &str = r#"{
  "cniVersion": "0.3.1",
  "name": "istio-cni",
  "type": "istio-cni",
  "log_level": "debug",
  "log_uds_address": "__LOG_UDS_ADDRESS__",
  "capabilities": {"io.kubernetes.cri.pod-annotations": true},
  "kubernetes": {
    "kubeconfig": "__KUBECONFIG_FILEPATH__",
    "cni_bin_dir": "/opt/cni/bin",
    "exclude_namespaces": ["istio-system", "kube-system"]
  }
}"#;

/// The image's settings of the allocator.
const ALLOCATOR: [(&str, &str); 3] =
    [("MALLOC_ARENA_MAX", "1"), ("MALLOC_MMAP_THRESHOLD_", "131072"), ("MALLOC_TRIM_THRESHOLD_", "131072")];

/// Time limit for everything that depends on this machine alone.
const LIMIT: Duration = Duration::from_secs(20);

impl Container {
    /// A container with our plugin and tools as its image's binaries, and the environment of Istio's own manifest.
    #[must_use]
    pub fn new(node: &Node) -> Self {
        let files = tempfile::Builder::new().prefix("container").tempdir().expect("cannot make a temp dir");
        let at = |path: &str| files.path().join(path);
        for path in [
            "source",
            "bin",
            "account",
            "root/usr",
            "root/proc",
            "root/dev",
            "root/sys/fs/cgroup",
            "root/tmp",
            "root/etc",
            "root/opt/cni/bin",
            "root/host/opt/cni/bin",
            "root/host/etc/cni/net.d",
            "root/var/run/istio-cni",
            "root/var/run/secrets/kubernetes.io/serviceaccount",
        ] {
            fs::create_dir_all(at(path)).expect("cannot make a directory");
        }
        for (link, target) in
            [("bin", "usr/bin"), ("sbin", "usr/sbin"), ("lib", "usr/lib"), ("lib64", "usr/lib64")]
        {
            symlink(target, at("root").join(link)).expect("cannot make a link");
        }
        fs::write(at("root/install-cni"), "").expect("cannot write a file"); // mount point of the agent
        fs::write(at("root/sys/fs/cgroup/memory.max"), "536870912\n").expect("cannot write a file"); // limit in our manifests
        fs::write(at("root/etc/hosts"), "127.0.0.1 localhost\n").expect("cannot write a file");
        let container = Self {
            net_d: node.net_d(),
            run_dir: node.run_dir(),
            netns: Arc::clone(node.netns()),
            env: Vec::new(),
            program: binary("install-cni"),
            limit: None,
            refused: None,
            mounts: Vec::new(),
            files,
        };
        container.add_image_program("istio-cni");
        container.set_account("a.token.of-nobody", "no certificate");
        let (host, port) = ApiServer::address();
        container
            .with_env("KUBERNETES_SERVICE_HOST", &host.to_string())
            .with_env("KUBERNETES_SERVICE_PORT", &port.to_string())
            .with_env("CNI_NETWORK_CONFIG", NETWORK_CONFIG)
            .with_env("CNI_NET_DIR", "/etc/cni/net.d")
            .with_env("REPAIR_ENABLED", "false")
            .with_env("NODE_NAME", "node-1")
            .with_env("LOG_LEVEL", "debug")
    }

    /// Sets an environment variable of the agent.
    #[must_use]
    pub fn with_env(mut self, key: &str, value: &str) -> Self {
        self.set_env(key, value);
        self
    }

    /// Sets an environment variable for the next agent in an existing container.
    pub fn set_env(&mut self, key: &str, value: &str) {
        self.env.retain(|(present, _)| present != key);
        self.env.push((key.to_owned(), value.to_owned()));
    }

    /// Removes an environment variable.
    #[must_use]
    pub fn without_env(mut self, key: &str) -> Self {
        self.env.retain(|(present, _)| present != key);
        self
    }

    /// Runs the agent in its own user namespace, in which a limit of `/proc/sys/user`, such as `max_inotify_instances`, has this
    /// value. Other processes keep theirs.
    #[must_use]
    pub fn with_user_limit(mut self, limit: &str, value: u32) -> Self {
        self.limit = Some((limit.to_owned(), value));
        self
    }

    /// The next agent and its tools cannot create IPv6 sockets, as on a kernel booted without IPv6; nothing else of such a kernel
    /// is imitated.
    pub fn set_without_ipv6(&mut self) {
        self.set_refused("ipv6");
    }

    /// The kernel denies this to the next agent and its tools: `ipv6`, `netfilter` or `netns`, see `kit-traffic refuse`.
    pub fn set_refused(&mut self, what: &'static str) {
        self.refused = Some(what);
    }

    /// Replaces the agent's program.
    #[must_use]
    pub fn with_program(mut self, program: &Path) -> Self {
        self.set_program(program);
        self
    }

    /// Replaces the program for the next agent in an existing container.
    pub fn set_program(&mut self, program: &Path) {
        program.clone_into(&mut self.program);
    }

    /// Mounts a directory of the node in the container.
    #[must_use]
    pub fn with_mount(mut self, from: &Path, at: &str) -> Self {
        self.add_mount(from, at);
        self
    }

    /// Mounts a directory of the node in an existing container, for the next agent.
    pub fn add_mount(&mut self, from: &Path, at: &str) {
        fs::create_dir_all(self.root().join(at.trim_start_matches('/'))).expect("cannot make a directory");
        self.mounts.push((from.to_owned(), at.to_owned()));
    }

    /// Adds a program to the image's binaries.
    pub fn add_image_program(&self, name: &str) {
        copy_program(&binary(name), &self.source_dir().join(name));
    }

    /// Directory of the image's binaries: `/opt/cni/bin` in the container.
    #[must_use]
    pub fn source_dir(&self) -> PathBuf {
        self.files.path().join("source")
    }

    /// The node's CNI binary directory: `/host/opt/cni/bin` in the container.
    #[must_use]
    pub fn bin_dir(&self) -> PathBuf {
        self.files.path().join("bin")
    }

    /// The node's CNI configuration directory: `/host/etc/cni/net.d` in the container.
    #[must_use]
    pub fn net_d(&self) -> PathBuf {
        self.net_d.clone()
    }

    /// The container's root, without its mounts.
    #[must_use]
    pub fn root(&self) -> PathBuf {
        self.files.path().join("root")
    }

    /// The service account's directory.
    #[must_use]
    pub fn account_dir(&self) -> PathBuf {
        self.files.path().join("account")
    }

    /// Moves the container to another network namespace, for the next agent.
    pub fn set_netns(&mut self, netns: &Netns) {
        self.netns = Arc::new(netns.second_handle());
    }

    /// Replaces token and certificates as the kubelet does: a new directory, then an atomic rename of a symlink.
    pub fn set_account(&self, token: &str, ca: &str) {
        self.set_account_in("kube-system", token, ca);
    }

    /// As [`Container::set_account`], for a service account of another namespace.
    pub fn set_account_in(&self, namespace: &str, token: &str, ca: &str) {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let (account, version) =
            (self.account_dir(), format!("..2026_{}", COUNTER.fetch_add(1, Ordering::Relaxed)));
        let directory = account.join(&version);
        fs::create_dir(&directory).expect("cannot make a directory");
        for (name, text) in [("token", token), ("ca.crt", ca), ("namespace", namespace)] {
            fs::write(directory.join(name), text).expect("cannot write a file");
            let link = account.join(name);
            if fs::symlink_metadata(&link).is_err() {
                symlink(Path::new("..data").join(name), link).expect("cannot make a link");
            }
        }
        let old = fs::read_link(account.join("..data"));
        symlink(&version, account.join("..data_tmp")).expect("cannot make a link");
        fs::rename(account.join("..data_tmp"), account.join("..data")).expect("cannot rename a link");
        if let Ok(old) = old {
            fs::remove_dir_all(account.join(old)).expect("cannot remove a directory");
        }
    }

    /// Starts the agent.
    #[must_use]
    pub fn start(&self) -> Daemon {
        self.start_with(&[], &[])
    }

    /// Starts the agent with these arguments and these paths of the container read-only.
    #[must_use]
    pub fn start_with(&self, arguments: &[&str], read_only: &[&str]) -> Daemon {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let log = self.files.path().join(format!("log-{}", COUNTER.fetch_add(1, Ordering::Relaxed)));
        let started = log.with_extension("started");
        let out = File::create(&log).expect("cannot make a log");
        let mut command = self.command(arguments, read_only, &started);
        command.stdin(Stdio::null()).stdout(out.try_clone().expect("a file can be shared")).stderr(out);
        let child = self.netns.spawn(&mut command);
        Daemon { child, log, started, netns: Arc::clone(&self.netns) }
    }

    /// Runs the program with these arguments beside the agent to its end, as `kubectl exec` does.
    #[must_use]
    pub fn exec(&self, arguments: &[&str]) -> Output {
        self.exec_with(arguments, &[])
    }

    /// As [`Container::exec`], with these paths of the container read-only.
    #[must_use]
    pub fn exec_with(&self, arguments: &[&str], read_only: &[&str]) -> Output {
        let started = self.files.path().join("exec-started");
        self.netns.output(self.command(arguments, read_only, &started).stdin(Stdio::null()))
    }

    fn command(&self, arguments: &[&str], read_only: &[&str], started: &Path) -> Command {
        let mut command = Command::new(kit_traffic());
        if let Some(what) = self.refused {
            command.args(["refuse", what]).arg(kit_traffic());
        }
        command.arg("contain").arg("--root").arg(self.root()).arg("--started").arg(started);
        if let Some((name, value)) = &self.limit {
            command.arg("--user-limit").arg(format!("{name}={value}"));
        }
        for path in ["/usr", "/proc", "/dev"] {
            command.arg("--rbind").arg(format!("{path}:{path}"));
        }
        let at = |path: &str| self.files.path().join(path);
        for (from, to) in [
            (at("source"), "/opt/cni/bin"),
            (at("bin"), "/host/opt/cni/bin"),
            (self.net_d(), "/host/etc/cni/net.d"),
            (self.run_dir.clone(), "/var/run/istio-cni"),
            (at("account"), "/var/run/secrets/kubernetes.io/serviceaccount"),
            (self.program.clone(), "/install-cni"),
        ] {
            command.arg("--bind").arg(format!("{}:{to}", from.display()));
        }
        for (from, to) in &self.mounts {
            command.arg("--rbind").arg(format!("{}:{to}", from.display()));
        }
        for path in read_only {
            command.args(["--read-only", path]);
        }
        command.args(["--", "/install-cni"]).args(arguments);
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command.envs(ALLOCATOR).envs(self.env.iter().cloned());
        command
    }
}

impl Daemon {
    /// Process ID of the agent.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Time at which the container was set up and the agent was executed; `None` before.
    #[must_use]
    pub fn started(&self) -> Option<SystemTime> {
        let micros = fs::read_to_string(&self.started).ok()?.parse().ok()?;
        Some(SystemTime::UNIX_EPOCH + Duration::from_micros(micros))
    }

    /// Everything that the agent has printed so far.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).expect("a log can be read")
    }

    /// Status and body of a GET; `None` if nothing listens.
    #[must_use]
    pub fn get(&self, port: u16, path: &str) -> Option<(u16, String)> {
        self.get_as(port, path, "")
    }

    /// As [`Daemon::get`], with further header lines, each ending in `\r\n`.
    #[must_use]
    pub fn get_as(&self, port: u16, path: &str, headers: &str) -> Option<(u16, String)> {
        self.netns.run(|| {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()?;
            stream.set_read_timeout(Some(LIMIT)).ok()?;
            write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n")
                .ok()?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).ok()?;
            let (head, body) = answer.split_once("\r\n\r\n")?;
            Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
        })
    }

    /// Whether `/readyz` returns 200.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.get(8000, "/readyz").is_some_and(|(status, _)| status == 200)
    }

    /// Waits until the agent is ready.
    ///
    /// # Panics
    /// If it is not ready within 20 seconds, or exits.
    pub fn wait_until_ready(&mut self) {
        self.wait_for("it is ready", Daemon::is_ready);
    }

    /// Waits until a condition holds, which it polls every few milliseconds.
    ///
    /// # Panics
    /// If it does not hold within 20 seconds, or the agent exits.
    pub fn wait_for(&mut self, what: &str, mut holds: impl FnMut(&Daemon) -> bool) {
        let held = found_within(LIMIT, || {
            if holds(self) {
                return true;
            }
            let ended = self.child.try_wait().expect("a child can be asked");
            assert!(ended.is_none(), "{what}: it has ended with {ended:?}:\n{}", self.log());
            false
        });
        assert!(held.is_some(), "never: {what}:\n{}\n{:?}", self.log(), self.get(8000, "/readyz"));
    }

    /// [`logged`] for this agent's log.
    #[must_use]
    pub fn logged(&self, message: &str, field: &str) -> usize {
        logged(&self.log(), message, field)
    }

    /// [`has_logged`](crate::has_logged) for this agent's log.
    #[must_use]
    pub fn has_logged(&self, message: &str, fields: &[(&str, &str)]) -> bool {
        crate::has_logged(&self.log(), message, fields)
    }

    /// Value of a sample of `/metrics` by its full name, such as `istio_cni_installs_total{result="SUCCESS"}`.
    #[must_use]
    pub fn metric(&self, sample: &str) -> Option<f64> {
        let (_, text) = self.get(15014, "/metrics")?;
        let line = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '))?;
        line.split(' ').next()?.parse().ok()
    }

    /// Resident memory in KiB.
    #[must_use]
    pub fn resident_kib(&self) -> u64 {
        self.memory_kib("VmRSS:")
    }

    /// Peak resident memory in KiB.
    #[must_use]
    pub fn peak_kib(&self) -> u64 {
        self.memory_kib("VmHWM:")
    }

    /// Anonymous part of the resident memory in KiB, which depends little on how the program was built.
    #[must_use]
    pub fn anonymous_kib(&self) -> u64 {
        self.memory_kib("RssAnon:")
    }

    fn memory_kib(&self, line: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("it runs");
        let line = status.lines().find_map(|found| found.strip_prefix(line)).expect("a process has memory");
        line.trim().trim_end_matches(" kB").parse().expect("a number")
    }

    /// User and system time so far.
    #[must_use]
    pub fn cpu_time(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/schedstat", self.pid())).expect("it runs");
        let main: u64 = stat.split(' ').next().expect("a number").parse().expect("a number");
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid())).expect("it runs");
        let others = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("schedstat")).ok());
        let all: u64 = others.filter_map(|stat| stat.split(' ').next()?.parse::<u64>().ok()).sum();
        // Only the process's own count includes threads that have ended; its unit is a hundredth of a second.
        Duration::from_nanos(all.max(main)).max(self.counted_time(11))
    }

    /// User and system time of the tools that it has started and that have ended, in hundredths of a second.
    #[must_use]
    pub fn tools_cpu_time(&self) -> Duration {
        self.counted_time(13)
    }

    /// Sum of two times in `/proc/PID/stat`, from this field after the name on.
    fn counted_time(&self, first: usize) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("it runs");
        let fields = stat.rsplit_once(") ").expect("a name").1.split(' ');
        let ticks: u64 =
            fields.skip(first).take(2).map(|field| field.parse::<u64>().expect("a number")).sum();
        Duration::from_millis(ticks * 10)
    }

    /// CPU time so far of the threads with this name.
    #[must_use]
    pub fn thread_time(&self, name: &str) -> Duration {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid())).expect("it runs");
        let of_task = |path: PathBuf| -> Option<u64> {
            let is_named = fs::read_to_string(path.join("comm")).ok()?.trim() == name;
            let stat = fs::read_to_string(path.join("schedstat")).ok()?;
            if is_named { stat.split(' ').next()?.parse().ok() } else { None }
        };
        let nanoseconds = tasks.filter_map(|task| of_task(task.ok()?.path())).sum();
        Duration::from_nanos(nanoseconds)
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("a running child can be signalled");
    }

    /// Sends SIGTERM and returns the exit status and the log.
    ///
    /// # Panics
    /// If the agent does not exit within 20 seconds.
    pub fn terminate(mut self) -> (ExitStatus, String) {
        self.signal(Signal::TERM);
        let status = self.wait();
        (status, self.log())
    }

    /// Whether the agent has exited.
    ///
    /// # Panics
    /// If its status cannot be read.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a child can be asked").is_some()
    }

    /// Waits until the agent exits.
    ///
    /// # Panics
    /// If it does not exit within 20 seconds.
    pub fn wait(&mut self) -> ExitStatus {
        let status = found_within(LIMIT, || self.child.try_wait().expect("a child can be asked"));
        status.unwrap_or_else(|| panic!("it does not end:\n{}", self.log()))
    }

    /// Sends SIGKILL.
    pub fn kill(mut self) {
        self.end();
    }

    /// Sends SIGKILL and waits, so that another agent can replace this one.
    pub fn end(&mut self) {
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a child can be waited for");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Number of lines of a log with this message, as a whole, and this field, such as `pod=web`; an empty field matches any.
#[must_use]
pub fn logged(log: &str, message: &str, field: &str) -> usize {
    let is_one = |line: &&str| line.split('\t').any(|column| column == message) && line.contains(field);
    log.lines().filter(is_one).count()
}
