//! Directories that are full, read-only, missing, or removed.

use std::fs;

use kit::{Daemon, binary};
use serde_json::Value;

use super::fault::{
    CONF, COPY, CREDENTIAL, Fault, Lack, SmallDisk, each, heals, make_writable, stays_quiet, until_unchanged,
};
use crate::fixtures::install::{FILE, InstallFixture, KUBECONFIG, NETWORK, PLUGIN, files};

const BIN: &str = "/host/opt/cni/bin";
const NET_D: &str = "/host/etc/cni/net.d";
/// Path outside the container.
const SECONDARY: &str = "host/secondary-bin-dir";
const FULL_BIN: Fault =
    Fault { result: COPY, says: &["/host/opt/cni/bin/istio-cni", "No space left on device"] };

/// A plugin larger than the free space.
fn large_plugin() -> String {
    format!("{PLUGIN}#{}\n", "x".repeat(64 * 1024))
}

#[test]
fn a_full_plugin_directory_is_told_and_used_when_there_is_room() {
    each([Lack::Bytes, Lack::Inodes], |lack| {
        let fixture = InstallFixture::new(&[]);
        fixture.set_image_plugin(&large_plugin(), 0o755);
        let bin = fixture.container.bin_dir();
        let disk = SmallDisk::mount(&bin, lack);
        fs::write(bin.join("bridge"), "another's").unwrap();
        disk.fill();
        let before = files(&bin);
        FULL_BIN.shows_and_heals(&mut fixture.container.start(), || {
            assert_eq!(fixture.read(FILE), NETWORK, "no entry without a plugin");
            until_unchanged(&bin, &before);
            disk.free();
        });
        assert_eq!(fs::read_to_string(bin.join("istio-cni")).unwrap(), large_plugin());
    });
}

#[test]
fn an_upgrade_on_a_full_disk_leaves_the_old_plugin_at_work() {
    let fixture = InstallFixture::new(&[]);
    let bin = fixture.container.bin_dir();
    let disk = SmallDisk::mount(&bin, Lack::Bytes);
    fixture.start_ready().kill();
    fixture.set_image_plugin(&large_plugin(), 0o755);
    disk.fill();
    let installed = (fixture.files(), files(&bin));
    FULL_BIN.shows_and_heals(&mut fixture.container.start(), || {
        until_unchanged(&fixture.container.net_d(), &installed.0);
        until_unchanged(&bin, &installed.1);
        fixture.write(FILE, NETWORK);
        until_unchanged(&fixture.container.net_d(), &installed.0);
        disk.free();
    });
    assert_eq!(fs::read_to_string(bin.join("istio-cni")).unwrap(), large_plugin());
}

/// The runtime calls the plugin because of the remaining entry.
#[test]
fn a_cleanup_that_cannot_restore_the_network_leaves_plugin_and_credential_until_it_can() {
    let fixture = InstallFixture::bare(&[("CLEANUP_ON_EXIT", "always")]);
    let disk = SmallDisk::mount(&fixture.container.net_d(), Lack::Bytes);
    fixture.write(FILE, NETWORK);
    let before = fixture.files();
    let daemon = fixture.start_ready();
    disk.fill();
    let installed = (fixture.files(), files(&fixture.container.bin_dir()));
    let (_, log) = daemon.terminate();
    assert!((fixture.files(), files(&fixture.container.bin_dir())) == installed, "{log}");
    disk.free();
    let (status, log) = fixture.start_ready().terminate();
    assert!(status.success(), "{log}");
    assert_eq!((fixture.files(), files(&fixture.container.bin_dir()).len()), (before, 0), "{log}");
}

#[test]
fn a_full_network_directory_is_told_and_used_when_there_is_room() {
    each([Lack::Bytes, Lack::Inodes], |lack| {
        let fixture = InstallFixture::bare(&[]);
        let disk = SmallDisk::mount(&fixture.container.net_d(), lack);
        fixture.write(FILE, NETWORK);
        disk.fill();
        let before = fixture.files();
        let says = &["/host/etc/cni/net.d/ZZZ-istio-cni-kubeconfig", "No space left on device"];
        Fault { result: CREDENTIAL, says }.shows_and_heals(&mut fixture.container.start(), || {
            until_unchanged(&fixture.container.net_d(), &before);
            disk.free();
        });
        assert_eq!(fixture.types(FILE), ["bridge", "istio-cni"], "{lack:?}");
    });
}

