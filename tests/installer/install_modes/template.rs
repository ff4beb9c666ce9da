//! The file with the plugin's entry: from a ConfigMap, which the kubelet replaces atomically.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kit::NETWORK_CONFIG;

use crate::fixtures::install::{FILE, InstallFixture, NETWORK, replace};

const PATH: (&str, &str) = ("CNI_NETWORK_CONFIG_FILE", "/config/entry.json");

/// Directory of the file, in a container's own root.
fn directory(fixture: &InstallFixture) -> PathBuf {
    let directory = fixture.container.root().join("config");
    fs::create_dir_all(&directory).unwrap();
    directory
}

fn with_level(level: &str) -> String {
    NETWORK_CONFIG.replace("\"debug\"", &format!("\"{level}\""))
}

/// Replaces the file as the kubelet does: a new directory, then an atomic rename of a symlink.
fn swap(directory: &Path, version: &str, text: &str) {
    fs::create_dir(directory.join(version)).unwrap();
    fs::write(directory.join(version).join("entry.json"), text).unwrap();
    symlink(version, directory.join("..data_tmp")).unwrap();
    fs::rename(directory.join("..data_tmp"), directory.join("..data")).unwrap();
    drop(symlink("..data/entry.json", directory.join("entry.json"))); // exists from the first time on
}

fn level(fixture: &InstallFixture) -> String {
    fixture.entry(FILE)["log_level"].as_str().unwrap().to_owned()
}

#[test]
fn the_file_wins_over_the_text_and_its_changes_are_followed() {
    let fixture = InstallFixture::new(&[PATH]);
    let directory = directory(&fixture);
    swap(&directory, "..1", &with_level("info"));
    let mut daemon = fixture.start_ready();
    assert_eq!(level(&fixture), "info");
    let mut times = [("..2", "warn"), ("..3", "error"), ("..4", "debug")].map(|(version, wanted)| {
        swap(&directory, version, &with_level(wanted));
        let changed = Instant::now();
        daemon.wait_for("the entry follows", |_| level(&fixture) == wanted);
        changed.elapsed()
    });
    times.sort_unstable();
    assert!(times[1] < Duration::from_secs(1), "{times:?}"); // the machine may have stalled in one
    daemon.wait_until_ready();
    assert_eq!(daemon.metric("istio_cni_config_updates_total{result=\"applied\"}"), Some(3.0));
}

/// The change is applied, and is no repair.
#[test]
fn a_change_while_there_is_no_network_is_applied_to_the_next_one() {
    let fixture = InstallFixture::new(&[PATH]);
    let directory = directory(&fixture);
    swap(&directory, "..1", &with_level("info"));
    let mut daemon = fixture.start_ready();
    fs::remove_file(fixture.path(FILE)).unwrap();
    let waiting = Some((503, "no network configuration in /host/etc/cni/net.d yet\n".to_owned()));
    daemon.wait_for("it waits for a network", |daemon| daemon.get(8000, "/readyz") == waiting);
    swap(&directory, "..2", &with_level("warn"));
    // One pass may have begun before the change.
    let passes = |daemon: &kit::Daemon| daemon.metric("istio_cni_install_duration_seconds_count");
    let enough = passes(&daemon).map(|count| count + 2.0);
    daemon.wait_for("a pass with the new template", |daemon| {
        fixture.write("another", "");
        passes(daemon) >= enough
    });
    fixture.write(FILE, NETWORK);
    daemon.wait_until_ready();
    assert_eq!(level(&fixture), "warn");
    assert_eq!(daemon.metric("istio_cni_config_updates_total{result=\"applied\"}"), Some(1.0));
}

#[test]
fn a_file_that_is_replaced_or_appears_later_is_followed_too() {
    let fixture = InstallFixture::new(&[PATH]);
    let directory = directory(&fixture);
    let mut daemon = fixture.start_ready();
    assert_eq!(level(&fixture), "debug", "the text, as long as there is no file");
    for wanted in ["info", "warn"] {
        replace(&directory.join("entry.json"), &with_level(wanted), 0o644);
        daemon.wait_for("the entry follows", |_| level(&fixture) == wanted);
    }
}

#[test]
fn a_new_value_that_cannot_be_used_leaves_the_last_good_one() {
    for broken in [
        "{",
        "[]",
        "{\"type\":\"other\"}",
        "",
        "{\"type\":\"istio-cni\",\"log_level\":7}",
        r#"{"type":"istio-cni","enablement_selectors":[{"podSelector":{"matchLabel":{"a":"b"}}}]}"#,
    ] {
        let fixture = InstallFixture::new(&[PATH]);
        let directory = directory(&fixture);
        swap(&directory, "..1", &with_level("info"));
        let mut daemon = fixture.start_ready();
        let before = fixture.read(FILE);
        swap(&directory, "..2", broken);
        let refused =
            |daemon: &kit::Daemon| daemon.metric("istio_cni_config_updates_total{result=\"refused\"}");
        daemon.wait_for("it is refused", |daemon| refused(daemon) == Some(1.0));
        daemon.wait_until_ready(); // the plugin is installed nevertheless
        assert_eq!(fixture.read(FILE), before, "{broken}");
        assert!(
            daemon.logged("new CNI network configuration refused; keeping the last good one", "error=") > 0,
            "{}",
            daemon.log()
        );
        fixture.write("another", ""); // it checks again without logging again
        swap(&directory, "..3", &with_level("warn"));
        daemon.wait_for("the next good one is used", |_| level(&fixture) == "warn");
        assert_eq!(refused(&daemon), Some(1.0));
    }
}

/// The ConfigMap is missing for a moment, as during an upgrade of the chart.
#[test]
fn a_file_that_vanishes_leaves_the_last_good_entry() {
    let fixture = InstallFixture::new(&[PATH, ("CNI_NETWORK_CONFIG", "")]);
    let directory = directory(&fixture);
    swap(&directory, "..1", &with_level("info"));
    let mut daemon = fixture.start_ready();
    fs::remove_file(directory.join("entry.json")).unwrap();
    daemon.wait_for("it is told", |daemon| {
        daemon.logged("new CNI network configuration refused; keeping the last good one", "error=") > 0
    });
    assert_eq!(level(&fixture), "info");
    swap(&directory, "..2", &with_level("warn"));
    daemon.wait_for("the next good one is used", |_| level(&fixture) == "warn");
}
