//! Metrics of the process. A single test: it counts descriptors.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test: a panic is its failure")]

use std::collections::HashMap;
use std::fs::{self, File};
use std::hint::black_box;
use std::time::{Duration, Instant, SystemTime};

use prometheus_client::registry::Registry;
use telemetry::metrics::{register_process, render};

fn values(registry: &Registry) -> HashMap<String, f64> {
    let text = render(registry);
    let samples =
        text.lines().filter(|line| !line.starts_with('#')).map(|line| line.split_once(' ').unwrap());
    samples.map(|(name, value)| (name.to_owned(), value.parse().unwrap())).collect()
}

#[test]
fn the_process_is_described_as_it_is_now() {
    let mut registry = Registry::default();
    register_process(&mut registry);
    let before = values(&registry);
    let mut names: Vec<&str> = before.keys().map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!(
        names,
        [
            "process_cpu_seconds_total",
            "process_max_fds",
            "process_open_fds",
            "process_resident_memory_bytes",
            "process_start_time_seconds",
            "process_threads",
            "process_virtual_memory_bytes",
        ]
    );
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
    let age = now - before["process_start_time_seconds"];
    assert!((-1.0..60.0).contains(&age), "{age} s old");

    let open = fs::read_dir("/proc/self/fd").unwrap().count() - 1; // one is open for counting
    assert_eq!(before["process_open_fds"], open as f64);
    let _file = File::open("/proc/self/stat").unwrap();
    let memory = black_box(vec![1_u8; 32 << 20]);
    // Until some CPU time was used.
    let start = Instant::now();
    let mut after = values(&registry);
    let cpu = "process_cpu_seconds_total";
    while after[cpu] < before[cpu] + 0.1 && start.elapsed() < Duration::from_secs(60) {
        after = values(&registry);
    }
    let grown = |name: &str| after[name] - before[name];
    assert_eq!(grown("process_open_fds"), 1.0);
    assert_eq!((grown("process_start_time_seconds"), grown("process_max_fds")), (0.0, 0.0));
    assert!(grown(cpu) >= 0.1 && grown(cpu) < start.elapsed().as_secs_f64() + 0.1, "{after:?}");
    let resident = grown("process_resident_memory_bytes");
    assert!(resident > 30e6 && resident < 64e6, "{before:?} {after:?}");
    assert!(grown("process_virtual_memory_bytes") > 30e6);
    drop(memory);
}
