//! Credentials of the peer.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

use std::env;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Command;

use socketfile::peer_user;

/// Set in the process that inspects its stdin.
const INSIDE: &str = "SOCKETFILE_TEST_INSIDE";

/// The usual case: a container has its own PID namespace, without the peer.
#[test]
fn the_user_of_a_process_that_our_pid_namespace_does_not_show() {
    if env::var_os(INSIDE).is_some() {
        assert_eq!(peer_user(&io::stdin()).unwrap(), 0);
        return;
    }
    let (_ours, theirs) = UnixStream::pair().unwrap();
    assert_eq!(peer_user(&theirs).unwrap(), 0);
    let name = "the_user_of_a_process_that_our_pid_namespace_does_not_show";
    let output = Command::new("unshare")
        .args(["--pid", "--fork"])
        .arg(env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(INSIDE, "1")
        .stdin(OwnedFd::from(theirs))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let has_run = text.lines().any(|line| line.starts_with("test result: ok. 1 passed;"));
    assert!(output.status.success() && has_run, "{text}{output:?}");
}

#[test]
fn what_is_no_unix_socket_has_no_peer() {
    let file = std::fs::File::open("/dev/null").unwrap();
    assert!(peer_user(&file).is_err());
}
