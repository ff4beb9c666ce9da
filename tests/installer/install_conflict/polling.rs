//! No inotify instance or watch is available: other programs of the node have used them up.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use crate::install_heal::fixture::{Files, HealFixture, primary_of, replace};

const PROMISE: Duration = Duration::from_secs(1);
/// A change sooner after a repair may be attributed to a conflicting writer.
const PAUSE: Duration = Duration::from_millis(300);
const ROUNDS: usize = 5;

type Damage = (&'static str, fn(&Files));

const DAMAGES: [Damage; 4] = [
    ("plugin removed", |files| fs::remove_file(files.plugin()).unwrap()),
    ("kubeconfig changed", |files| fs::write(files.kubeconfig(), "changed").unwrap()),
    ("entry removed", |files| fs::write(files.holder(), files.network(&[])).unwrap()),
    ("network replaced", |files| replace(&files.holder(), &files.network(&[]))),
];

#[test]
fn without_inotify_instances_damage_is_found_by_polling() {
    heals_under("max_inotify_instances");
}

#[test]
fn without_inotify_watches_damage_is_found_by_polling() {
    heals_under("max_inotify_watches");
}

/// The limit belongs to the agent's own user namespace, so that no other process is affected and nothing has to be restored.
fn heals_under(limit: &str) {
    let fixture = HealFixture::with(primary_of, |container| container.with_user_limit(limit, 0));
    let polled = || fixture.daemon.metric("istio_cni_polled_directories").filter(|polled| *polled > 0.0);
    let polled = kit::until("directories are polled", polled);
    let mut worst = Duration::ZERO;
    for (name, act) in DAMAGES {
        let mut times = [(); ROUNDS].map(|()| {
            thread::sleep(PAUSE);
            act(&fixture.files);
            fixture.healed(Instant::now())
        });
        times.sort_unstable();
        assert!(times[ROUNDS / 2] <= PROMISE, "{name}: {times:?}\n{}", fixture.daemon.log());
        worst = worst.max(times[ROUNDS - 1]);
    }
    println!("{limit}=0: {polled} directories polled, healed after at most {worst:?}");
    // What the repairs caused may take a moment: a second sample decides.
    let is_quiet = (0..2).any(|_| {
        let (start, before) = (Instant::now(), fixture.daemon.cpu_time());
        thread::sleep(Duration::from_secs(5)); // the measurement itself
        let (took, used) = (start.elapsed(), fixture.daemon.cpu_time().saturating_sub(before));
        println!("{limit}=0: idle: {used:?} of CPU time in {took:?}");
        used < took / 100
    });
    assert!(is_quiet, "polling is a busy loop");
}
