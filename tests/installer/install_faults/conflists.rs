//! Networks that cannot be edited, and files of unexpected types.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::fault::{CONF, COPY, CREDENTIAL, Fault, each, heals, stays_quiet};
use crate::fixtures::install::{FILE, InstallFixture, KUBECONFIG, NETWORK, PLUGIN};

const NAMED: &[(&str, &str)] = &[("CNI_CONF_NAME", FILE)];

#[test]
fn a_first_file_that_is_no_network_is_skipped_as_runtimes_do() {
    for broken in ["{", "[]", "\"text\"", "{\"name\":\"kit\"}", "{\"name\":\"kit\",\"plugins\":[]}", ""] {
        let fixture = InstallFixture::new(&[]);
        fixture.write("05-broken.conflist", broken);
        let _daemon = fixture.start_ready();
        assert_eq!(fixture.read("05-broken.conflist"), broken);
        assert_eq!(fixture.types(FILE), ["bridge", "istio-cni"], "{broken}");
    }
}

/// Not a failure of ours: a network plugin will be installed.
#[test]
fn when_the_only_file_is_no_network_it_waits_and_says_why() {
    let fixture = InstallFixture::bare(&[]);
    fixture.write(FILE, "{\"name\":");
    let mut daemon = fixture.container.start();
    daemon.wait_for("/readyz names file and cause", |daemon| {
        let (status, body) = daemon.get(8000, "/readyz").unwrap_or_default();
        let file = "10-kit.conflist: it is not JSON: line 1, column 8: EOF while parsing a value";
        let expected = format!("no network configuration in /host/etc/cni/net.d yet; not usable: {file}\n");
        status == 503 && body == expected
    });
    stays_quiet(&daemon);
    assert_eq!(fixture.read(FILE), "{\"name\":");
    fixture.write(FILE, NETWORK);
    heals(&mut daemon);
    assert_eq!(fixture.types(FILE), ["bridge", "istio-cni"]);
}

#[test]
fn a_named_file_that_cannot_be_edited_is_told_and_edited_when_it_is_mended() {
    let huge = format!("{{\"name\":\"kit\",\"plugins\":[{{\"type\":\"{}\"}}]}}", "x".repeat(10 << 20));
    let cases: [(&str, &'static [&'static str]); 5] = [
        ("{\"name\":", &["/host/etc/cni/net.d/10-kit.conflist", "not JSON"]),
        ("[]", &["/host/etc/cni/net.d/10-kit.conflist", "does not hold a JSON object"]),
        ("{}", &["/host/etc/cni/net.d/10-kit.conflist", "neither `type`"]),
        (
            "{\"plugins\":[{\"type\":\"istio-cni\"}]}",
            &["/host/etc/cni/net.d/10-kit.conflist", "no plugin besides"],
        ),
        (&huge, &["/host/etc/cni/net.d/10-kit.conflist", "larger than 1048576 bytes"]),
    ];
    each(cases, |(text, says)| {
        let fixture = InstallFixture::bare(NAMED);
        fixture.write(FILE, text);
        Fault { result: CONF, says }.shows_and_heals(&mut fixture.container.start(), || {
            assert!(fixture.read(FILE) == text, "nothing is lost");
            fixture.write(FILE, NETWORK);
        });
        assert_eq!(fixture.types(FILE), ["bridge", "istio-cni"], "{says:?}");
    });
}

/// Whether the runtime accepts it is unknown, so the next file is no safe choice.
#[test]
fn a_first_file_of_ten_megabytes_is_told_and_left_alone() {
    let huge = format!("{{\"name\":\"kit\",\"plugins\":[{{\"type\":\"{}\"}}]}}", "x".repeat(10 << 20));
    let fixture = InstallFixture::new(&[]);
    fixture.write("05-huge.conflist", &huge);
    let says = &["/host/etc/cni/net.d/05-huge.conflist", "larger than 1048576 bytes"];
    let mut daemon = fixture.container.start();
    Fault { result: CONF, says }.shows_and_heals(&mut daemon, || {
        assert!(fixture.read("05-huge.conflist") == huge, "nothing is lost");
        assert_eq!(fixture.read(FILE), NETWORK);
        fs::remove_file(fixture.path("05-huge.conflist")).unwrap();
    });
    assert!(daemon.resident_kib() < 64 * 1024, "{} KiB", daemon.resident_kib());
}

