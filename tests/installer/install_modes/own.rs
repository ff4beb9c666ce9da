//! A complete copy of the runtime's network with our entry, in a file of ours that sorts first.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::fixtures::install::{FILE, InstallFixture, NETWORK, SINGLE, installs};

const OWN: (&str, &str) = ("ISTIO_OWNED_CNI_CONFIG", "true");
const COPY: &str = "02-istio-cni.conflist";
const CHAIN: [&str; 2] = ["bridge", "istio-cni"];

#[test]
fn the_copy_has_everything_and_our_entry_and_the_original_is_left_alone() {
    for (name, text) in [(FILE, NETWORK), ("10-kit.conf", SINGLE), ("10-kit.json", SINGLE)] {
        let fixture = InstallFixture::bare(&[OWN]);
        fixture.write(name, text);
        let _daemon = fixture.start_ready();
        assert_eq!(fixture.read(name), text);
        assert_eq!(fixture.types(COPY), CHAIN);
        let copy: Value = serde_json::from_str(&fixture.read(COPY)).unwrap();
        assert_eq!(copy["plugins"][0]["mtu"], 1500);
        assert_eq!(fixture.files().len(), 3, "file, copy, kubeconfig");
    }
}

#[test]
fn the_copy_follows_the_original_within_a_second() {
    let fixture = InstallFixture::new(&[OWN]);
    let mut daemon = fixture.start_ready();
    let mut times = [1400, 1300, 1200].map(|mtu| {
        fixture.write(FILE, &NETWORK.replace("1500", &mtu.to_string()));
        let changed = Instant::now();
        daemon.wait_for("the copy follows", |_| fixture.document(COPY)["plugins"][0]["mtu"] == mtu);
        changed.elapsed()
    });
    times.sort_unstable();
    assert!(times[1] < Duration::from_secs(1), "{times:?}"); // the machine may have stalled in one
}

/// The network plugin restarts: its file is missing for a moment, and the node keeps its network.
#[test]
fn the_copy_outlives_the_original() {
    let fixture = InstallFixture::new(&[OWN]);
    let mut daemon = fixture.start_ready();
    let copy = fixture.read(COPY);
    fs::remove_file(fixture.path(FILE)).unwrap();
    daemon.wait_for("it says what it waits for", |daemon| {
        daemon.get(8000, "/readyz").is_some_and(|answer| {
            answer == (503, "no network configuration in /host/etc/cni/net.d yet\n".to_owned())
        })
    });
    assert_eq!(fixture.read(COPY), copy);
    fixture.write(FILE, &NETWORK.replace("1500", "1400"));
    daemon.wait_until_ready();
    assert_eq!(fixture.document(COPY)["plugins"][0]["mtu"], 1400);
}

#[test]
fn the_copy_can_have_another_name_by_both_variables() {
    for variable in ["ISTIO_OWNED_CNI_CONFIG_FILENAME", "ISTIO_OWNED_CNI_CONF_FILENAME"] {
        let fixture = InstallFixture::new(&[OWN, (variable, "03-mine.conflist")]);
        let _daemon = fixture.start_ready();
        assert_eq!(fixture.types("03-mine.conflist"), CHAIN, "{variable}");
        assert!(!fixture.has(COPY));
    }
}

#[test]
fn a_name_that_the_runtime_would_not_take_is_an_error() {
    for name in ["20-mine.conflist", FILE] {
        let fixture =
            InstallFixture::new(&[OWN, ("ISTIO_OWNED_CNI_CONFIG_FILENAME", name), ("CNI_CONF_NAME", FILE)]);
        let mut daemon = fixture.container.start();
        let choose = "so that the runtime would not take it: choose another name";
        let answer = Some((503, format!("{name} sorts after 10-kit.conflist, {choose}\n")));
        daemon.wait_for("it is told", |daemon| daemon.get(8000, "/readyz") == answer);
        let failures = installs("CREATE_CNI_CONFIG_FAILURE");
        daemon.wait_for("it is counted", |daemon| daemon.metric(&failures) >= Some(1.0));
        assert_eq!(fixture.read(FILE), NETWORK);
        assert!(name == FILE || !fixture.has(name));
    }
}

/// The copy takes effect only by the order of the names.
#[test]
fn a_single_configuration_that_sorts_before_the_copy_is_an_error() {
    for name in ["01-kit.json", "01-kit.conf"] {
        let fixture = InstallFixture::bare(&[OWN]);
        fixture.write(name, SINGLE);
        let says = format!("{COPY} sorts after {name}");
        fixture
            .container
            .start()
            .wait_for(&says, |daemon| daemon.get(8000, "/readyz").unwrap_or_default().1.contains(&says));
        assert!(!fixture.has(COPY));
    }
}

/// The file is ours alone, but the target of a link with its name is not.
#[test]
fn a_link_in_the_place_of_the_copy_is_replaced() {
    for target in ["nowhere", "/etc/hosts", "elsewhere"] {
        let fixture = InstallFixture::new(&[OWN]);
        fixture.write("elsewhere", NETWORK);
        symlink(target, fixture.path(COPY)).unwrap();
        let _daemon = fixture.start_ready();
        assert!(!fixture.path(COPY).is_symlink());
        assert_eq!(fixture.types(COPY), CHAIN);
        assert_eq!(fixture.read("elsewhere"), NETWORK);
    }
}

#[test]
fn the_original_can_be_named() {
    let fixture = InstallFixture::new(&[OWN, ("CNI_CONF_NAME", "20-named.conflist")]);
    fixture.write("20-named.conflist", &NETWORK.replace("1500", "1400"));
    let _daemon = fixture.start_ready();
    assert_eq!(fixture.document(COPY)["plugins"][0]["mtu"], 1400);
    assert_eq!(fixture.read(FILE), NETWORK);
}
