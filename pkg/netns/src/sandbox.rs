//! Mounts that only one thread and its child processes see.

use std::fmt::Display;
use std::path::PathBuf;

use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::thread::UnshareFlags;

use crate::{Error, unshare_thread};

/// A file or directory that is mounted over another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindMount {
    /// The file or directory to mount.
    pub source: PathBuf,
    /// Mount point; it must exist, since creating it would be visible to all processes.
    pub target: PathBuf,
    /// Whether the mount is read-only.
    pub read_only: bool,
}

/// Mounts that a closure of [`crate::Netns::run_in_sandbox`] sees, unlike the rest of the process.
///
/// For commands that read or lock files of the host: `iptables-legacy-restore` would look up names according to
/// `/etc/nsswitch.conf`, and wait for `/run/xtables.lock`, which is only relevant in the node's own netns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountSandbox {
    /// Mounts, in the order of their creation.
    pub binds: Vec<BindMount>,
}

impl MountSandbox {
    /// Gives the calling thread, which must be one of our own that ends soon, its own mounts.
    pub(crate) fn prepare_mounts(&self) -> Result<(), Error> {
        // Also separates the thread's working directory and umask from the process's: the kernel implies CLONE_FS here.
        unshare_thread(UnshareFlags::NEWNS).map_err(sandbox_error("unshare mounts"))?;
        // Slave, not private: mounts that the host removes are removed here, too, and not kept busy by us.
        let quiet = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
        rustix::mount::mount_change("/", quiet).map_err(sandbox_error("keep mounts from the host"))?;
        self.binds.iter().try_for_each(BindMount::mount)
    }
}

impl BindMount {
    fn mount(&self) -> Result<(), Error> {
        rustix::mount::mount_bind(&self.source, &self.target)
            .map_err(|errno| self.mount_error("show", errno))?;
        if self.read_only {
            let flags = MountFlags::BIND | MountFlags::RDONLY;
            rustix::mount::mount_remount(&self.target, flags, "")
                .map_err(|errno| self.mount_error("protect", errno))?;
        }
        Ok(())
    }

    fn mount_error(&self, verb: &str, errno: Errno) -> Error {
        sandbox_error(format_args!("{verb} {} on {}", self.source.display(), self.target.display()))(errno)
    }
}

fn sandbox_error(step: impl Display) -> impl FnOnce(Errno) -> Error {
    move |errno| Error::Sandbox { step: step.to_string(), source: errno.into() }
}