#[test]
fn a_link_within_the_directory_is_followed_and_what_it_leads_to_is_edited() {
    for target in ["real.kit", "./real.kit", "below/real.kit", "below/../real.kit"] {
        let fixture = InstallFixture::bare(&[("CLEANUP_ON_EXIT", "always")]);
        fs::create_dir(fixture.path("below")).unwrap();
        fixture.write(target, NETWORK);
        symlink(target, fixture.path(FILE)).unwrap();
        let before = fixture.files();
        let daemon = fixture.start_ready();
        assert_eq!(fs::read_link(fixture.path(FILE)).unwrap(), Path::new(target), "still a link");
        assert_eq!(fixture.types(target), ["bridge", "istio-cni"], "{target}");
        let (status, log) = daemon.terminate();
        assert!(status.success(), "{log}");
        assert_eq!(fixture.files(), before, "{target}");
        assert_eq!(fixture.read(target), NETWORK, "{target}");
    }
}

/// In the container it would resolve to another file than on the host.
#[test]
fn a_link_out_of_the_directory_is_refused_by_name_and_not_touched() {
    const LEAVES: &[&str] = &["/host/etc/cni/net.d/10-kit.conflist", "leaves the directory"];
    let cases = [("../outside", LEAVES), ("/etc/cni/outside", LEAVES)];
    each(cases, |(target, says)| {
        let fixture = InstallFixture::bare(&[]);
        let outside = fixture.node.dir().join("outside");
        fs::write(&outside, NETWORK).unwrap();
        symlink(target, fixture.path(FILE)).unwrap();
        Fault { result: CONF, says }.shows_and_heals(&mut fixture.container.start(), || {
            assert_eq!(fs::read_link(fixture.path(FILE)).unwrap(), Path::new(target));
            fixture.write(FILE, NETWORK);
        });
        assert_eq!(fs::read_to_string(outside).unwrap(), NETWORK);
        assert_eq!(fixture.types(FILE), ["bridge", "istio-cni"]);
    });
}

/// As runtimes do: they cannot read it either.
#[test]
fn a_link_that_leads_nowhere_is_skipped_and_survives_an_uninstallation() {
    for target in ["nowhere", "05-link.conflist", "/dev/null"] {
        let fixture = InstallFixture::new(&[("CLEANUP_ON_EXIT", "always")]);
        symlink(target, fixture.path("05-link.conflist")).unwrap();
        let before = fixture.files();
        let daemon = fixture.start_ready();
        assert_eq!(fixture.types(FILE), ["bridge", "istio-cni"], "{target}");
        let (status, log) = daemon.terminate();
        assert!(status.success(), "{log}");
        assert_eq!(fixture.files(), before, "{target}");
    }
}

/// As on nodes whose plugins are symlinks into a data directory that an upgrade replaces.
#[test]
fn a_link_in_the_place_of_a_file_of_ours_is_replaced() {
    for target in ["nowhere", "/etc/hosts", "istio-cni"] {
        let fixture = InstallFixture::new(&[]);
        let plugin = fixture.container.bin_dir().join("istio-cni");
        for path in [&plugin, &fixture.path(KUBECONFIG)] {
            symlink(target, path).unwrap();
        }
        let _daemon = fixture.start_ready();
        assert!(!plugin.is_symlink() && !fixture.path(KUBECONFIG).is_symlink(), "{target}");
        assert_eq!(fs::read_to_string(&plugin).unwrap(), PLUGIN);
    }
}