#[test]
fn a_disk_that_fills_up_between_kubeconfig_and_entry_keeps_the_network_as_it_was() {
    let network = NETWORK.replace("1500", &format!("1500, \"note\": \"{}\"", "x".repeat(64 * 1024)));
    let fixture = InstallFixture::bare(&[]);
    let disk = SmallDisk::mount(&fixture.container.net_d(), Lack::Bytes);
    fixture.write(FILE, &network);
    fixture.write("reserve", &"x".repeat(8 * 1024)); // enough for a kubeconfig
    disk.fill();
    fs::remove_file(fixture.path("reserve")).unwrap();
    let says = &["/host/etc/cni/net.d/10-kit.conflist", "No space left on device"];
    Fault { result: CONF, says }.shows_and_heals(&mut fixture.container.start(), || {
        assert_eq!(fixture.read(FILE), network);
        let names: Vec<_> = fixture.files().into_keys().filter(|name| !name.starts_with("ballast")).collect();
        assert_eq!(names, [FILE, KUBECONFIG], "no part of a file is left");
        disk.free();
    });
    assert_eq!(fixture.types(FILE), ["bridge", "istio-cni"]);
}

/// Both are reported, as either may have been expected to work.
#[test]
fn without_any_writable_plugin_directory_there_is_an_error_and_no_entry() {
    let fixture = InstallFixture::new(&[]);
    let mut daemon = fixture.container.start_with(&[], &[BIN]);
    let pid = daemon.pid();
    let says = &[BIN, "Read-only file system", "/host/secondary-bin-dir", "No such file or directory"];
    Fault { result: COPY, says }.shows_and_heals(&mut daemon, || {
        assert_eq!(fixture.read(FILE), NETWORK, "no entry without a plugin");
        make_writable(&fixture, pid, BIN);
    });
    assert_eq!(fixture.types(FILE), ["bridge", "istio-cni"]);
}

#[test]
fn a_read_only_network_directory_is_told_and_used_when_it_is_writable() {
    let fixture = InstallFixture::new(&[]);
    let before = fixture.files();
    let mut daemon = fixture.container.start_with(&[], &[NET_D]);
    let pid = daemon.pid();
    let says = &["/host/etc/cni/net.d/ZZZ-istio-cni-kubeconfig", "Read-only file system"];
    Fault { result: CREDENTIAL, says }.shows_and_heals(&mut daemon, || {
        assert_eq!(fixture.files(), before);
        make_writable(&fixture, pid, NET_D);
    });
    assert_eq!(fixture.types(FILE), ["bridge", "istio-cni"]);
}

#[test]
fn the_secondary_plugin_directory_is_served_too_when_it_is_there() {
    let fixture = InstallFixture::new(&[]);
    let secondary = fixture.container.root().join(SECONDARY);
    fs::create_dir(&secondary).unwrap();
    let daemon = fixture.start_ready();
    for directory in [fixture.container.bin_dir(), secondary.clone()] {
        assert_eq!(fs::read_to_string(directory.join("istio-cni")).unwrap(), PLUGIN);
    }
    fs::remove_file(secondary.join("istio-cni")).unwrap();
    let mut daemon = daemon;
    daemon.wait_for("it is put back", |_| secondary.join("istio-cni").exists());
    drop(daemon);
    let fixture = fixture.again(&[("CLEANUP_ON_EXIT", "always")]);
    let (status, log) = fixture.start_ready().terminate();
    assert!(status.success() && files(&secondary).is_empty(), "{log}");
}

#[test]
fn one_plugin_directory_is_enough_and_the_other_is_told_once() {
    let fixture = InstallFixture::new(&[]);
    let secondary = fixture.container.root().join(SECONDARY);
    fs::create_dir(&secondary).unwrap();
    let mut daemon = fixture.container.start_with(&[], &[BIN]);
    daemon.wait_until_ready();
    assert_eq!(fs::read_to_string(secondary.join("istio-cni")).unwrap(), PLUGIN);
    stays_quiet(&daemon);
    let log = daemon.log();
    assert_eq!(daemon.logged("directory skipped", ""), 1, "{log}");
    let reason = "cannot put files in /host/opt/cni/bin: Read-only file system (os error 30)";
    assert!(daemon.has_logged("directory skipped", &[("reason", reason)]), "{log}");
    let pid = daemon.pid();
    make_writable(&fixture, pid, BIN);
    fs::write(secondary.join("another"), "").unwrap(); // a remount causes no event, this does
    daemon.wait_for("it is installed there, too", |_| fixture.container.bin_dir().join("istio-cni").exists());
}

