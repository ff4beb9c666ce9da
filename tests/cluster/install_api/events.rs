//! Events and conditions for users of the cluster.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::fixture::ClusterFixture;

/// Restores the original file each time that it has our entry, until `stop` is set.
pub(crate) fn contend(path: &Path, original: &[u8], stop: &AtomicBool) {
    let copy = path.with_extension("rival");
    while !stop.load(Ordering::Relaxed) {
        if fs::read_to_string(path).is_ok_and(|text| text.contains("istio-cni")) {
            replace(path, &copy, original);
        }
        thread::sleep(Duration::from_millis(1)); // a conflicting writer that polls often
    }
}

fn replace(path: &Path, copy: &Path, content: &[u8]) {
    fs::write(copy, content).unwrap();
    fs::rename(copy, path).unwrap();
}

#[test]
fn a_conflict_is_reported_once_and_names_the_likely_program() {
    let Some(fixture) = ClusterFixture::start("event-conflict") else { return };
    let calico = json!({"cniVersion": "1.0.0", "name": "k8s-pod-network", "plugins": [{"type": "calico"}]});
    fixture.node.write_conflist("10-kit.conflist", &calico);
    let original = fs::read(fixture.conflist()).unwrap();
    let mut daemon = fixture.daemon();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| contend(&fixture.conflist(), &original, &stop));
        let mut watch = || {
            let event = fixture.event("CNIConfigConflict");
            let mended = |daemon: &kit::Daemon| {
                daemon.metric(r#"istio_cni_restores_total{cause="entry_missing"}"#).unwrap_or_default()
            };
            let before = mended(&daemon);
            // The agent backs off for a second, then for two: the other writer answers each time.
            daemon.wait_for("two more rounds", |daemon| mended(daemon) >= before + 2.0);
            event
        };
        let event = std::panic::catch_unwind(std::panic::AssertUnwindSafe(&mut watch));
        stop.store(true, Ordering::Relaxed); // even after a failure: otherwise the scope would never end
        let event = event.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let advice = "let only one writer own the file: ISTIO_OWNED_CNI_CONFIG=true leaves Calico's alone";
        let rival = format!("this looks like Calico (calico): {advice}");
        let expected = format!("another program keeps reverting our network configuration: {rival}");
        assert_eq!(event["message"], expected);
        assert_eq!(event["involvedObject"]["name"], json!(fixture.name));
    });
    assert_eq!(fixture.events("CNIConfigConflict").len(), 1);
    assert_eq!(daemon.metric(r#"istio_cni_conflicts_total{file="network configuration"}"#), Some(1.0));
    daemon.wait_until_ready(); // the conflict has ended
    assert_eq!(fixture.entry()["type"], "istio-cni");
}

#[test]
fn what_the_api_server_does_not_take_is_in_the_log_and_changes_nothing() {
    let Some(fixture) = ClusterFixture::allowed("event-forbidden", &kit::istio::plugin_rules()) else {
        return;
    };
    let file = fixture.container.root().join("etc/template");
    fs::write(&file, super::fixture::template("info")).unwrap();
    let fixture = fixture.with_env("CNI_NETWORK_CONFIG_FILE", "/etc/template");
    let mut daemon = fixture.daemon();
    fs::write(&file, "{").unwrap();
    let error = "cannot publish the Event CNIConfigRefused about node event-forbidden: ";
    daemon.wait_for("the trouble is told", |daemon| daemon.logged("cannot publish Events", error) > 0);
    assert_eq!((&fixture.entry()["log_level"], daemon.is_ready()), (&json!("info"), true));
    assert_eq!(fixture.events("CNIConfigRefused"), Vec::<Value>::new());
}
