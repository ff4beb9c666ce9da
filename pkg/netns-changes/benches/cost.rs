//! Cost of a watch for the process that changes the firewall: `cargo bench -p netns-changes`.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement")]

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use netns::Netns;
use netns_changes::ChangeWatcher;

const ROUNDS: usize = 9;
const RULES: usize = 2000;
const RULE: &str = "add rule inet t c meta l4proto tcp counter accept\n";

fn run_nft(netns: &Netns, arguments: &[&str], input: &str) -> Duration {
    let run = || {
        let start = Instant::now();
        let mut child = Command::new("nft");
        let mut child = child.args(arguments).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
        start.elapsed()
    };
    netns.run_in(run).unwrap()
}

/// Duration of one run in a new network namespace.
fn time_in_new_netns(watcher: Option<&ChangeWatcher<u8>>, arguments: &[&str]) -> Duration {
    let netns = Netns::create().unwrap();
    let _ = run_nft(&netns, &["-f", "-"], "add table inet t\nadd chain inet t c\n");
    let _watch = watcher.map(|watcher| watcher.watch(0, &netns).unwrap());
    run_nft(&netns, arguments, &RULE.repeat(RULES))
}

fn median_duration(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times.get(times.len() / 2).copied().unwrap()
}

fn compare_watched(name: &str, watcher: &ChangeWatcher<u8>, arguments: &[&str]) {
    let pair = |_| (time_in_new_netns(None, arguments), time_in_new_netns(Some(watcher), arguments));
    let (without, with): (Vec<_>, Vec<_>) = (0..ROUNDS).map(pair).unzip();
    let (without, with) = (median_duration(without), median_duration(with));
    let ratio = with.as_secs_f64() / without.as_secs_f64();
    println!("{RULES} rules, {name}: {without:?} unwatched, {with:?} watched, ratio {ratio:.2}");
}

fn main() {
    let watcher = ChangeWatcher::new().unwrap();
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut changes = 0;
            while let Some(some) = watcher.wait_for_changes(None).unwrap() {
                changes += some.len();
            }
            changes
        });
        compare_watched("one transaction", &watcher, &["-f", "-"]);
        compare_watched("a transaction each", &watcher, &["-i"]);
        watcher.close();
        println!("{} reports were read", reader.join().unwrap());
    });
}
