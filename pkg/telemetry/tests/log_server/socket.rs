//! The socket's file.

use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::net::{UnixDatagram, UnixListener};

use super::*;

fn entries(directory: &Path) -> Vec<String> {
    let names =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn root_alone_may_write_also_where_others_reach_the_directory() {
    let root = tempfile::tempdir().unwrap();
    let (above, directory) = (root.path().join("run"), root.path().join("run/istio-cni"));
    let path = directory.join("log.sock");
    let server = RootServer::bind(&path).unwrap();
    assert!(fs::metadata(&path).unwrap().file_type().is_socket());
    assert_eq!((mode(&path), mode(&directory), mode(&above)), (0o600, 0o750, 0o750));
    assert_eq!(entries(&directory), ["log.sock"]);
    drop(server);
    assert_eq!(entries(&directory), [""; 0]);
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o711)).unwrap();
    let _server = RootServer::bind(&path).unwrap();
    assert_eq!(mode(&directory), 0o711, "left as it is");
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log.sock");
    drop(UnixListener::bind(&path).unwrap());
    let stale = fs::metadata(&path).unwrap().ino();
    let server = RootServer::bind(&path).unwrap();
    let ours = fs::metadata(&path).unwrap().ino();
    assert_ne!(ours, stale);
    let error = RootServer::bind(&path).unwrap_err();
    assert!(matches!(&error, SocketError::InUse { path: named } if *named == path), "{error}");
    assert_eq!(error.to_string(), format!("{} is in use by another process", path.display()));
    assert_eq!(
        (fs::metadata(&path).unwrap().ino(), entries(directory.path())),
        (ours, vec!["log.sock".to_owned()])
    );
    drop(server);
}

/// A listener that is too busy to accept, and one of another type, are foreign, too.
#[test]
fn a_live_socket_that_does_not_answer_is_in_use() {
    let directory = tempfile::tempdir().unwrap();
    let datagram = directory.path().join("datagram");
    let _datagram = UnixDatagram::bind(&datagram).unwrap();
    let busy = directory.path().join("busy");
    let _server = RootServer::bind(&busy).unwrap(); // not run: accepts no connection
    let filler = busy.clone();
    let (full, filled) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let mut streams = Vec::new();
        loop {
            let stream = UnixStream::connect(&filler); // the last one blocks forever
            streams.push(stream);
            let _ = full.send(());
        }
    });
    while filled.recv_timeout(Duration::from_millis(300)).is_ok() {}
    for path in [busy, datagram] {
        let took = (0..3).map(|_| {
            let start = Instant::now();
            let bound = RootServer::bind(&path);
            assert!(matches!(bound, Err(SocketError::InUse { .. })), "{}", path.display());
            start.elapsed()
        });
        assert!(took.min() < Some(Duration::from_secs(1)));
    }
}

#[test]
fn what_is_no_socket_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::write(at("file"), "precious").unwrap();
    fs::create_dir(at("directory")).unwrap();
    drop(UnixListener::bind(at("stale")).unwrap());
    symlink(at("stale"), at("link")).unwrap();
    let before = entries(directory.path());
    for name in ["file", "directory", "link"] {
        let error = RootServer::bind(&at(name)).unwrap_err();
        assert!(matches!(error, SocketError::NotASocket { .. }), "{name}: {error}");
        assert_eq!(error.to_string(), format!("{} exists and is not a socket", at(name).display()));
    }
    assert_eq!(
        (entries(directory.path()), fs::read_to_string(at("file")).unwrap()),
        (before, "precious".to_owned())
    );
}

#[test]
fn what_the_system_refuses_is_told_with_path_and_cause() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("file"), "").unwrap();
    let long = directory.path().join("x".repeat(200));
    let below_a_file = directory.path().join("file/log.sock");
    for (path, part) in [
        (long, "cannot use this path for"),
        (below_a_file, "cannot make the directory for"),
        ("/".into(), "cannot use"),
    ] {
        let error = RootServer::bind(&path).unwrap_err().to_string();
        assert!(error.starts_with(part) && error.contains(path.to_str().unwrap()), "{error}");
        assert!(error.contains("(os error "), "{error}");
    }
}

#[test]
fn the_longest_path_that_clients_can_use_is_served() {
    let directory = tempfile::tempdir().unwrap();
    let room = 107 - directory.path().as_os_str().len() - "//s".len();
    let path = directory.path().join("x".repeat(room)).join("s");
    assert_eq!(path.as_os_str().len(), 107);
    let _server = RootServer::bind(&path).unwrap();
    UnixStream::connect(&path).unwrap();
}

#[test]
fn a_stop_removes_the_socket_unless_it_is_anothers() {
    let mut server = Server::start();
    assert_eq!(server.post(b"[]"), OK);
    server.stop();
    assert!(!server.socket().exists());

    let mut server = Server::start();
    fs::remove_file(server.socket()).unwrap();
    let another = UnixListener::bind(server.socket()).unwrap();
    server.stop();
    assert!(server.socket().exists());
    drop(another);
}
