//! Kills while a single configuration is converted to a conflist, and back.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kit::{Container, Node, NodeOptions, SetOnDrop};
use rustix::process::Signal;

use super::victim::{assert_complete, started, temporaries};
use crate::fixtures::random::random;
use crate::install_heal::fixture::{entries_of, names, networks};

const SEED: u64 = 0x636f_6e76_6572_7421;
const ROUNDS: usize = 60;
/// Number of further agents that a round may start if none was killed at its step yet.
const MORE_KILLS: usize = 50;
/// Large enough that every step of the conversion takes time.
const PADDING: usize = 256 * 1024;
const CONF: &str = "10-kit.conf";
const LIST: &str = "10-kit.conflist";
/// A script that answers as a plugin does when it is tried; a real one would take most of the time.
const PLUGIN: &str = "#!/bin/sh\necho '{\"cniVersion\": \"1.0.0\", \"supportedVersions\": [\"1.0.0\"]}'\n";

/// Formatted as no program would, so that a copy is never mistaken for it.
fn single() -> String {
    let padding = "x".repeat(PADDING);
    format!(
        "{{\"type\":  \"ptp\",\n \"name\":\"kit\", \"cniVersion\" :\"1.0.0\",\n\n \"padding\": \"{padding}\" }}\n"
    )
}

/// Progress of a conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Progress {
    Nothing,
    /// The original is being kept,
    Keeping,
    /// is kept,
    Kept,
    /// the list is being written,
    Writing,
    /// is written,
    Written,
    /// and stands alone.
    Done,
}

use Progress::{Done, Keeping, Kept, Nothing, Writing, Written};

fn progress(directory: &Path) -> Progress {
    let names = names(directory);
    let any = |start: &str| names.iter().any(|name| name.starts_with(start));
    let has = |whole: &str| names.iter().any(|name| name == whole);
    match () {
        () if has(LIST) && !has(CONF) => Done,
        () if has(LIST) => Written,
        () if any("10-kit.conflist.tmp.") => Writing,
        () if has("10-kit.conf.before-istio-cni") => Kept,
        () if any("10-kit.conf.before-istio-cni.tmp.") => Keeping,
        () => Nothing,
    }
}

struct Fixture {
    node: Node,
    container: Container,
    /// Held while the directory is recreated.
    fresh: Mutex<()>,
    over: AtomicBool,
}

#[test]
fn a_conversion_that_is_killed_anywhere_leaves_a_network_and_can_be_taken_back() {
    println!("seed {SEED:#x}");
    let node = Node::new(NodeOptions::default());
    let container = Container::new(&node).with_env("CLEANUP_ON_EXIT", "always");
    fs::write(container.source_dir().join("istio-cni"), PLUGIN).unwrap();
    fs::set_permissions(container.source_dir().join("istio-cni"), Permissions::from_mode(0o755)).unwrap();
    let fixture = Fixture { node, container, fresh: Mutex::new(()), over: AtomicBool::new(false) };
    fixture.make_fresh();
    thread::scope(|scope| {
        let _ends = SetOnDrop(&fixture.over);
        let checker = scope.spawn(|| fixture.check());
        fixture.rounds(|| !checker.is_finished());
    });
}

impl Fixture {
    fn rounds(&self, others_live: impl Fn() -> bool) {
        let (mut dice, mut met) = (SEED, [0; 6]);
        for round in 0..ROUNDS {
            let target = [Keeping, Kept, Writing, Written, Done][round % 5];
            let mut at = self.kill_at(target, &mut dice);
            // A random moment is often longer than a step, especially on a busy machine.
            for _ in 0..MORE_KILLS {
                if at == target || met[target as usize] > 0 {
                    break;
                }
                self.make_fresh();
                at = self.kill_at(target, &mut dice);
            }
            met[at as usize] += 1;
            self.repaired(round, target, &mut dice);
            assert!(others_live(), "round {round}: see the other thread's panic");
            self.make_fresh();
        }
        println!("killed so often at nothing, keeping, kept, writing, written, done: {met:?}");
        assert!(met[1..].iter().filter(|count| **count > 0).count() >= 4, "{met:?}");
    }

    fn make_fresh(&self) {
        let _fresh = self.fresh.lock().unwrap();
        let net_d = self.node.net_d();
        names(&net_d).into_iter().for_each(|name| fs::remove_file(net_d.join(name)).unwrap());
        fs::write(net_d.join(CONF), single()).unwrap();
    }

    /// Runs the agent for moments only, and kills it once its conversion has reached a step; returns the actual progress.
    fn kill_at(&self, target: Progress, dice: &mut u64) -> Progress {
        let (net_d, plugin) = (self.node.net_d(), self.container.bin_dir().join("istio-cni"));
        let daemon = started(&self.container);
        let deadline = Instant::now() + Duration::from_secs(20);
        while progress(&net_d) < target {
            assert!(Instant::now() < deadline, "it never converts:\n{}", daemon.log());
            if plugin.exists() {
                daemon.signal(Signal::CONT);
                thread::sleep(Duration::from_micros(random(dice, 60))); // a random moment
                daemon.signal(Signal::STOP);
            }
        }
        daemon.kill();
        progress(&net_d)
    }

    fn repaired(&self, round: usize, target: Progress, dice: &mut u64) {
        let net_d = self.node.net_d();
        let mut daemon = started(&self.container);
        daemon.wait_until_ready();
        self.assert_installed(round, target);
        if round % 2 == 1 {
            daemon.signal(Signal::TERM);
            thread::sleep(Duration::from_micros(random(dice, 6000))); // the moment of the kill
            daemon.kill();
            daemon = started(&self.container);
            daemon.wait_until_ready();
            self.assert_installed(round, target);
        }
        let (status, log) = daemon.terminate();
        assert!(status.success(), "{status}:\n{log}");
        assert_eq!(names(&net_d), [CONF], "round {round}, {target:?}:\n{log}");
        assert!(fs::read_to_string(net_d.join(CONF)).unwrap() == single(), "round {round}, {target:?}");
        assert_eq!(names(&self.container.bin_dir()), [""; 0], "round {round}, {target:?}:\n{log}");
    }

    fn assert_installed(&self, round: usize, target: Progress) {
        let networks = networks(&self.node.net_d());
        let entries: Vec<_> =
            networks.iter().map(|(name, network)| (name.as_str(), entries_of(network))).collect();
        assert_eq!(entries, [(LIST, 1)], "round {round}, {target:?}");
        for directory in [self.node.net_d(), self.container.bin_dir()] {
            assert_eq!(temporaries(&directory), [""; 0], "round {round}, {target:?}");
        }
    }

    /// Checks the network continuously: there is always one.
    fn check(&self) {
        let _ends = SetOnDrop(&self.over);
        let net_d = self.node.net_d();
        for look in 0_u32.. {
            if self.over.load(Ordering::Relaxed) {
                return;
            }
            let _fresh = self.fresh.lock().unwrap();
            if look % 32 == 0 {
                assert_complete(&net_d); // which takes long
            }
            // One of two checks of both files must find one: each is removed only when the other exists.
            let there = [CONF, LIST, CONF, LIST].map(|name| net_d.join(name).exists());
            assert!(there.contains(&true), "no network: {:?}", names(&net_d));
            thread::sleep(Duration::from_micros(100)); // leaves the CPUs to the observed processes
        }
    }
}
