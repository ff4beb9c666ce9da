//! Interfering processes, and an API server that is unavailable.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use kit::Daemon;

use super::fault::{each, heals, stays_quiet};
use crate::fixtures::install::{FILE, InstallFixture, NETWORK, files};

#[test]
fn a_taken_port_keeps_nothing_from_being_installed_and_is_taken_over_when_it_is_free() {
    each([8000, 15014], |port| {
        let fixture = InstallFixture::new(&[]);
        let other = fixture.node.netns().run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).unwrap());
        let mut daemon = fixture.container.start();
        daemon.wait_for("it is installed", |_| fixture.types(FILE) == ["bridge", "istio-cni"]);
        let field = format!("port={port}");
        daemon.wait_for("the port is reported", |daemon| {
            daemon.logged("cannot listen; trying again", &field) > 0
        });
        assert!(
            daemon.logged("cannot listen; trying again", "Address already in use") > 0,
            "{}",
            daemon.log()
        );
        // Each is logged by a different thread.
        for line in ["the plugin is installed", "cannot read the credential"] {
            daemon.wait_for(line, |daemon| daemon.log().contains(line));
        }
        stays_quiet(&daemon);
        drop(other);
        let answers =
            |daemon: &Daemon| daemon.is_ready() && daemon.metric("istio_cni_install_ready") == Some(1.0);
        daemon.wait_for("both ports answer", answers);
        assert_eq!(daemon.logged("cannot listen; trying again", &field), 1);
    });
}

#[test]
fn a_log_socket_that_another_process_serves_ends_the_start_and_stays_its_own() {
    let fixture = InstallFixture::new(&[]);
    let socket = fixture.node.run_dir().join("log.sock");
    let other = UnixListener::bind(&socket).unwrap();
    let before = fixture.files();
    let mut daemon = fixture.container.start();
    assert_eq!(daemon.wait().code(), Some(1));
    let log = daemon.log();
    let why = "/var/run/istio-cni/log.sock is in use by another process";
    assert!(
        kit::has_line(&log, &format!("install-cni: cannot serve the plugin's log lines: {why}")),
        "{log}"
    );
    assert_eq!(
        (fixture.files(), files(&fixture.container.bin_dir()).len()),
        (before, 0),
        "nothing was installed"
    );
    let _client = UnixStream::connect(&socket).unwrap();
    other.accept().unwrap();
}

#[test]
fn something_that_is_no_socket_is_not_removed_for_one() {
    let fixture = InstallFixture::new(&[]);
    let socket = fixture.node.run_dir().join("log.sock");
    fs::write(&socket, "precious").unwrap();
    let mut daemon = fixture.container.start();
    assert_eq!(daemon.wait().code(), Some(1));
    let why = "/var/run/istio-cni/log.sock exists and is not a socket";
    let complaint = format!("install-cni: cannot serve the plugin's log lines: {why}");
    assert!(kit::has_line(&daemon.log(), &complaint), "{}", daemon.log());
    assert_eq!(fs::read_to_string(&socket).unwrap(), "precious");
}

/// The directory of lock and sockets is not mounted, and may be impossible to create.
#[test]
fn without_the_directory_of_the_sockets_the_plugin_is_installed_as_usual() {
    for (directory, lacks_lock) in [("/var/run/istio-cni/deep/below", 0), ("/a-file/below", 1)] {
        let fixture = InstallFixture::new(&[("CNI_AGENT_RUN_DIR", directory)]);
        fs::write(fixture.container.root().join("a-file"), "").unwrap();
        let daemon = fixture.start_ready();
        assert_eq!(fixture.types(FILE), ["bridge", "istio-cni"], "{}", daemon.log());
        assert_eq!(
            daemon.logged("cannot lock the node: a second agent would not be noticed", ""),
            lacks_lock,
            "{}",
            daemon.log()
        );
    }
}

#[test]
fn a_stale_log_socket_is_replaced() {
    let fixture = InstallFixture::new(&[]);
    let socket = fixture.node.run_dir().join("log.sock");
    drop(UnixListener::bind(&socket).unwrap());
    assert!(refuses(&socket));
    let daemon = fixture.start_ready();
    assert!(!refuses(&socket));
    let (status, _) = daemon.terminate();
    assert!(status.success() && !socket.exists(), "it goes with its daemon");
}

fn refuses(socket: &Path) -> bool {
    UnixStream::connect(socket).is_err()
}

#[test]
fn without_an_api_server_it_installs_all_the_same() {
    // No answer; no listener; and no host with that name.
    each(["192.0.2.1", "127.0.0.1", "api.invalid"], |host| {
        let fixture =
            InstallFixture::new(&[("KUBERNETES_SERVICE_HOST", host), ("KUBERNETES_SERVICE_PORT", "9")]);
        let mut daemon = fixture.container.start();
        heals(&mut daemon);
        assert_eq!(fixture.types(FILE), ["bridge", "istio-cni"], "{host}");
        let (status, log) = daemon.terminate();
        assert!(status.success(), "{log}");
        assert!(fixture.read(FILE) != NETWORK, "what it cannot ask is no reason to remove anything");
    });
}
