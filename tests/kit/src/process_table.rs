//! A directory that imitates a node's `/proc`, as far as the agent reads processes of pods there.

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

    /// Adds a process of a pod in its sandbox.
    pub fn add_pod(&self, pid: u32, sandbox: &PodSandbox) {
        self.add(pid, &format!("kubepods/burstable/pod{}/0123", sandbox.pod.uid), &sandbox.netns);
    }

    /// Adds a process with this control group and this network namespace.
    ///
    /// # Panics
    /// If it already exists.
    pub fn add(&self, pid: u32, cgroup: &str, netns: &Netns) {
        let directory = self.0.path().join(pid.to_string());
        fs::create_dir_all(directory.join("ns")).expect("a directory");
        fs::write(directory.join("cgroup"), format!("0::/{cgroup}\n")).expect("a file");
        fs::write(directory.join("stat"), "1 (a) S 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 7 0\n")
            .expect("a file");
        let netns = Path::new("/var/run/netns").join(netns.name());
        symlink(netns, directory.join("ns/net")).expect("a new process");
    }
}
