//! Cost of entering a namespace: `cargo bench -p netns`.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    missing_docs,
    reason = "a measurement"
)]

use std::time::{Duration, Instant};

use netns::{MountSandbox, Netns};

fn print_timing(what: &str, run: impl Fn()) {
    let once = |_| {
        let start = Instant::now();
        run();
        start.elapsed()
    };
    let mut times: Vec<Duration> = (0..500).map(once).collect();
    times.sort();
    println!("{what}: median {:?}, p90 {:?}", times[250], times[450]);
}

fn main() {
    let netns = Netns::create().unwrap();
    let sandbox = MountSandbox::default();
    print_timing("open", || drop(Netns::open("/proc/self/ns/net").unwrap()));
    print_timing("run_in", || netns.run_in(|| ()).unwrap());
    print_timing("run_in_sandbox", || netns.run_in_sandbox(&sandbox, || ()).unwrap());
    print_timing("create", || drop(Netns::create().unwrap()));
}
