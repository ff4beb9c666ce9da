//! With the kernel, each test in its own network namespaces; `ip` reports the actual state.
#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::indexing_slicing, reason = "tests")]

#[path = "kernel/bulk.rs"]
mod bulk;
#[path = "../../netns/tests/fresh/create.rs"]
mod create;
#[path = "kernel/links.rs"]
mod links;
#[path = "kernel/new_links.rs"]
mod new_links;
#[path = "kernel/routes.rs"]
mod routes;
#[path = "kernel/rules.rs"]
mod rules;
#[path = "kernel/sysctl.rs"]
mod sysctl;

use std::net::IpAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use hostnet::{IpNet, LinkIndex, RtnetlinkHandle};
use serde_json::Value;

/// Runs a test inside a new network namespace with lo up and a veth pair `va`–`vb`. Without permission to create one it is skipped,
/// with the reason on stderr; CI must have it.
fn in_fresh_netns(test: impl FnOnce(&mut RtnetlinkHandle) + Send) {
    let Some(netns) = create::create_or_skip() else { return };
    let run = || {
        ip("link set lo up");
        ip("link add va type veth peer name vb");
        ip("link set va up");
        ip("link set vb up");
        test(&mut RtnetlinkHandle::open().unwrap());
    };
    netns.run_in(run).unwrap();
}

/// The kernel's errno.
fn errno(error: &hostnet::Error) -> Option<netlink::Errno> {
    std::error::Error::source(error)?.downcast_ref::<netlink::Error>()?.errno()
}

/// Our result and that of `ip` for the same moment: the kernel starts links, and adds their own addresses and routes,
/// asynchronously, so both are read until nothing changed in between and `complete` holds.
fn at_one_moment<T: PartialEq + std::fmt::Debug, U>(
    mut ours: impl FnMut() -> T,
    theirs: impl Fn() -> U,
    complete: impl Fn(&T) -> bool,
) -> (T, U) {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let (before, shown, after) = (ours(), theirs(), ours());
        if before == after && complete(&before) {
            return (before, shown);
        }
        assert!(Instant::now() < deadline, "still changing, or incomplete: {after:?}");
    }
}

/// Runs `ip` in the calling thread's network namespace.
fn ip(arguments: &str) -> String {
    let output = Command::new("ip").args(arguments.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Output of `ip -j`, which prints nothing instead of several empty lists.
fn shown(arguments: &str) -> Vec<Value> {
    let text = ip(&format!("-j -N -details {arguments}"));
    if text.trim().is_empty() { Vec::new() } else { serde_json::from_str(&text).unwrap() }
}

fn index(handle: &mut RtnetlinkHandle, name: &str) -> LinkIndex {
    handle.link_by_name(name).unwrap().unwrap().index
}

fn addr(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn prefix(text: &str) -> IpNet {
    text.parse().unwrap()
}
