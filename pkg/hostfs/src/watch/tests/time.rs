//! Duration of waits, and number of changes that count as one.

use super::*;

/// For [`DirectoryWatcher::settling`], as in production, but longer, so that a busy machine does not matter.
const PAUSE: Duration = Duration::from_millis(120);
const LASTS: Duration = Duration::from_millis(600);

#[test]
fn a_burst_is_one_or_two_wakes() {
    for mut fixture in Fixture::both() {
        fixture.watcher.settling = (PAUSE, LASTS);
        let directory = fixture.path("");
        let burst = thread::spawn(move || {
            let start = Instant::now();
            for i in 0..500 {
                fs::write(directory.join(format!("{i}")), "x").unwrap();
            }
            start.elapsed()
        });
        let mut wakes = 0;
        assert!(fixture.watcher.wait_for_change(LONG).unwrap().changed);
        while fixture.watcher.wait_for_change(POLL * 2).unwrap().changed {
            wakes += 1;
        }
        // Two, unless the machine is so busy that they are not one burst.
        let bursts = burst.join().unwrap().as_millis() / PAUSE.as_millis();
        assert!(wakes <= 1 + bursts, "{wakes} more wakes for {bursts} bursts");
    }
}

#[test]
fn a_burst_is_waited_for_but_not_for_ever() {
    for mut fixture in Fixture::both() {
        assert_eq!(mem::replace(&mut fixture.watcher.settling, (PAUSE, LASTS)), (QUIET, BURST));
        let (told, again) = fixture.during(LASTS / 3);
        assert!(told && !again, "a short one is told when it is over, once: {:?}", fixture.watcher);
        let (told, again) = fixture.during(LASTS * 5 / 2);
        assert!(!told && again, "a long one is told before it is over: {:?}", fixture.watcher);
    }
}

impl Fixture {
    /// Waits during a burst; returns whether it was over at the end, and whether the next wait reports it again.
    fn during(&mut self, burst: Duration) -> (bool, bool) {
        // Counts only bursts whose writer was not delayed so much that they seemed to end.
        let counted = (0..20).find_map(|_| {
            let directory = self.path("");
            self.watcher.next_poll = Instant::now() + QUIET;
            let writer = thread::spawn(move || drip(&directory, burst));
            assert!(self.watcher.wait_for_change(LONG).unwrap().changed);
            let over = writer.is_finished();
            let again = self.watcher.wait_for_change(self.short()).unwrap().changed;
            let longest = writer.join().unwrap();
            while self.watcher.wait_for_change(self.short()).unwrap().changed {}
            (longest < PAUSE / 2).then_some((over, again))
        });
        counted.expect("no burst without a break in 20")
    }
}

/// Writes repeatedly. Returns the longest interval.
fn drip(directory: &Path, burst: Duration) -> Duration {
    let (start, mut longest) = (Instant::now(), Duration::ZERO);
    while start.elapsed() < burst {
        let last = Instant::now();
        fs::write(directory.join("drip"), format!("{:020}", start.elapsed().as_nanos())).unwrap();
        thread::sleep(Duration::from_micros(2500)); // the duration is tested
        longest = longest.max(last.elapsed());
    }
    longest
}

#[test]
fn timeouts_are_kept_and_nothing_runs_meanwhile() {
    for mut fixture in Fixture::both() {
        // Not each time: something else may stop or disturb this process.
        let is_kept = (0..5).any(|_| {
            let (before, start) = (activity(), Instant::now());
            let wake = fixture.watcher.wait_for_change(Duration::from_secs(1)).unwrap();
            let (after, took) = (activity(), start.elapsed());
            assert_eq!(wake, WakeReason::default());
            assert!(took >= Duration::from_secs(1), "{took:?}");
            took < Duration::from_secs(3) && after.0 - before.0 <= 8 && after.1 - before.1 <= 10
        });
        assert!(is_kept, "in one quiet second it sleeps often, or runs");
        assert_eq!(fixture.watcher.wait_for_change(Duration::ZERO).unwrap(), WakeReason::default());
        fixture.watcher.waker().wake();
        assert!(
            fixture.watcher.wait_for_change(Duration::MAX).unwrap().woken,
            "a time beyond the clock is for ever"
        );
    }
}

/// Number of times that this thread went to sleep, and its CPU time, in the kernel's ticks of 10 ms.
fn activity() -> (u64, u64) {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap();
    let sleeps = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    let stat = fs::read_to_string("/proc/thread-self/stat").unwrap();
    let (_, after_name) = stat.rsplit_once(')').unwrap();
    let fields: Vec<_> = after_name.split_whitespace().collect();
    let ran = fields[11..13].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    (sleeps.trim().parse().unwrap(), ran)
}
