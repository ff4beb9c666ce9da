//! A directory that imitates a node's `/proc`, as far as the agent reads processes of pods there.

use std::fmt::Display;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use tempfile::TempDir;

use crate::netns::Netns;
use crate::node::Node;
use crate::pod::PodSandbox;

/// The processes of a node. Their network namespaces are symlinks into `/var/run/netns`, which a reader has to have in its mount
/// namespace.
#[derive(Debug)]
pub struct ProcessTable(TempDir);

impl ProcessTable {
    /// Creates a table with the node's first process.
    ///
    /// # Panics
    /// If no temporary directory can be created.
    #[must_use]
    pub fn new(node: &Node) -> Self {
        let table = Self(TempDir::new().expect("a temporary directory"));
        table.add(1, "init.scope", node.netns());
        table
    }

    /// Path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Adds a process of a pod in its sandbox, in a control group of the kubelet's driver `cgroupfs`.
    pub fn add_pod(&self, pid: u32, sandbox: &PodSandbox) {
        self.add(pid, &format!("kubepods/burstable/pod{}/0123", sandbox.pod.uid), &sandbox.netns);
    }

    /// Adds a process of a pod in a network namespace, in a control group of the kubelet's driver `systemd`.
    pub fn add_in_slice(&self, pid: impl Display, uid: &str, netns: &Netns) {
        let slice = uid.replace('-', "_");
        self.add(pid, &format!("kubepods.slice/kubepods-pod{slice}.slice/cri-containerd-0123.scope"), netns);
    }

    /// Adds a process with this control group and this network namespace, which readers see as a whole; a greater PID is younger.
    ///
    /// # Panics
    /// If it already exists.
    pub fn add(&self, pid: impl Display, cgroup: &str, netns: &Netns) {
        let new = self.0.path().join(format!("new-{pid}"));
        fs::create_dir_all(new.join("ns")).expect("a directory");
        fs::write(new.join("cgroup"), format!("0::/{cgroup}\n")).expect("a file");
        let zeros = ["0"; 18].join(" ");
        fs::write(new.join("stat"), format!("{pid} (a) S {zeros} {pid}00 0\n")).expect("a file");
        symlink(Path::new("/var/run/netns").join(netns.name()), new.join("ns/net")).expect("a link");
        fs::rename(new, self.0.path().join(pid.to_string())).expect("a new process");
    }
}
