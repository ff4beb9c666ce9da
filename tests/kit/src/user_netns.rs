//! A network namespace that belongs to a user namespace of its own, as that of a pod with `hostUsers: false`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;

use crate::wait::until;

/// The users in it, from 0 on, are these of the node, from this one on.
const FIRST_USER: u32 = 100_000;

/// Both namespaces, held by a process, with a name below `/run/netns`. They go on drop.
#[derive(Debug)]
pub struct UserNetns {
    process: Child,
    name: String,
}

impl UserNetns {
    /// Makes them, without any link but `lo`; `label` is the beginning of the name.
    ///
    /// # Panics
    /// If they cannot be made.
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

    /// The name below `/run/netns`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file of that name.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        Path::new("/run/netns").join(&self.name)
    }

    /// The process that holds them.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Runs `ip` with these words outside of them; returns its stdout.
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
