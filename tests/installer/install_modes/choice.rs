//! The file that gets our entry: the one that a runtime uses, or the named one.

use std::os::unix::fs::symlink;
use std::time::Duration;
use std::{fmt, fs};

use kit::Daemon;

use crate::fixtures::install::{FILE, InstallFixture, NETWORK, SINGLE};

const CHAIN: [&str; 2] = ["bridge", "istio-cni"];

/// Time in which a wrong repair would be seen.
const ANOTHER_PASS: Duration = Duration::from_millis(300);

/// Asserts that the agent is not ready, and reports what it waits for.
fn waits(daemon: &mut Daemon, words: &str) {
    daemon.wait_for(&format!("it waits: {words}"), |daemon| {
        let (status, body) = daemon.get(8000, "/readyz").unwrap_or_default();
        status == 503 && body.contains(words)
    });
}

#[test]
fn a_single_configuration_becomes_a_list_and_is_itself_again_at_the_end() {
    for (single, named) in [
        ("10-kit.conf", None),
        ("10-kit.conf", Some("10-kit.conf")),
        ("10-kit.conf", Some(FILE)),
        ("10-kit.json", None),
        ("10-kit.json", Some("10-kit.json")),
        ("10-kit.json", Some(FILE)),
    ] {
        let name: Vec<_> = named.iter().map(|name| ("CNI_CONF_NAME", *name)).collect();
        let fixture = InstallFixture::bare(&name).again(&[("CLEANUP_ON_EXIT", "always")]);
        fixture.write(single, SINGLE);
        let before = fixture.files();
        let daemon = fixture.start_ready();
        assert!(!fixture.has(single), "a runtime would take it, too");
        assert_eq!(fixture.types(FILE), CHAIN);
        let list: serde_json::Value = serde_json::from_str(&fixture.read(FILE)).unwrap();
        assert_eq!((&list["name"], &list["cniVersion"]), (&"k8s-pod-network".into(), &"0.3.1".into()));
        assert_eq!(list["plugins"][0]["name"], "kit");
        let (status, log) = daemon.terminate();
        assert!(status.success(), "{log}");
        assert_eq!(fixture.files(), before, "{single} {named:?}");
    }
}

#[test]
fn a_named_file_counts_under_its_other_ending_too() {
    for (named, there) in [("10-kit.conf", FILE), (FILE, FILE)] {
        let fixture = InstallFixture::bare(&[("CNI_CONF_NAME", named)]);
        fixture.write("05-first.conflist", NETWORK);
        fixture.write(there, NETWORK);
        let _daemon = fixture.start_ready();
        assert_eq!(fixture.types(there), CHAIN, "{named}");
        assert_eq!(fixture.read("05-first.conflist"), NETWORK, "only what is named is touched");
    }
}

#[test]
fn a_foreign_list_in_the_place_of_a_conversion_is_there_again_at_the_end() {
    let fixture = InstallFixture::bare(&[("CLEANUP_ON_EXIT", "always")]);
    fixture.write("10-kit.conf", SINGLE);
    fixture.write(FILE, NETWORK);
    let before = fixture.files();
    let mut daemon = fixture.start_ready();
    assert_eq!((fixture.types(FILE), fixture.has("10-kit.conf")), (CHAIN.map(str::to_owned).to_vec(), false));
    fixture.write("10-kit.conf", SINGLE);
    daemon.wait_for("it is converted again", |_| !fixture.has("10-kit.conf"));
    daemon.wait_until_ready();
    let (status, log) = daemon.terminate();
    assert!(status.success(), "{log}");
    assert_eq!(fixture.files(), before);
}

/// containerd prefers `.conf` to `.conflist`, so pods would start without rules.
#[test]
fn a_named_list_follows_the_single_configuration_that_is_written_again() {
    let fixture = InstallFixture::bare(&[("CNI_CONF_NAME", FILE)]);
    fixture.write("10-kit.conf", SINGLE);
    let mut daemon = fixture.start_ready();
    fixture.write("10-kit.conf", &SINGLE.replace("1500", "1400"));
    daemon.wait_for("it is converted again", |_| !fixture.has("10-kit.conf"));
    daemon.wait_until_ready();
    assert_eq!(fixture.types(FILE), CHAIN);
    assert_eq!(fixture.document(FILE)["plugins"][0]["mtu"], 1400);
}

#[test]
fn a_named_network_that_is_not_the_default_is_warned_of_once() {
    let fixture = InstallFixture::bare(&[("CNI_CONF_NAME", FILE)]);
    fixture.write("05-first.conflist", NETWORK);
    fixture.write(FILE, NETWORK);
    let mut daemon = fixture.start_ready();
    let message = "CNI_CONF_NAME names another network than the runtime's default";
    daemon.wait_for("it is logged", |daemon| daemon.logged(message, "05-first.conflist") == 1);
    fixture.write("another", "");
    let log = fmt::from_fn(|f| f.write_str(&daemon.log()));
    kit::holds_for(ANOTHER_PASS, log, || daemon.logged(message, "") == 1);
    daemon.wait_until_ready();
}

