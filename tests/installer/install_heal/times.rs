//! Duration of damages, and their counters.

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::thread;
use std::time::{Duration, Instant};

use super::damage::{COURSES, Course};
use super::fixture::HealFixture;
use crate::fixtures::random::random;

/// Number of damages of each kind.
const DAMAGES: usize = 100;
const PROMISE: Duration = Duration::from_secs(1);
/// A change sooner after a repair may be attributed to a conflicting writer.
const PAUSE: Duration = Duration::from_millis(300);
const CAUSES: [&str; 9] = [
    "binary",
    "kubeconfig",
    "file_missing",
    "entry_missing",
    "entry_changed",
    "entry_not_last",
    "entry_repeated",
    "entry_stale",
    "copy_outdated",
];

type Times = BTreeMap<&'static str, Vec<Duration>>;

#[test]
fn every_damage_is_put_right_within_a_second_and_counted_under_its_cause() {
    let all = thread::scope(|scope| {
        let courses: Vec<_> =
            (1..).zip(COURSES).map(|(seed, course)| scope.spawn(move || run(course, seed))).collect();
        let join = |course: thread::ScopedJoinHandle<'_, Times>| {
            course.join().unwrap_or_else(|panic| resume_unwind(panic))
        };
        courses.into_iter().map(join).fold(Times::new(), |mut all, times| {
            times.into_iter().for_each(|(name, times)| all.entry(name).or_default().extend(times));
            all
        })
    });
    println!("{:<34} {:>5} {:>9} {:>9} {:>9} {:>9}", "damage", "times", "min", "median", "p99", "max");
    let slow: Vec<_> = all.into_iter().filter(|(name, times)| !are_prompt(name, times.clone())).collect();
    assert!(slow.is_empty(), "{slow:?}");
}

/// Prints a distribution; returns whether it keeps the promise. A machine on which most damages take long makes a few take longer.
fn are_prompt(name: &str, mut times: Vec<Duration>) -> bool {
    assert!(times.len() >= DAMAGES, "{name}: only {}", times.len());
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() * percent).div_ceil(100).max(1) - 1];
    let (min, median, p99, max) = (times[0], at(50), at(99), at(100));
    println!("{name:<34} {:>5} {min:>9.1?} {median:>9.1?} {p99:>9.1?} {max:>9.1?}", times.len());
    at(25) <= PROMISE && at(95) <= PROMISE.max(median * 8)
}

/// Runs one agent through its damages.
fn run(course: Course, mut dice: u64) -> Times {
    let fixture = HealFixture::new();
    let mut times = Times::new();
    for time in 0..DAMAGES {
        // Random, so that damages occur at all phases of the agent's own timers.
        thread::sleep(PAUSE + Duration::from_millis(random(&mut dice, 60)));
        let damage = &course[time % course.len()];
        (damage.act)(&fixture.files, time / course.len());
        let took = fixture.healed(Instant::now());
        times.entry(damage.name).or_default().push(took);
    }
    fixture.files.assert_whole();
    assert_counted(&fixture, course);
    times
}

fn assert_counted(fixture: &HealFixture, course: Course) {
    let name = course[0].name;
    let each = DAMAGES / course.len();
    for cause in CAUSES {
        let of = |causes: &[&str]| causes.iter().filter(|one| **one == cause).count();
        let expected = course.iter().map(|damage| each * of(damage.causes)).sum::<usize>() as f64;
        assert_eq!(
            fixture.restores(cause),
            expected,
            "{name}, counted as {cause}:\n{}",
            fixture.daemon.log()
        );
    }
    let installs = fixture.daemon.metric(r#"istio_cni_installs_total{result="SUCCESS"}"#);
    assert_eq!(installs, Some(1.0 + DAMAGES as f64), "{name}: the first, and one for each damage");
    assert_eq!(fixture.daemon.metric("istio_cni_install_ready"), Some(1.0), "{name}");
    let (_, metrics) = fixture.daemon.get(15014, "/metrics").unwrap();
    let counted = |metric: &str| {
        let of = metrics.lines().filter(|line| line.starts_with(metric) && !line.ends_with(" 0"));
        of.map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(counted("istio_cni_conflicts_total{").is_empty(), "{name}: accidents are no conflict: {metrics}");
    let successes = counted("istio_cni_installs_total{result=\"SUCCESS\"} ");
    assert_eq!(counted("istio_cni_installs_total{"), successes, "{name}: {metrics}");
}
