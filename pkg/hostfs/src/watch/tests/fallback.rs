//! Without inotify, and when it becomes available.

use std::fs;
use std::process::Command;

use super::*;

#[test]
fn inotify_is_tried_again() {
    let [_, mut fixture] = Fixture::both();
    assert_eq!(fixture.watcher.count_polled(), 1);
    fixture.watcher.next_retry = Instant::now();
    fixture.assert_quiet("nothing happened but that");
    assert_eq!(fixture.watcher.count_polled(), 0);
    fs::write(fixture.path("new"), "x").unwrap();
    fixture.assert_seen("written");
}

#[test]
fn what_changes_while_inotify_is_got_is_seen() {
    let [_, mut fixture] = Fixture::both();
    fixture.watcher.next_retry = Instant::now();
    fs::write(fixture.path("new"), "x").unwrap();
    fixture.assert_seen("written before the watch was there");
    assert_eq!(fixture.watcher.count_polled(), 0);
}

#[test]
fn a_path_that_is_no_directory_is_polled_until_it_is_one() {
    let [mut fixture, _] = Fixture::both();
    let file = fixture.path("old");
    fixture.watcher.set_directories(std::slice::from_ref(&file));
    assert!(fixture.watcher.wait_for_change(LONG).unwrap().changed);
    assert_eq!(fixture.watcher.count_polled(), 1);
    assert_eq!(fixture.watcher.wait_for_change(fixture.short()).unwrap(), WakeReason::default());
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    assert!(fixture.watcher.wait_for_change(LONG).unwrap().changed);
    assert_eq!(fixture.watcher.count_polled(), 0);
}

/// Set in a process whose user namespace allows none of the named resource.
const LIMITED: &str = "HOSTFS_TEST_LIMITED";

#[test]
fn without_inotify_of_the_kernel_it_polls() {
    if let Ok(limit) = std::env::var(LIMITED) {
        return limited(&limit);
    }
    let this = std::env::current_exe().unwrap();
    for limit in ["max_inotify_instances", "max_inotify_watches"] {
        let script = format!("echo 0 >/proc/sys/user/{limit} && exec \"$@\"");
        let mut child = Command::new("unshare");
        child.args(["--user", "--map-root-user", "sh", "-c", &script, "sh"]).arg(&this);
        child.args([
            "--exact",
            "watch::tests::fallback::without_inotify_of_the_kernel_it_polls",
            "--nocapture",
        ]);
        let output = child.env(LIMITED, limit).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        let has_run = text.lines().any(|line| line.starts_with("test result: ok. 1 passed;"));
        assert!(output.status.success() && has_run, "{limit}: {text}");
    }
}

fn limited(limit: &str) {
    let fixture =
        Fixture { directory: tempfile::tempdir().unwrap(), watcher: DirectoryWatcher::new().unwrap() };
    let mut fixture = fixture.started();
    assert_eq!(fixture.watcher.count_polled(), 1, "{limit}");
    fs::write(fixture.path("new"), "x").unwrap();
    fixture.assert_seen("written");
    fs::write(format!("/proc/sys/user/{limit}"), "10").unwrap();
    fixture.watcher.next_retry = Instant::now();
    fixture.assert_quiet("inotify is back");
    assert_eq!(fixture.watcher.count_polled(), 0);
}
