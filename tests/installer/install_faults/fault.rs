//! A fault, how it must show, and how it must end.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use kit::{Daemon, until};

use crate::fixtures::install::{InstallFixture, installs};

/// How a fault shows: the result that is counted, and the words of `/readyz` (paths and cause).
pub(super) struct Fault {
    pub(super) result: &'static str,
    pub(super) says: &'static [&'static str],
}

pub(super) const COPY: &str = "COPY_BINARIES_FAILURE";
pub(super) const CREDENTIAL: &str = "CREATE_KUBECONFIG_FAILURE";
pub(super) const CONF: &str = "CREATE_CNI_CONFIG_FAILURE";

/// How long a daemon is watched that cannot go on: the longest pause between two tries, and then some.
const WATCHED: Duration = Duration::from_secs(3);
/// Of that time, what it may compute.
const IDLE: Duration = Duration::from_millis(150);
/// Beginning of a line about a fault.
const COMPLAINT: &str = "the plugin is not installed correctly";
/// Until it has noticed that a fault is gone: the longest pause is two seconds, and then it has to work.
const NOTICED: Duration = Duration::from_secs(4);

impl Fault {
    /// It is told at `/readyz`, counted, and logged once; then hardly anything happens.
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
        let log = daemon.log();
        let complaints: Vec<&str> = log.lines().filter(|line| line.contains(COMPLAINT)).collect();
        let whole = |line: &&&str| self.says.iter().all(|words| line.contains(words));
        assert_eq!(complaints.iter().filter(whole).count(), 1, "{log}");
        stays_quiet(daemon);
        assert!(daemon.metric(&installs(self.result)) > Some(1.0), "it tries again");
        assert!(told(daemon));
    }

    /// It shows, and when it is repaired, the installation is completed by itself.
    pub(super) fn shows_and_heals(&self, daemon: &mut Daemon, mend: impl FnOnce()) {
        self.shows(daemon);
        mend();
        heals(daemon);
    }
}

/// Becomes ready soon.
pub(super) fn heals(daemon: &mut Daemon) {
    let mended = Instant::now();
    daemon.wait_until_ready();
    assert!(mended.elapsed() < NOTICED, "only after {:?}", mended.elapsed());
    assert_eq!(daemon.metric("istio_cni_install_ready"), Some(1.0));
    assert_eq!(daemon.metric(&installs("SUCCESS")), Some(1.0));
}

/// Neither works nor logs for a while.
pub(super) fn stays_quiet(daemon: &Daemon) {
    until("the node is checked", || daemon.logged("node checked", "") > 0);
    let (worked, log) = (daemon.cpu_time(), daemon.log());
    sleep(WATCHED); // that nothing happens shows only in time
    let worked = daemon.cpu_time() - worked;
    assert!(worked < IDLE, "{worked:?} within {WATCHED:?}");
    assert_eq!(daemon.log(), log, "nothing new to tell");
}

/// What a disk lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lack {
    Bytes,
    Inodes,
}

/// A small file system, mounted at a directory for as long as this lives.
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

    /// Takes all the room that there is.
    pub(super) fn fill(&self) {
        let size = if self.lack == Lack::Bytes { 2 << 20 } else { 0 };
        let fill = |number: u32| fs::write(self.directory.join(format!("ballast-{number}")), vec![0; size]);
        let full = (0..100).find_map(|number| fill(number).err()).unwrap();
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    }

    /// Makes room again.
    pub(super) fn free(&self) {
        for number in 0..100 {
            drop(fs::remove_file(self.directory.join(format!("ballast-{number}"))));
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a container that is still there has it, too.
        drop(Command::new("umount").arg("--lazy").arg(&self.directory).status());
    }
}

/// Makes a read-only path of a running container, whose daemon has this pid, writable.
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

/// Tries every case of a table, all at a time: most of it is waiting.
pub(super) fn each<T: Send>(cases: impl IntoIterator<Item = T>, check: impl Fn(T) + Sync) {
    thread::scope(|scope| cases.into_iter().for_each(|case| drop(scope.spawn(|| check(case)))));
}
