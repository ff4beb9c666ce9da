//! Kills at random moments, while the primary plugin's agent rewrites its network and the image changes.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kit::{Container, SetOnDrop};
use serde_json::json;

use super::victim::{assert_complete, assert_runs, started, temporaries};
use crate::fixtures::random::random;
use crate::install_heal::fixture::{Files, HOLDER, HealFixture, OURS, networks, replace};

const SEED: u64 = 0x6b69_6c6c_2d39_2121;
const KILLS: usize = 300;
/// One start in this many runs until the installation is complete.
const SPARED: usize = 20;
/// Number of starts between two versions of the plugin.
const UPGRADE: usize = 3;

struct Fixture {
    files: Files,
    container: Container,
    /// Lengths of the plugin's versions.
    versions: [u64; 2],
    /// Held while the primary network is changed.
    pen: Mutex<u64>,
    over: AtomicBool,
}

#[test]
fn after_any_kill_every_file_is_whole_and_the_next_start_makes_all_right() {
    println!("seed {SEED:#x}");
    let HealFixture { daemon, files, container, node: _node } = HealFixture::new();
    daemon.kill();
    let length = fs::metadata(files.plugin()).unwrap().len();
    let (pen, over) = (Mutex::new(0), AtomicBool::new(false));
    let fixture = Fixture { files, container, versions: [length, length + 1], pen, over };
    thread::scope(|scope| {
        let _ends = SetOnDrop(&fixture.over);
        let writer = scope.spawn(|| until_over(&fixture, || fixture.write(SEED + 1)));
        let checker = scope.spawn(|| until_over(&fixture, || fixture.check()));
        kills(&fixture, || !writer.is_finished() && !checker.is_finished());
    });
}

/// Runs a thread's work until the test is over.
fn until_over(fixture: &Fixture, work: impl FnOnce()) {
    let _ends = SetOnDrop(&fixture.over);
    work();
}

fn kills(fixture: &Fixture, others_live: impl Fn() -> bool) {
    let (mut dice, mut left) = (SEED, 0);
    let starts = [(); 3].map(|()| {
        let start = Instant::now();
        started(&fixture.container).wait_until_ready();
        start.elapsed().as_micros() as u64
    });
    let span = starts.into_iter().min().unwrap(); // after the longest one, most kills would come too late
    for kill in 1..=KILLS {
        if kill % UPGRADE == 0 {
            fixture.upgrade(kill);
        }
        let daemon = started(&fixture.container);
        thread::sleep(Duration::from_micros(random(&mut dice, span))); // the moment of the kill
        daemon.kill();
        left += temporaries(&fixture.files.net_d).len() + temporaries(&fixture.files.bin_dir).len();
        assert!(others_live(), "kill {kill}: see the other thread's panic");
        if kill % SPARED == 0 {
            fixture.spare(kill);
        }
    }
    println!("{KILLS} kills within {span} µs of a start left {left} temporaries");
    assert!(left > 0, "no kill ever came while a file was written");
}

impl Fixture {
    /// Replaces the image's plugin by the other version; both run.
    fn upgrade(&self, kill: usize) {
        let source = self.files.source_dir.join(OURS);
        let mut program = fs::read(&source).unwrap();
        let wanted = self.versions[kill / UPGRADE % 2] as usize;
        program.resize(wanted, 0);
        let temporary = self.container.root().join("plugin");
        fs::write(&temporary, program).unwrap();
        fs::set_permissions(&temporary, fs::metadata(&source).unwrap().permissions()).unwrap();
        fs::rename(temporary, source).unwrap();
    }

    /// Runs an agent until the installation is complete.
    fn spare(&self, kill: usize) {
        let mut daemon = started(&self.container);
        let mut count = self.pen.lock().unwrap(); // from here on the primary network does not change
        let files = &self.files;
        daemon.wait_for("all is well", |daemon| daemon.is_ready() && files.fault().is_none());
        *count += 1;
        replace(&files.holder(), &network(files, *count));
        daemon.wait_for("the last network counts", |daemon| daemon.is_ready() && files.fault().is_none());
        let (name, found) = networks(&files.net_d).swap_remove(0);
        assert_eq!((name.as_str(), &found["plugins"][0]["mtu"]), (HOLDER, &json!(*count)), "kill {kill}");
        files.assert_whole();
        assert_runs(&files.plugin());
        for directory in [&files.net_d, &files.bin_dir] {
            assert_eq!(temporaries(directory), [""; 0], "kill {kill}:\n{}", daemon.log());
        }
    }

    /// Simulates the primary plugin's agent.
    fn write(&self, mut dice: u64) {
        while !self.over.load(Ordering::Relaxed) {
            let mut count = self.pen.lock().unwrap();
            *count += 1;
            let files = &self.files;
            match random(&mut dice, 4) {
                0 => replace(&files.net_d.join("10-kit.conf"), &single(files, *count)),
                _ => replace(&files.holder(), &network(files, *count)),
            }
            drop(count);
            thread::sleep(Duration::from_millis(5 + random(&mut dice, 75))); // at random intervals
        }
    }

    /// Checks all files continuously.
    fn check(&self) {
        let plugin = self.files.plugin();
        while !self.over.load(Ordering::Relaxed) {
            assert_complete(&self.files.net_d);
            let found = fs::metadata(&plugin).expect("once installed, there is always a plugin");
            assert!(self.versions.contains(&found.len()), "{} bytes of a plugin", found.len());
            assert_eq!(found.permissions().mode() & 0o7777, 0o755, "nobody could run it");
            thread::sleep(Duration::from_micros(300)); // leaves the CPUs to the observed processes
        }
    }
}

/// The primary network in this version.
fn network(files: &Files, count: u64) -> Vec<u8> {
    let mut network = files.primary.clone();
    network["plugins"][0]["mtu"] = json!(count);
    serde_json::to_vec_pretty(&network).unwrap()
}

/// The primary network as a single configuration.
fn single(files: &Files, count: u64) -> Vec<u8> {
    let mut network = files.primary["plugins"][0].clone();
    (network["cniVersion"], network["name"], network["mtu"]) = (json!("1.0.0"), json!("kit"), json!(count));
    serde_json::to_vec_pretty(&network).unwrap()
}
