//! Executes a program as in a container: in its own mount namespace, with a root made of mounts.

use std::ffi::{CString, OsStr};
use std::fs;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

use rustix::mount::{
    MountFlags, MountPropagationFlags, mount_bind, mount_bind_recursive, mount_change, mount_remount,
};
use rustix::thread::UnshareFlags;

use crate::Options;

/// Returns only if it fails, with the error. Sources of mounts are paths of the caller, targets those of the container.
pub(crate) fn run(options: &Options, mut command: impl Iterator<Item = String>) -> io::Error {
    match enter(options) {
        Ok(()) => Command::new(command.next().expect("a program")).args(command).exec(),
        Err(error) => error,
    }
}

fn enter(options: &Options) -> io::Result<()> {
    let limits = options.all("--user-limit");
    unshare(if limits.is_empty() {
        UnshareFlags::NEWNS
    } else {
        UnshareFlags::NEWNS | UnshareFlags::NEWUSER
    })?;
    if !limits.is_empty() {
        fs::write("/proc/self/setgroups", "deny")?;
        fs::write("/proc/self/uid_map", "0 0 1")?;
        fs::write("/proc/self/gid_map", "0 0 1")?;
    }
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::DOWNSTREAM)?;
    let root: String = options.get("--root").expect("--root");
    mount_bind(&root, &root)?;
    for (option, recursive) in [("--bind", false), ("--rbind", true)] {
        for mount in options.all(option) {
            let (from, to) = mount.split_once(':').expect("FROM:TO");
            let to = format!("{root}{to}");
            if recursive { mount_bind_recursive(from, &to)? } else { mount_bind(from, &to)? }
        }
    }
    for path in options.all("--read-only") {
        let path = format!("{root}{path}");
        mount_bind(&path, &path)?;
        mount_remount(&path, MountFlags::BIND | MountFlags::RDONLY, CString::default())?;
    }
    for limit in limits {
        let (name, value) = limit.split_once('=').expect("NAME=VALUE");
        fs::write(Path::new("/proc/sys/user").join(name), value)?;
    }
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_err(io::Error::other)?;
    fs::write(options.get::<String>("--started").expect("--started"), since.as_micros().to_string())?;
    rustix::process::chroot(root)?;
    std::env::set_current_dir(OsStr::new("/"))
}

#[allow(clippy::disallowed_methods, reason = "kit does not use pkg/netns, which it helps to test")]
#[allow(unsafe_code, reason = "rustix offers unshare only as unsafe")]
fn unshare(what: UnshareFlags) -> io::Result<()> {
    // SAFETY: this process has one thread, and shares neither descriptors nor file system state with another.
    Ok(unsafe { rustix::thread::unshare_unsafe(what) }?)
}
