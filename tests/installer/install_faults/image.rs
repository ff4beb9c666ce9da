//! Images without a plugin, and with one that does not run.

use std::fs;
use std::time::{Duration, Instant};

use super::fault::{COPY, Fault, each};
use crate::fixtures::install::{FILE, InstallFixture, NETWORK, PLUGIN, files};

#[test]
fn an_image_without_the_plugin_is_told_and_installed_from_when_it_has_one() {
    let fixture = InstallFixture::new(&[]);
    fs::remove_file(fixture.container.source_dir().join("istio-cni")).unwrap();
    fs::write(fixture.container.source_dir().join("istio-iptables"), "").unwrap();
    let says = &["/opt/cni/bin holds no plugin istio-cni"];
    Fault { result: COPY, says }.shows_and_heals(&mut fixture.container.start(), || {
        assert_eq!(fixture.read(FILE), NETWORK);
        fixture.set_image_plugin(PLUGIN, 0o755);
    });
}

/// Text of the plugin, its mode, and the expected error.
type Broken = (&'static str, u32, &'static [&'static str]);

const BROKEN: [Broken; 5] = [
    ("#!/bin/sh\nexit 1\n", 0o755, &["/opt/cni/bin/istio-cni does not run", "exit status: 1"]),
    (PLUGIN, 0o644, &["/opt/cni/bin/istio-cni does not run", "Permission denied"]),
    ("not a program\n", 0o755, &["/opt/cni/bin/istio-cni does not run", "Exec format error"]),
    ("#!/bin/sh\necho hello\n", 0o755, &["/opt/cni/bin/istio-cni does not run", "hello"]),
    ("#!/bin/sh\nkill -SEGV $$\n", 0o755, &["/opt/cni/bin/istio-cni does not run", "signal: 11"]),
];

#[test]
fn a_plugin_that_does_not_run_is_told_and_gets_no_entry() {
    each(BROKEN, |(text, mode, says)| {
        let fixture = InstallFixture::new(&[]);
        fixture.set_image_plugin(text, mode);
        Fault { result: COPY, says }.shows_and_heals(&mut fixture.container.start(), || {
            assert_eq!(fixture.read(FILE), NETWORK);
            fixture.set_image_plugin(PLUGIN, 0o755);
        });
        assert_eq!(fixture.types(FILE), ["bridge", "istio-cni"]);
    });
}

/// A bad image must not break the node's pods.
#[test]
fn a_plugin_that_does_not_run_does_not_replace_one_that_does() {
    each(BROKEN, |(text, mode, says)| {
        let fixture = InstallFixture::new(&[]);
        fixture.start_ready().kill();
        let installed = (fixture.files(), files(&fixture.container.bin_dir()));
        fixture.set_image_plugin(text, mode);
        Fault { result: COPY, says }.shows(&mut fixture.container.start());
        assert!((fixture.files(), files(&fixture.container.bin_dir())) == installed, "{says:?}");
    });
}

#[test]
fn a_plugin_that_hangs_is_given_up_after_five_seconds() {
    let fixture = InstallFixture::new(&[]);
    fixture.set_image_plugin("#!/bin/sh\nexec sleep 600\n", 0o755);
    let started = Instant::now();
    let mut daemon = fixture.container.start();
    let told = |daemon: &kit::Daemon| daemon.get(8000, "/readyz").unwrap_or_default().1;
    let given_up = "the plugin /opt/cni/bin/istio-cni does not run: no answer within 5 s\n";
    daemon.wait_for("it is given up", |daemon| told(daemon) == given_up);
    assert!(started.elapsed() >= Duration::from_secs(5), "{:?}", started.elapsed());
    assert_eq!(fixture.read(FILE), NETWORK);
    fixture.set_image_plugin(PLUGIN, 0o755);
    daemon.wait_until_ready(); // a running attempt has to end first
    let (used, took) = (daemon.cpu_time(), started.elapsed());
    assert!(used < took / 4, "{used:?} in {took:?}");
}

/// A process that it left holds its stdout open.
#[test]
fn a_plugin_whose_child_lives_on_is_not_waited_for() {
    let fixture = InstallFixture::new(&[]);
    fixture.set_image_plugin(&format!("{PLUGIN}sleep 30 &\n"), 0o755);
    let started = Instant::now();
    drop(fixture.start_ready());
    // Twice the time limit for a plugin: it is run in the image's directory, and once installed.
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
}
