//! The socket, and its permitted users.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::process::Uid;

use super::*;

fn hub() -> Hub {
    Hub::new(patient_deadlines(), Box::new(|_| ()), Box::new(|_| Ok(std::collections::BTreeSet::new())))
}

#[test]
fn the_socket_is_roots_and_goes_with_the_server() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("run/ztunnel/ztunnel.sock");
    let server = ZdsServer::bind(&path).unwrap();
    let file = fs::metadata(&path).unwrap();
    assert!(file.file_type().is_socket());
    assert_eq!(file.permissions().mode() & 0o7777, 0o600);
    drop(server);
    assert!(!path.exists());
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ztunnel.sock");
    drop(UnixListener::bind(&path).unwrap()); // even of another type
    let server = ZdsServer::bind(&path).unwrap();
    let error = ZdsServer::bind(&path).unwrap_err();
    assert_eq!(error.to_string(), format!("{} is in use by another process", path.display()));
    // Each attempt to bind connects several times, as an unknown peer, of which only a few are accepted: this test connects as a
    // ztunnel pod.
    let hub = hub();
    hub.set_ztunnels(vec![ZtunnelPod { netns: Some(Netns::current().unwrap().id()), ..pod(1, 1) }]);
    server.serve(hub.clone()).unwrap();
    assert!(ZdsServer::bind(&path).is_err());
    let ztunnel = Ztunnel::dial(&path);
    ztunnel.hello();
    eventually(|| !hub.list_connections().is_empty());
    let other = directory.path().join("other");
    let _other = UnixListener::bind(&other).unwrap();
    assert!(ZdsServer::bind(&other).is_err(), "of another type, but somebody's");
}

#[test]
fn a_panic_costs_one_connection_and_no_later_one() {
    let is_first = AtomicBool::new(true);
    let locate: PeerLocator = Box::new(move |_| {
        assert!(!is_first.swap(false, Ordering::Relaxed), "the first one, as it should");
        Ok(std::collections::BTreeSet::new())
    });
    let hub = Hub::new(patient_deadlines(), Box::new(|_| ()), locate);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ztunnel.sock");
    ZdsServer::bind(&path).unwrap().serve(hub.clone()).unwrap();
    let lost = Ztunnel::dial(&path);
    lost.is_closed();
    let ztunnel = Ztunnel::dial(&path);
    ztunnel.hello();
    eventually(|| !hub.list_connections().is_empty());
}

/// Such as by a file descriptor that root left, or a mode that was changed.
#[test]
fn another_user_is_refused_even_if_the_file_lets_it_in() {
    let agent = Agent::open();
    for (path, mode) in [(agent.directory.path().to_owned(), 0o755), (agent.socket(), 0o666)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let path = agent.socket();
    let dialled = thread::spawn(move || {
        let nobody = Uid::from_raw(65534);
        // Of this thread alone: in the kernel, credentials belong to threads.
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody)?;
        Ztunnel::try_dial(&path)
    });
    match dialled.join().unwrap() {
        Ok(ztunnel) => {
            let _ = ztunnel.try_send(ztunnel::HELLO, &[]);
            ztunnel.is_closed();
            assert!(agent.events.try_recv().is_err());
        }
        Err(reason) if std::env::var_os("CI").is_some_and(|ci| ci == "true") => panic!("{reason}"),
        Err(reason) => eprintln!("skipped: cannot be another user: {reason}"),
    }
}