#[test]
fn a_network_that_cannot_be_chained_into_is_named_until_it_can() {
    let drop_in = "{\"name\":\"kit\",\"cniVersion\":\"1.0.0\"}";
    let fixture = InstallFixture::new(&[]);
    fs::create_dir(fixture.path("kit")).unwrap();
    fixture.write("kit/10-bridge.conf", "{\"type\":\"bridge\"}");
    for (name, text, says) in [
        (
            "05-kit.conflist",
            drop_in,
            "depends on its version: /host/etc/cni/net.d/05-kit.conflist with libcni 1.3",
        ),
        (
            "05-kit.conflist",
            NETWORK,
            "/host/etc/cni/net.d/05-kit.conflist takes plugins from a directory, too (/host/etc/cni/net.d/kit/10-bridge.conf)",
        ),
        ("05-lo.conf", "{\"type\":\"loopback\"}", "/host/etc/cni/net.d/05-lo.conf gives pods no network"),
    ] {
        fixture.write(name, text);
        let mut daemon = fixture.container.start();
        daemon.wait_for(says, |daemon| {
            let (status, body) = daemon.get(8000, "/readyz").unwrap_or_default();
            status == 503 && body.contains(says)
        });
        assert_eq!((fixture.read(name).as_str(), fixture.read(FILE).as_str()), (text, NETWORK), "{says}");
        fs::remove_file(fixture.path(name)).unwrap();
    }
    fs::remove_dir_all(fixture.path("kit")).unwrap();
    let _daemon = fixture.start_ready();
    assert_eq!(fixture.types(FILE), ["bridge", "istio-cni"]);
}

#[test]
fn a_directory_in_the_place_of_a_file_is_told_and_survives() {
    let bin = |fixture: &InstallFixture| fixture.container.bin_dir().join("istio-cni");
    let kubeconfig = |fixture: &InstallFixture| fixture.path(KUBECONFIG);
    let conflist = |fixture: &InstallFixture| fixture.path(FILE);
    type Place<'a> = &'a (dyn Fn(&InstallFixture) -> PathBuf + Sync);
    let cases: [(Place<'_>, Fault); 3] = [
        (&bin, Fault { result: COPY, says: &["/host/opt/cni/bin/istio-cni", "it is a directory"] }),
        (&kubeconfig, Fault { result: CREDENTIAL, says: &["/host/etc/cni/net.d/ZZZ-", "it is a directory"] }),
        (
            &conflist,
            Fault { result: CONF, says: &["/host/etc/cni/net.d/10-kit.conflist", "it is a directory"] },
        ),
    ];
    each(cases, |(place, fault)| {
        let fixture = InstallFixture::new(NAMED);
        let path = place(&fixture);
        drop(fs::remove_file(&path));
        fs::create_dir(&path).unwrap();
        fs::write(path.join("precious"), "").unwrap();
        fault.shows_and_heals(&mut fixture.container.start(), || {
            assert!(path.join("precious").exists());
            if fixture.path(FILE).is_file() {
                assert_eq!(fixture.read(FILE), NETWORK, "no entry without plugin and credential");
            }
            fs::remove_dir_all(&path).unwrap();
            if !fixture.has(FILE) {
                fixture.write(FILE, NETWORK);
            }
        });
        assert_eq!(fixture.types(FILE), ["bridge", "istio-cni"]);
        assert_eq!(fs::read_to_string(bin(&fixture)).unwrap(), PLUGIN);
    });
}

#[test]
fn a_directory_with_the_name_of_a_network_is_none() {
    let fixture = InstallFixture::new(&[]);
    fs::create_dir(fixture.path("05-directory.conflist")).unwrap();
    let _daemon = fixture.start_ready();
    assert_eq!(fixture.types(FILE), ["bridge", "istio-cni"]);
}
