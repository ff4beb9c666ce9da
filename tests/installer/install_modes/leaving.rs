//! State that an agent leaves at its end, and its handling by the next one in another mode.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use crate::fixtures::install::{FILE, Files, InstallFixture, KUBECONFIG, NETWORK, SINGLE, files};

const CHAIN: [&str; 2] = ["bridge", "istio-cni"];
type Env = &'static [(&'static str, &'static str)];

/// Variables of every mode.
const MODES: [Env; 5] = [
    &[],
    &[("CNI_CONF_NAME", FILE)],
    &[("ISTIO_OWNED_CNI_CONFIG", "true")],
    &[("CHAINED_CNI_PLUGIN", "false")],
    &[("CHAINED_CNI_PLUGIN", "false"), ("CNI_CONF_NAME", "50-alone.conf")],
];

/// Variables that are the same in the next mode.
const NO_MODE: Env =
    &[("CNI_CONF_NAME", ""), ("ISTIO_OWNED_CNI_CONFIG", "false"), ("CHAINED_CNI_PLUGIN", "true")];

#[test]
fn a_cleanup_leaves_the_directory_as_it_was_to_the_byte_in_every_mode() {
    for mode in MODES {
        for (name, text, bits) in [(FILE, NETWORK, 0o600), ("10-kit.conf", SINGLE, 0o640)] {
            let fixture = InstallFixture::bare(mode).again(&[("CLEANUP_ON_EXIT", "always")]);
            fixture.write(name, text);
            fs::set_permissions(fixture.path(name), fs::Permissions::from_mode(bits)).unwrap();
            fixture.write("README", "somebody's");
            fs::write(fixture.container.bin_dir().join("bridge"), "somebody's").unwrap();
            let before = (fixture.files(), files(&fixture.container.bin_dir()));
            let daemon = fixture.start_ready();
            assert_ne!(fixture.files(), before.0);
            let (status, log) = daemon.terminate();
            assert!(status.success(), "{log}");
            assert_eq!((fixture.files(), files(&fixture.container.bin_dir())), before, "{mode:?} {name}");
        }
    }
}

/// Also after a crash, and by an agent that did not install this itself.
#[test]
fn a_cleanup_after_a_kill_and_a_restart_leaves_the_directory_as_it_was() {
    for mode in MODES {
        let fixture = InstallFixture::new(mode).again(&[("CLEANUP_ON_EXIT", "always")]);
        let before = fixture.files();
        fixture.start_ready().kill();
        let (status, log) = fixture.start_ready().terminate();
        assert!(status.success(), "{log}");
        assert_eq!(fixture.files(), before, "{mode:?}");
    }
}

/// CRI-O calls the plugins of a pod's network as of the pod's ADD: without the binary, no such pod could end, and at CRI-O's next
/// start the kubelet would replace it.
#[test]
fn a_cleanup_under_crio_leaves_the_plugin_for_pods_that_started_with_it() {
    let fixture = InstallFixture::new(&[("CLEANUP_ON_EXIT", "always")]);
    let run = fixture.container.root().join("run");
    fs::create_dir_all(&run).unwrap();
    fs::write(run.join(".containerenv"), "").unwrap();
    let before = fixture.files();
    let (status, log) = fixture.start_ready().terminate();
    assert!(status.success(), "{log}");
    assert_eq!(fixture.files(), before);
    let left: Vec<_> = files(&fixture.container.bin_dir()).into_keys().collect();
    assert_eq!(left, ["istio-cni"], "{log}");
}

