//! User namespaces: the one that owns a pod's network namespace differs from the node's if the pod has
//! `hostUsers: false`. Some rules can only be written from there: the kernel interprets user IDs of a rule in its writer's user
//! namespace, and xt_owner refuses a writer from another one.

mod map;

use std::fs;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, LinkNameSpaceType, configure_capability_in_ambient_set, set_capabilities,
};

use crate::{Error, Netns, error::kernel_error, kind::NamespaceQuery, open_file};

/// The user namespace of this process.
const OWN: &str = "/proc/self/ns/user";
/// Capabilities that the tools for rules need.
const NEEDED: [CapabilitySet; 2] = [CapabilitySet::NET_ADMIN, CapabilitySet::NET_RAW];

/// An open user namespace.
#[derive(Debug)]
pub struct UserNamespace {
    fd: OwnedFd,
}

impl Netns {
    /// Returns the user namespace that owns this network namespace, if it is not this process's own. If the kernel does
    /// not support the query (before 4.9), or denies it, it counts as our own.
    ///
    /// # Errors
    /// [`Error::Kernel`]
    pub fn foreign_owner(&self) -> Result<Option<UserNamespace>, Error> {
        let failed = |error| kernel_error(format_args!("open network namespace {OWN}"), error);
        let fd = match owning_namespace(self) {
            Ok(fd) => fd,
            Err(Errno::NOTTY | Errno::PERM) => return Ok(None),
            Err(errno) => return Err(failed(errno.into())),
        };
        let found = rustix::fs::fstat(&fd).map_err(|errno| failed(errno.into()))?;
        let own = fs::metadata(OWN).map_err(failed)?;
        let is_own = (found.st_dev, found.st_ino) == (own.dev(), own.ino());
        Ok((!is_own).then_some(UserNamespace { fd }))
    }
}

impl UserNamespace {
    /// Returns the path by which another process can open it while this value lives.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.fd.as_raw_fd()).into()
    }

    /// Moves this process, which must have one thread and execute another program next, into the user namespace at
    /// `path`. The process keeps its user, so that it can read root's files, and passes on the capabilities to change
    /// rules there, which a user that is not mapped in the namespace would lose at the next `exec`.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Denied`], [`Error::Kernel`].
    #[expect(clippy::disallowed_methods, reason = "this is the crate that the lint points to")]
    pub fn enter_permanently(path: &Path) -> Result<(), Error> {
        let fd = open_file(path)?;
        let failed = |errno: Errno| kernel_error("enter user namespace", errno);
        rustix::thread::move_into_link_name_space(fd.as_fd(), Some(LinkNameSpaceType::User))
            .map_err(failed)?;
        let needed = NEEDED.into_iter().fold(CapabilitySet::empty(), CapabilitySet::union);
        let sets = CapabilitySets { effective: needed, permitted: needed, inheritable: needed };
        set_capabilities(None, sets).map_err(failed)?;
        NEEDED.into_iter().try_for_each(|one| configure_capability_in_ambient_set(one, true)).map_err(failed)
    }
}

#[expect(unsafe_code, reason = "rustix has no safe call for NS_GET_USERNS")]
fn owning_namespace(netns: &Netns) -> Result<OwnedFd, Errno> {
    // SAFETY: a `Netns` is a file of nsfs, where this number means NS_GET_USERNS, which takes no argument and touches
    // no memory of ours. The file descriptor is new and not shared, and the kernel marks it close-on-exec itself
    // (`open_related_ns`).
    unsafe { rustix::ioctl::ioctl(netns, NamespaceQuery::Owner).map(|fd| OwnedFd::from_raw_fd(fd)) }
}