/// As when a wrong path is mounted: the container's directory does not exist.
#[test]
fn a_missing_plugin_directory_is_told_and_used_when_it_is_there() {
    let fixture = InstallFixture::new(&[]);
    let (fixture, mut daemon) = started_by(fixture, "umount /host/opt/cni/bin\nrmdir /host/opt/cni/bin");
    let says = &[BIN, "No such file or directory"];
    let bin = fixture.container.root().join(BIN.trim_start_matches('/'));
    Fault { result: COPY, says }.shows_and_heals(&mut daemon, || fs::create_dir(&bin).unwrap());
    assert_eq!(fs::read_to_string(bin.join("istio-cni")).unwrap(), PLUGIN);
    assert_eq!(fixture.types(FILE), ["bridge", "istio-cni"]);
}

#[test]
fn a_plugin_directory_that_is_removed_under_the_container_is_told() {
    let fixture = InstallFixture::new(&[]);
    let mut daemon = fixture.start_ready();
    fs::remove_dir_all(fixture.container.bin_dir()).unwrap();
    let says = &["/host/opt/cni/bin", "removed on the host", "delete this pod"];
    Fault { result: COPY, says }.shows(&mut daemon);
}

/// As when the directory is replaced: the container keeps the old one, in which no network can appear any more.
#[test]
fn a_network_directory_that_is_replaced_under_the_container_says_that_a_new_pod_helps() {
    const REPLACED: &[&str] = &["/host/etc/cni/net.d", "removed on the host", "delete this pod"];
    each([(&[][..], CREDENTIAL), (&[("WRITE_KUBECONFIG", "false")], CONF)], |(env, result)| {
        let fixture = InstallFixture::new(env);
        let mut daemon = fixture.start_ready();
        let directory = fixture.container.net_d();
        fs::remove_dir_all(&directory).unwrap();
        fs::create_dir(&directory).unwrap();
        fixture.write(FILE, NETWORK);
        Fault { result, says: REPLACED }.shows(&mut daemon);
        assert_eq!(fixture.read(FILE), NETWORK);
    });
}

/// Nothing has to be written where an earlier agent, or the node's image, has installed everything.
#[test]
fn read_only_directories_that_lack_nothing_are_good() {
    each([&[][..], &[("WRITE_KUBECONFIG", "false")]], |env| {
        let fixture = InstallFixture::new(env);
        fixture.start_ready().kill();
        let mut daemon = fixture.container.start_with(&[], &[BIN, NET_D]);
        daemon.wait_until_ready();
        assert_eq!(daemon.logged("directory skipped", &format!("{BIN}:")), 0, "{}", daemon.log());
        stays_quiet(&daemon);
    });
}

#[test]
fn a_missing_network_directory_is_told_and_used_when_it_is_there() {
    let fixture = InstallFixture::bare(&[("MOUNTED_CNI_NET_DIR", "/host/etc/cni/other")]);
    let directory = fixture.container.root().join("host/etc/cni/other");
    let says = &["/host/etc/cni/other", "No such file or directory"];
    let mut daemon = fixture.container.start();
    Fault { result: CREDENTIAL, says }.shows_and_heals(&mut daemon, || {
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join(FILE), NETWORK).unwrap();
    });
    let network: Value = serde_json::from_slice(&fs::read(directory.join(FILE)).unwrap()).unwrap();
    let last = network["plugins"].as_array().unwrap().last().unwrap();
    assert_eq!(last["type"], "istio-cni", "{network}");
}

/// Starts the agent after a script in its mount namespace.
fn started_by(fixture: InstallFixture, script: &str) -> (InstallFixture, Daemon) {
    let InstallFixture { container, node } = fixture;
    kit::copy_program(&binary("install-cni"), &container.root().join("real"));
    let program = node.dir().join("wrapper");
    kit::write_script(&program, &format!("#!/bin/sh\nset -e\n{script}\nexec /real \"$@\"\n"));
    let fixture = InstallFixture { container: container.with_program(&program), node };
    let daemon = fixture.container.start();
    (fixture, daemon)
}

#[test]
fn a_read_only_root_is_all_the_daemon_needs() {
    let fixture = InstallFixture::new(&[]);
    let (_stage, mut daemon) = started_by(fixture, "mount -o remount,bind,ro /");
    heals(&mut daemon);
}