#[test]
fn a_named_file_is_waited_for_whatever_else_is_there() {
    for (appears, text) in [("20-later.conflist", NETWORK), ("20-later.conf", SINGLE)] {
        let fixture = InstallFixture::new(&[("CNI_CONF_NAME", "20-later.conflist")]);
        let mut daemon = fixture.container.start();
        let says =
            "20-later.conflist is not there yet; the runtime takes /host/etc/cni/net.d/10-kit.conflist";
        waits(&mut daemon, says);
        fixture.write("20-other.conflist", NETWORK);
        waits(&mut daemon, "/host/etc/cni/net.d/20-later.conflist is not there yet");
        fixture.write(appears, text);
        daemon.wait_until_ready();
        assert_eq!(fixture.types("20-later.conflist"), CHAIN, "{appears}");
        assert_eq!(
            (fixture.read(FILE), fixture.read("20-other.conflist")),
            (NETWORK.to_owned(), NETWORK.to_owned())
        );
    }
}

#[test]
fn without_a_name_any_network_is_waited_for() {
    let fixture = InstallFixture::bare(&[]);
    fixture.write("06-kit.conflist.bak", NETWORK);
    let mut daemon = fixture.container.start();
    waits(&mut daemon, "no network configuration in /host/etc/cni/net.d yet");
    fixture.write("90-kit.conf", SINGLE);
    daemon.wait_until_ready();
    assert_eq!(fixture.types("90-kit.conflist"), CHAIN);
    fixture.write("05-kit.json", SINGLE);
    daemon.wait_for("the first one has our entry", |_| fixture.has("05-kit.conflist"));
    daemon.wait_until_ready();
    assert_eq!(
        (fixture.types("05-kit.conflist"), fixture.has("05-kit.json")),
        (CHAIN.map(str::to_owned).to_vec(), false)
    );
    assert_eq!(fixture.read("06-kit.conflist.bak"), NETWORK);
}

#[test]
fn the_first_network_by_its_bytes_is_taken() {
    // Upper case sorts before lower case, and `.conf` before `.conflist`.
    for (taken, other) in [("10-a.conflist", "9-a.conflist"), ("B.conflist", "a.conflist")] {
        let fixture = InstallFixture::bare(&[]);
        for name in [taken, other] {
            fixture.write(name, NETWORK);
        }
        let _daemon = fixture.start_ready();
        assert_eq!(
            (fixture.types(taken), fixture.read(other)),
            (CHAIN.map(str::to_owned).to_vec(), NETWORK.to_owned())
        );
    }
    let fixture = InstallFixture::bare(&[]);
    fixture.write("10-a.conf", SINGLE);
    fixture.write("10-a.conflist", NETWORK);
    let _daemon = fixture.start_ready();
    assert!(!fixture.has("10-a.conf"));
    assert_eq!(fixture.types("10-a.conflist"), CHAIN);
}

#[test]
fn an_earlier_network_that_appears_gets_the_entry_and_the_other_is_as_it_was() {
    let fixture = InstallFixture::new(&[]);
    let mut daemon = fixture.start_ready();
    fixture.write("05-first.conflist", NETWORK);
    daemon.wait_for("the new one has our entry", |_| fixture.types("05-first.conflist") == CHAIN);
    daemon.wait_for("the old one has not", |_| fixture.read(FILE) == NETWORK);
    daemon.wait_until_ready();
    fs::remove_file(fixture.path("05-first.conflist")).unwrap();
    daemon.wait_for("the old one has it again", |_| fixture.types(FILE) == CHAIN);
    daemon.wait_until_ready();
}

#[test]
fn an_entry_that_istio_left_is_replaced_and_its_temporaries_are_removed() {
    let fixture = InstallFixture::bare(&[]);
    let old = serde_json::json!({"cniVersion": "1.0.0", "name": "kit", "plugins": [
        {"type": "bridge", "mtu": 1500},
        {"type": "istio-cni", "name": "istio-cni", "log_level": "warn", "kubernetes": {"cni_bin_dir": "/old"}},
    ]});
    fixture.write(FILE, &old.to_string());
    fixture.write("10-kit.conflist.tmp.123456", "half of a fi");
    fixture.write("ZZZ-istio-cni-kubeconfig.tmp.654321", "half of a cred");
    fixture.write("10-kit.conflist.tmp.notes.txt", "somebody's");
    let bin = fixture.container.bin_dir();
    fs::write(bin.join("istio-cni.tmp.999"), "half of a pro").unwrap();
    fs::write(bin.join("istio-cni"), "Istio's").unwrap();
    let _daemon = fixture.start_ready();
    assert_eq!(fixture.types(FILE), CHAIN);
    assert_eq!(fixture.entry(FILE)["kubernetes"]["cni_bin_dir"], "/opt/cni/bin");
    let names: Vec<_> = fixture.files().into_keys().filter(|name| name.contains(".tmp.")).collect();
    assert_eq!(names, ["10-kit.conflist.tmp.notes.txt"]);
    assert!(!bin.join("istio-cni.tmp.999").exists());
}

/// Runtimes treat a link as a file of its own; it is the same network nevertheless.
#[test]
fn a_second_name_of_the_file_with_the_entry_is_no_stale_one() {
    for (env, other) in [
        (&[][..], SINGLE),
        (&[("CHAINED_CNI_PLUGIN", "false"), ("CNI_CONF_NAME", "20-kit.conf")], r#"{"type": "istio-cni"}"#),
    ] {
        let fixture = InstallFixture::bare(env);
        fixture.write(FILE, NETWORK);
        symlink(FILE, fixture.path("15-again.conflist")).unwrap();
        symlink("20-kit.conf", fixture.path("25-again.conf")).unwrap();
        fixture.write("20-kit.conf", other);
        let daemon = fixture.start_ready();
        let changed = fixture.files();
        let log = fmt::from_fn(|f| f.write_str(&daemon.log()));
        kit::holds_for(ANOTHER_PASS, log, || fixture.files() == changed);
        assert!(daemon.is_ready());
    }
}
