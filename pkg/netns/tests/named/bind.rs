//! Named namespaces, as `ip netns` creates them.

use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::Path;
use std::process::Command;

use netns::Netns;

/// Creates a namespace that exists until its name is [removed](unbind_netns).
pub(crate) fn bind_new_netns(path: &Path) -> Netns {
    let netns = Netns::create().unwrap();
    let _ = std::fs::File::create_new(path).unwrap();
    let file = format!("/proc/{}/fd/{}", std::process::id(), netns.as_fd().as_raw_fd());
    assert!(Command::new("mount").args(["--bind", &file]).arg(path).status().unwrap().success());
    netns
}

/// Removes the name.
pub(crate) fn unbind_netns(path: &Path) {
    assert!(Command::new("umount").arg("--lazy").arg(path).status().unwrap().success());
    std::fs::remove_file(path).unwrap();
}