/// Multus, which calls other networks, deletes a pod's networks as of its ADD: without the binary, it could not.
#[test]
fn a_cleanup_under_multus_leaves_the_plugin_for_pods_that_started_with_it() {
    for plugin in ["multus", "multus-shim"] {
        for named in [FILE, ""] {
            let fixture = InstallFixture::new(&[("CLEANUP_ON_EXIT", "always"), ("CNI_CONF_NAME", named)]);
            let multus =
                format!(r#"{{"cniVersion": "0.3.1", "name": "multus-cni-network", "type": "{plugin}"}}"#);
            fixture.write("00-multus.conf", &multus);
            let before = fixture.files();
            let (status, log) = fixture.start_ready().terminate();
            assert!(status.success(), "{log}");
            assert_eq!(fixture.files(), before, "{named}");
            let left: Vec<_> = files(&fixture.container.bin_dir()).into_keys().collect();
            assert_eq!(left, ["istio-cni"], "{named}: {log}");
        }
    }
}

/// Foreign changes made meanwhile are kept.
#[test]
fn a_cleanup_keeps_what_others_changed() {
    let fixture = InstallFixture::new(&[("CLEANUP_ON_EXIT", "always")]);
    let mut daemon = fixture.start_ready();
    let changed = fixture.read(FILE).replace("1500", "1400");
    fixture.write(FILE, &changed);
    daemon.wait_until_ready();
    let (status, log) = daemon.terminate();
    assert!(status.success(), "{log}");
    assert_eq!(fixture.types(FILE), ["bridge"]);
    assert_eq!(fixture.document(FILE)["plugins"][0]["mtu"], 1400);
    assert_eq!(fixture.files().len(), 1, "{:?}", fixture.files().keys());
}

/// The network plugin was replaced by one with another file.
#[test]
fn a_cleanup_leaves_nothing_of_a_network_that_is_gone() {
    let fixture = InstallFixture::new(&[("CLEANUP_ON_EXIT", "always")]);
    let mut daemon = fixture.start_ready();
    fixture.write("05-new.conflist", NETWORK);
    fs::remove_file(fixture.path(FILE)).unwrap();
    daemon.wait_for("the new one has our entry", |_| fixture.types("05-new.conflist") == CHAIN);
    let (status, log) = daemon.terminate();
    assert!(status.success(), "{log}");
    let names: Vec<_> = fixture.files().into_keys().collect();
    assert_eq!(names, ["05-new.conflist"]);
    assert_eq!(fixture.read("05-new.conflist"), NETWORK);
}

/// Charts whose DaemonSet does not show the mode turn ambient mode off without an uninstallation.
#[test]
fn an_agent_without_ambient_mode_warns_that_one_with_it_ran() {
    const WARNING: &str = "an agent with ambient mode ran on this node: pods may still be captured";
    let fixture = InstallFixture::new(&[]);
    let daemon = fixture.start_ready();
    assert_eq!(daemon.logged(WARNING, ""), 0, "{}", daemon.log());
    daemon.kill();
    fs::write(fixture.node.run_dir().join("settings-before.json"), "{}").unwrap();
    let daemon = fixture.start_ready();
    assert_eq!(daemon.logged(WARNING, ""), 1, "{}", daemon.log());
}

#[test]
fn never_means_that_everything_stays() {
    for mode in MODES {
        let fixture = InstallFixture::new(mode).again(&[("CLEANUP_ON_EXIT", "never")]);
        let daemon = fixture.start_ready();
        let before = (fixture.files(), files(&fixture.container.bin_dir()));
        let (status, log) = daemon.terminate();
        assert!(status.success(), "{log}");
        assert_eq!((fixture.files(), files(&fixture.container.bin_dir())), before, "{mode:?}");
        assert!(before.0.contains_key(KUBECONFIG) && before.1.contains_key("istio-cni"));
    }
}

/// Files that name our plugin.
fn ours(files: &Files) -> BTreeSet<String> {
    let is_network = |name: &&String| name.ends_with(".conf") || name.ends_with(".conflist");
    let names = files.iter().filter(|(_, (_, text))| String::from_utf8_lossy(text).contains("\"istio-cni\""));
    names.map(|(name, _)| name).filter(is_network).cloned().collect()
}

/// Only one file may have our entry afterwards, and it must be the mode's.
#[test]
fn another_mode_after_a_restart_leaves_no_entry_of_the_one_before() {
    let holders = [FILE, FILE, "02-istio-cni.conflist", "YYY-istio-cni.conf", "50-alone.conf"];
    for (first, _) in MODES.iter().zip(holders) {
        for (second, holder) in MODES.iter().zip(holders) {
            let fixture = InstallFixture::new(first);
            let before = fixture.files();
            fixture.start_ready().kill();
            let fixture = fixture.again(NO_MODE).again(second).again(&[("CLEANUP_ON_EXIT", "always")]);
            let daemon = fixture.start_ready();
            assert_eq!(
                ours(&fixture.files()),
                BTreeSet::from([holder.to_owned()]),
                "{first:?}, then {second:?}"
            );
            let (status, log) = daemon.terminate();
            assert!(status.success(), "{log}");
            assert_eq!(fixture.files(), before, "{first:?}, then {second:?}");
        }
    }
}
