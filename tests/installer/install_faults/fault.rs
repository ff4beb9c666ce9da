//! A fault, its report, and its end.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use kit::{Daemon, until};

use crate::fixtures::install::{Files, InstallFixture, files, installs};

/// Report of a fault: the counted result, and the text of `/readyz` (paths and cause).
pub(super) struct Fault {
    pub(super) result: &'static str,
    pub(super) says: &'static [&'static str],
}

pub(super) const COPY: &str = "COPY_BINARIES_FAILURE";
pub(super) const CREDENTIAL: &str = "CREATE_KUBECONFIG_FAILURE";
pub(super) const CONF: &str = "CREATE_CNI_CONFIG_FAILURE";

/// Time for which an agent is observed that cannot continue: the longest interval between two attempts, and an allowance.
const WATCHED: Duration = Duration::from_secs(3);
/// CPU time allowed in that time.
const IDLE: Duration = Duration::from_millis(150);
/// Beginning of a line about a fault.
const COMPLAINT: &str = "the plugin is not installed correctly";
/// Time limit for noticing the end of a fault: the longest interval is two seconds, and then it has to install; without these
/// attempts, the next regular pass comes after ten.
const NOTICED: Duration = Duration::from_secs(9);

impl Fault {
    /// Asserts that the fault is reported at `/readyz`, counted, and logged once; then the agent is almost idle.
    pub(super) fn shows(&self, daemon: &mut Daemon) {
        let told = |daemon: &Daemon| {
            let (status, body) = daemon.get(8000, "/readyz").unwrap_or_default();
            status == 503 && self.says.iter().all(|words| body.contains(words))
        };
        daemon.wait_for(&format!("/readyz says {:?}", self.says), told);
        daemon.wait_for(self.result, |daemon| daemon.metric(&installs(self.result)) >= Some(1.0));
        assert_eq!(daemon.metric("istio_cni_install_ready"), Some(0.0));
        assert_eq!(
            daemon.get(8000, "/healthz").map(|(status, _)| status),
            Some(200),
            "a restart would not help"
        );
        stays_quiet(daemon);
        daemon.wait_for("it tries again", |daemon| daemon.metric(&installs(self.result)) > Some(1.0));
        let log = daemon.log();
        let complaints: Vec<&str> = log.lines().filter(|line| line.contains(COMPLAINT)).collect();
        let whole = |line: &&&str| self.says.iter().all(|words| line.contains(words));
        assert_eq!(complaints.iter().filter(whole).count(), 1, "{log}");
        assert!(told(daemon));
    }

    /// Asserts that the fault is reported, and that the installation completes by itself after `mend`.
    pub(super) fn shows_and_heals(&self, daemon: &mut Daemon, mend: impl FnOnce()) {
        self.shows(daemon);
        mend();
        heals(daemon);
    }
}

/// Asserts that the agent becomes ready soon.
pub(super) fn heals(daemon: &mut Daemon) {
    let mended = Instant::now();
    daemon.wait_until_ready();
    assert!(mended.elapsed() < NOTICED, "only after {:?}", mended.elapsed());
    daemon.wait_for("it is counted", |daemon| daemon.metric("istio_cni_install_ready") == Some(1.0));
    assert_eq!(daemon.metric(&installs("SUCCESS")), Some(1.0));
}

/// Asserts that the agent neither works nor logs for a while. Until then, parts of it may still start.
pub(super) fn stays_quiet(daemon: &Daemon) {
    until("the node is checked", || daemon.logged("node checked", "") > 0);
    let is_quiet = (0..3).any(|_| {
        let (before, log) = (daemon.cpu_time(), daemon.log());
        sleep(WATCHED); // inactivity can only be observed over time
        let worked = daemon.cpu_time() - before;
        println!("{worked:?} of CPU time within {WATCHED:?}, after {before:?}");
        worked < IDLE && daemon.log() == log
    });
    assert!(is_quiet, "it works or logs:\n{}", daemon.log());
}

/// Waits until a directory has these files alone: an attempt of the agent may just have a temporary one.
pub(super) fn until_unchanged(directory: &Path, before: &Files) {
    until(format_args!("nothing is lost or left: {:?}", before.keys()), || files(directory) == *before);
}

/// Exhausted resource of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lack {
    Bytes,
    Inodes,
}

/// A small file system, mounted at a directory until drop.
pub(super) struct SmallDisk {
    directory: PathBuf,
    lack: Lack,
}

impl SmallDisk {
    pub(super) fn mount(directory: &Path, lack: Lack) -> Self {
        let options = if lack == Lack::Bytes { "size=1m" } else { "nr_inodes=16" };
        run(Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(directory));
        Self { directory: directory.to_owned(), lack }
    }

    /// Uses all free space.
    pub(super) fn fill(&self) {
        let size = if self.lack == Lack::Bytes { 2 << 20 } else { 0 };
        let fill = |number: u32| fs::write(self.directory.join(format!("ballast-{number}")), vec![0; size]);
        let full = (0..100).find_map(|number| fill(number).err()).unwrap();
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    }

    /// Frees the space.
    pub(super) fn free(&self) {
        for number in 0..100 {
            drop(fs::remove_file(self.directory.join(format!("ballast-{number}"))));
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a running container has the mount, too.
        drop(Command::new("umount").arg("--lazy").arg(&self.directory).status());
    }
}

/// Makes a read-only path of a running container, whose agent has this PID, writable.
pub(super) fn make_writable(fixture: &InstallFixture, pid: u32, path: &str) {
    let path = fixture.container.root().join(path.trim_start_matches('/'));
    let mut command = Command::new("nsenter");
    command.args(["--mount", "--target", &pid.to_string()]);
    run(command.args(["mount", "-o", "remount,bind,rw"]).arg(path));
}

pub(super) fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Runs all cases of a table concurrently: they mostly wait.
pub(super) fn each<T: Send>(cases: impl IntoIterator<Item = T>, check: impl Fn(T) + Sync) {
    thread::scope(|scope| cases.into_iter().for_each(|case| drop(scope.spawn(|| check(case)))));
}
