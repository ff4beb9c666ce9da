//! Kinds of damage.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::fixture::{BESIDE, Files, replace};

/// One kind of damage.
pub(crate) struct Damage {
    pub(crate) name: &'static str,
    /// Causes the damage; the number counts the repetitions.
    pub(crate) act: fn(&Files, usize),
    /// Causes under which the repair is counted.
    pub(crate) causes: &'static [&'static str],
}

const fn damage(name: &'static str, act: fn(&Files, usize), causes: &'static [&'static str]) -> Damage {
    Damage { name, act, causes }
}

/// Damages that one agent gets in turn.
pub(crate) type Course = &'static [Damage];

const EARLIER: Course = &[
    damage("an earlier network appears", earlier_appears, &["entry_missing", "entry_stale"]),
    damage("the earlier network goes", earlier_goes, &["entry_missing"]),
];

pub(crate) const COURSES: [Course; 15] = [
    &[damage("plugin removed", plugin_removed, &["binary"])],
    &[damage("plugin overwritten", plugin_overwritten, &["binary"])],
    &[damage("plugin not executable", plugin_locked, &["binary"])],
    &[damage("the program beside it removed", tool_removed, &["binary"])],
    &[damage("kubeconfig removed", kubeconfig_removed, &["kubeconfig"])],
    &[damage("kubeconfig changed", kubeconfig_changed, &["kubeconfig"])],
    &[damage("kubeconfig's mode changed", kubeconfig_opened, &["kubeconfig"])],
    &[damage("network made anew", network_anew, &["entry_missing"])],
    &[damage("entry removed", entry_removed, &["entry_missing"])],
    &[damage("entry changed", entry_changed, &["entry_changed"])],
    &[damage("another plugin after ours", another_after, &["entry_not_last"])],
    &[damage("entry twice", entry_twice, &["entry_repeated"])],
    &[damage("network truncated, then written", truncated, &["entry_missing"])],
    EARLIER, // two daemons, each with half of both
    EARLIER,
];

/// Occasionally a writer takes longer than a burst of events, so that the intermediate state is observed, too.
fn hesitate(time: usize) {
    if time % 2 == 1 {
        thread::sleep(Duration::from_millis(60));
    }
}

pub(crate) fn plugin_removed(files: &Files, _: usize) {
    fs::remove_file(files.plugin()).unwrap();
}

fn plugin_overwritten(files: &Files, time: usize) {
    fs::write(files.plugin(), format!("garbage {time}")).unwrap();
}

fn plugin_locked(files: &Files, _: usize) {
    fs::set_permissions(files.plugin(), Permissions::from_mode(0o0)).unwrap();
}

fn tool_removed(files: &Files, _: usize) {
    fs::remove_file(files.bin_dir.join(BESIDE)).unwrap();
}

fn kubeconfig_removed(files: &Files, _: usize) {
    fs::remove_file(files.kubeconfig()).unwrap();
}

fn kubeconfig_changed(files: &Files, time: usize) {
    fs::write(files.kubeconfig(), format!("apiVersion: v{time}\n")).unwrap();
}

fn kubeconfig_opened(files: &Files, _: usize) {
    fs::set_permissions(files.kubeconfig(), Permissions::from_mode(0o644)).unwrap();
}

fn network_anew(files: &Files, time: usize) {
    fs::remove_file(files.holder()).unwrap();
    hesitate(time);
    replace(&files.holder(), &files.network(&[]));
}

pub(crate) fn entry_removed(files: &Files, _: usize) {
    fs::write(files.holder(), files.network(&[])).unwrap();
}

pub(crate) fn network_replaced(files: &Files, _: usize) {
    replace(&files.holder(), &files.network(&[]));
}

fn entry_changed(files: &Files, time: usize) {
    let mut entry = files.entry().clone();
    entry["kubernetes"]["kubeconfig"] = json!(format!("/nowhere/{time}"));
    fs::write(files.holder(), files.network(&[&entry])).unwrap();
}

pub(crate) fn another_after(files: &Files, time: usize) {
    let other = json!({"type": "portmap", "capabilities": {"portMappings": true}, "time": time});
    fs::write(files.holder(), files.network(&[files.entry(), &other])).unwrap();
}

fn entry_twice(files: &Files, _: usize) {
    fs::write(files.holder(), files.network(&[files.entry(), files.entry()])).unwrap();
}

fn truncated(files: &Files, time: usize) {
    fs::write(files.holder(), "").unwrap();
    hesitate(time);
    fs::write(files.holder(), files.network(&[])).unwrap();
}

fn earlier(files: &Files) -> PathBuf {
    files.net_d.join("05-earlier.conflist")
}

pub(crate) fn earlier_appears(files: &Files, _: usize) {
    let mut network: Value = files.primary.clone();
    network["name"] = json!("earlier");
    replace(&earlier(files), &serde_json::to_vec(&network).unwrap());
}

pub(crate) fn earlier_goes(files: &Files, _: usize) {
    assert_eq!(fs::read(files.holder()).unwrap(), files.network(&[]), "what it was before us");
    fs::remove_file(earlier(files)).unwrap();
}
