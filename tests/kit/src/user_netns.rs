//! A network namespace owned by its own user namespace, as that of a pod with `hostUsers: false`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;

use crate::wait::until;

/// User ID on the node to which user 0 of the namespace is mapped.
const FIRST_USER: u32 = 100_000;

/// Both namespaces, held by a process, with a name below `/run/netns`. Drop removes them.
#[derive(Debug)]
pub struct UserNetns {
    process: Child,
    name: String,
}

impl UserNetns {
    /// Creates the namespaces, without any link except `lo`; the name begins with `label`.
    ///
    /// # Panics
    /// If they cannot be created.
    #[must_use]
    pub fn new(label: &str) -> Self {
        let own = fs::read_link("/proc/self/ns/user").expect("this process has one");
        let mut command = Command::new("unshare");
        let process = command.args(["--user", "--net", "sleep", "600"]).spawn().expect("unshare can be run");
        let name = format!("{label}-{}", process.id());
        let made = Self { process, name };
        let proc = PathBuf::from(format!("/proc/{}", made.pid()));
        until("unshare is in its namespaces", || {
            fs::read_link(proc.join("ns/user")).map_or(true, |now| now != own)
        });
        for map in ["uid_map", "gid_map"] {
            fs::write(proc.join(map), format!("0 {FIRST_USER} 65536")).expect("root maps users");
        }
        let _ = made.ip(&format!("netns attach {} {}", made.name, made.pid()));
        made
    }

    /// Name below `/run/netns`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file with this name.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        Path::new("/run/netns").join(&self.name)
    }

    /// The process that holds the namespaces.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Runs `ip` with these arguments outside the namespaces; returns its stdout.
    ///
    /// # Panics
    /// If it fails, with its stderr.
    pub fn ip(&self, words: &str) -> String {
        let output = Command::new("ip").args(words.split(' ')).output().expect("ip can be run");
        assert!(output.status.success(), "ip {words}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for UserNetns {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
        if thread::panicking() {
            let _ = Command::new("ip").args(["netns", "delete", &self.name]).status();
        } else {
            let _ = self.ip(&format!("netns delete {}", self.name));
        }
    }
}
