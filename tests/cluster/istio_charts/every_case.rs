//! Every recorded set of values: ready, upgraded, restarted, uninstalled.

use std::sync::Mutex;
use std::thread;

use super::chart::{self, Chart};
use super::release::Release;

/// Concurrent agents: they mostly wait for each other's API server.
const AT_A_TIME: usize = 6;

/// Runs the life of a release. `None` means that there is no API server.
pub(crate) fn live(chart: Chart) -> Option<()> {
    let name = chart.name.clone();
    let mut release = Release::install(chart)?;
    let kernel = release.kernel();
    release.create_pod();
    let daemon = release.start();
    release.answers_the_plugin();
    release.test(true);

    // The container is restarted.
    let (log, _) = release.stop(daemon);
    assert!(release.is_installed(), "{name}: a restart removed the plugin: {log}");
    release.test(false);
    let daemon = release.start();

    // The DaemonSet is updated.
    let installed = release.files();
    release.delete_pod();
    let (log, _) = release.stop(daemon);
    assert!(release.is_installed(), "{name}: an upgrade removed the plugin: {log}");
    release.finish_pod();
    let missing: Vec<_> = installed
        .keys()
        .filter(|path| !path.exists() && path.extension().is_none_or(|end| end != "sock"))
        .collect();
    assert!(missing.is_empty(), "{name}: an upgrade removed {missing:?}: {log}");
    release.create_pod();
    let daemon = release.start();
    release.wait_until_pod_is_read();
    release.answers_the_plugin();

    // `helm uninstall`: the DaemonSet is deleted first; the kubelet stops its pod while Helm deletes the rest.
    release.delete_daemon_set();
    release.delete_pod();
    let log = thread::scope(|scope| {
        let stopped = scope.spawn(|| release.stop(daemon).0);
        release.delete_rest();
        stopped.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    assert!(!release.is_installed(), "{name}: the plugin stays: {log}");
    let left = release.left_behind();
    assert!(left.is_empty(), "{name}: left behind or changed: {left:?}: {log}");
    release.finish_pod();
    assert_eq!(release.kernel(), kernel, "{name}: {log}");
    Some(())
}

#[test]
fn every_recorded_chart_becomes_ready_survives_an_upgrade_and_uninstalls() {
    let charts = Mutex::new(chart::all());
    let failures = Mutex::new(Vec::new());
    let work = || {
        loop {
            let Some(chart) = charts.lock().unwrap().pop() else { return };
            let name = chart.name.clone();
            match std::panic::catch_unwind(|| live(chart)) {
                Ok(Some(())) => {}
                Ok(None) => return, // no API server: this test is skipped
                Err(_) => failures.lock().unwrap().push(name),
            }
        }
    };
    thread::scope(|scope| (0..AT_A_TIME).for_each(|_| drop(scope.spawn(work))));
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} of {}: {failures:?}", failures.len(), chart::all().len());
}
