//! Agents with a short life, and helpers of observing threads.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use kit::{Container, Daemon};
use serde_json::Value;

use crate::install_heal::fixture::{entries_of, is_network, names};

/// Starts an agent, and returns when its own program runs: the setup of the container is not under test.
pub(crate) fn started(container: &Container) -> Daemon {
    let daemon = container.start();
    let (comm, deadline) = (format!("/proc/{}/comm", daemon.pid()), Instant::now() + Duration::from_secs(20));
    while fs::read_to_string(&comm).unwrap() != "install-cni\n" {
        assert!(Instant::now() < deadline, "it does not start:\n{}", daemon.log());
        thread::sleep(Duration::from_micros(200)); // more often than `kit::until`: the kills that follow are timed from here
    }
    daemon
}

/// Temporary files in a directory.
pub(crate) fn temporaries(directory: &Path) -> Vec<String> {
    names(directory).into_iter().filter(|name| name.contains(".tmp.")).collect()
}

/// Reads every network as a runtime does. A file that is removed meanwhile is skipped.
pub(crate) fn assert_complete(directory: &Path) {
    for name in names(directory).into_iter().filter(|name| is_network(name)) {
        let Ok(content) = fs::read(directory.join(&name)) else { continue };
        let network: Value = serde_json::from_slice(&content)
            .unwrap_or_else(|error| panic!("{name}: {error}: {}", String::from_utf8_lossy(&content)));
        assert!(entries_of(&network) <= 1, "{name}: {network:#}");
    }
}

/// Runs the plugin as a runtime does at first.
pub(crate) fn assert_runs(plugin: &Path) {
    let output = std::process::Command::new(plugin).env("CNI_COMMAND", "VERSION").output().unwrap();
    assert!(output.status.success(), "{output:?}");
}
