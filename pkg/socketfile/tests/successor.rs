//! A second process that binds while the first one listens, or after it was killed.
#![allow(clippy::unwrap_used, reason = "a test: a panic is its failure")]

use std::{
    fs,
    os::unix::net::{UnixListener, UnixStream},
    thread,
    time::Duration,
};

use socketfile::{SocketError, bind};

#[test]
fn one_that_listens_for_a_moment_longer_is_waited_for_and_no_other() {
    let directory = std::env::temp_dir().join(format!("successor-{}", std::process::id()));
    fs::create_dir(&directory).unwrap();
    let path = directory.join("socket");
    let other = UnixListener::bind(&path).unwrap();
    assert!(matches!(bind(&path, 0o600), Err(SocketError::InUse { .. })));
    drop(other);
    // Several times: the other one may be stopped for longer than it is waited for.
    let bound = (0..10).find_map(|_| {
        fs::remove_file(&path).unwrap();
        let other = UnixListener::bind(&path).unwrap();
        let ends = thread::spawn(move || {
            thread::sleep(Duration::from_millis(150)); // as a child before its exec
            drop(other);
        });
        let bound = bind(&path, 0o600).ok();
        ends.join().unwrap();
        bound
    });
    let (listener, file) = bound.unwrap();
    UnixStream::connect(&path).unwrap();
    listener.accept().unwrap();
    drop(file);
    fs::remove_dir(&directory).unwrap();
}

#[test]
fn what_one_left_that_was_killed_before_its_socket_was_complete_is_replaced() {
    let directory = std::env::temp_dir().join(format!("killed-{}", std::process::id()));
    fs::create_dir(&directory).unwrap();
    drop(UnixListener::bind(directory.join(".socket.new")).unwrap());
    let (_listener, file) = bind(&directory.join("socket"), 0o600).unwrap();
    let names: Vec<_> = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["socket"]);
    drop(file);
    fs::remove_dir(&directory).unwrap();
}
