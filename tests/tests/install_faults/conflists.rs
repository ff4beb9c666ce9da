//! Networks that cannot be edited, and things that are not what their names say.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::fault::{CONF, COPY, CREDENTIAL, Fault, each, heals, stays_quiet};
use crate::install_stage::{FILE, KUBECONFIG, NETWORK, PLUGIN, Stage};

const NAMED: &[(&str, &str)] = &[("CNI_CONF_NAME", FILE)];

#[test]
fn a_first_file_that_is_no_network_is_skipped_as_runtimes_do() {
    for broken in ["{", "[]", "\"text\"", "{\"name\":\"kit\"}", "{\"name\":\"kit\",\"plugins\":[]}", ""] {
        let stage = Stage::new(&[]);
        stage.write("05-broken.conflist", broken);
        let _daemon = stage.start_ready();
        assert_eq!(stage.read("05-broken.conflist"), broken);
        assert_eq!(stage.types(FILE), ["bridge", "istio-cni"], "{broken}");
    }
}

/// That is not a failure of ours: a network plugin will come.
#[test]
fn when_the_only_file_is_no_network_it_waits_and_says_why() {
    let stage = Stage::bare(&[]);
    stage.write(FILE, "{\"name\":");
    let mut daemon = stage.container.start();
    daemon.wait_for("/readyz names file and cause", |daemon| {
        let (status, body) = daemon.get(8000, "/readyz").unwrap_or_default();
        status == 503 && body.contains("10-kit.conflist: it is not JSON")
    });
    stays_quiet(&daemon);
    assert_eq!(stage.read(FILE), "{\"name\":");
    stage.write(FILE, NETWORK);
    heals(&mut daemon);
    assert_eq!(stage.types(FILE), ["bridge", "istio-cni"]);
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
        let stage = Stage::bare(NAMED);
        stage.write(FILE, text);
        Fault { result: CONF, says }.shows_and_heals(&mut stage.container.start(), || {
            assert!(stage.read(FILE) == text, "nothing is lost");
            stage.write(FILE, NETWORK);
        });
        assert_eq!(stage.types(FILE), ["bridge", "istio-cni"], "{says:?}");
    });
}

/// Whether the runtime takes it cannot be known, so the next file is no safe choice.
#[test]
fn a_first_file_of_ten_megabytes_is_told_and_left_alone() {
    let huge = format!("{{\"name\":\"kit\",\"plugins\":[{{\"type\":\"{}\"}}]}}", "x".repeat(10 << 20));
    let stage = Stage::new(&[]);
    stage.write("05-huge.conflist", &huge);
    let says = &["/host/etc/cni/net.d/05-huge.conflist", "larger than 1048576 bytes"];
    let mut daemon = stage.container.start();
    Fault { result: CONF, says }.shows_and_heals(&mut daemon, || {
        assert!(stage.read("05-huge.conflist") == huge, "nothing is lost");
        assert_eq!(stage.read(FILE), NETWORK);
        fs::remove_file(stage.path("05-huge.conflist")).unwrap();
    });
    assert!(daemon.resident_kib() < 64 * 1024, "{} KiB", daemon.resident_kib());
}

#[test]
fn a_link_within_the_directory_is_followed_and_what_it_leads_to_is_edited() {
    for target in ["real.kit", "./real.kit", "below/real.kit", "below/../real.kit"] {
        let stage = Stage::bare(&[("CLEANUP_ON_EXIT", "always")]);
        fs::create_dir(stage.path("below")).unwrap();
        stage.write(target, NETWORK);
        symlink(target, stage.path(FILE)).unwrap();
        let before = stage.files();
        let daemon = stage.start_ready();
        assert_eq!(fs::read_link(stage.path(FILE)).unwrap(), Path::new(target), "still a link");
        assert_eq!(stage.types(target), ["bridge", "istio-cni"], "{target}");
        let (status, log) = daemon.terminate();
        assert!(status.success(), "{log}");
        assert_eq!(stage.files(), before, "{target}");
        assert_eq!(stage.read(target), NETWORK, "{target}");
    }
}

/// In the container it would be another file than on the host.
#[test]
fn a_link_out_of_the_directory_is_refused_by_name_and_not_touched() {
    const LEAVES: &[&str] = &["/host/etc/cni/net.d/10-kit.conflist", "leaves the directory"];
    let cases = [
        ("../outside", LEAVES),
        ("/etc/cni/outside", LEAVES),
        ("nowhere", &["/host/etc/cni/net.d/10-kit.conflist", "link to a missing file"]),
        (FILE, &["/host/etc/cni/net.d/10-kit.conflist", "goes in circles"]),
    ];
    each(cases, |(target, says)| {
        let stage = Stage::bare(&[]);
        let outside = stage.node.dir().join("outside");
        fs::write(&outside, NETWORK).unwrap();
        symlink(target, stage.path(FILE)).unwrap();
        Fault { result: CONF, says }.shows_and_heals(&mut stage.container.start(), || {
            assert_eq!(fs::read_link(stage.path(FILE)).unwrap(), Path::new(target));
            stage.write(FILE, NETWORK);
        });
        assert_eq!(fs::read_to_string(outside).unwrap(), NETWORK);
        assert_eq!(stage.types(FILE), ["bridge", "istio-cni"]);
    });
}

#[test]
fn a_directory_in_the_place_of_a_file_is_told_and_survives() {
    let bin = |stage: &Stage| stage.container.bin_dir().join("istio-cni");
    let kubeconfig = |stage: &Stage| stage.path(KUBECONFIG);
    let conflist = |stage: &Stage| stage.path(FILE);
    type Place<'a> = &'a (dyn Fn(&Stage) -> PathBuf + Sync);
    let cases: [(Place<'_>, Fault); 3] = [
        (&bin, Fault { result: COPY, says: &["/host/opt/cni/bin/istio-cni", "it is a directory"] }),
        (&kubeconfig, Fault { result: CREDENTIAL, says: &["/host/etc/cni/net.d/ZZZ-", "it is a directory"] }),
        (
            &conflist,
            Fault { result: CONF, says: &["/host/etc/cni/net.d/10-kit.conflist", "it is a directory"] },
        ),
    ];
    each(cases, |(place, fault)| {
        let stage = Stage::new(NAMED);
        let path = place(&stage);
        drop(fs::remove_file(&path));
        fs::create_dir(&path).unwrap();
        fs::write(path.join("precious"), "").unwrap();
        fault.shows_and_heals(&mut stage.container.start(), || {
            assert!(path.join("precious").exists());
            if stage.path(FILE).is_file() {
                assert_eq!(stage.read(FILE), NETWORK, "no entry without plugin and credential");
            }
            fs::remove_dir_all(&path).unwrap();
            if !stage.has(FILE) {
                stage.write(FILE, NETWORK);
            }
        });
        assert_eq!(stage.types(FILE), ["bridge", "istio-cni"]);
        assert_eq!(fs::read_to_string(bin(&stage)).unwrap(), PLUGIN);
    });
}

#[test]
fn a_directory_with_the_name_of_a_network_is_none() {
    let stage = Stage::new(&[]);
    fs::create_dir(stage.path("05-directory.conflist")).unwrap();
    let _daemon = stage.start_ready();
    assert_eq!(stage.types(FILE), ["bridge", "istio-cni"]);
}
