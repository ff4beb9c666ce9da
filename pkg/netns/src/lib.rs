//! Network namespaces: opening, identifying, entering and creating them.
//!
//! The only crate that enters or creates namespaces (ARCHITECTURE.md, invariant 2). Callers pass a closure to run in a
//! pod's or the node's netns; it runs on a separate thread that ends with it, so that no thread is ever left in a
//! foreign namespace. Sockets opened and processes started by the closure belong to that netns.
//!
//! Called by the plugin, the agent and the tests. It must not do anything *in* a netns itself.

mod error;
mod kind;
mod list;
mod sandbox;
mod user;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic;
use std::path::Path;
use std::thread;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

use error::kernel_error;

pub use error::Error;
pub use sandbox::{BindMount, MountSandbox};
pub use user::UserNamespace;

/// Path of the calling thread's netns; `/proc/self` would be that of the process's first thread.
const CURRENT: &str = "/proc/thread-self/ns/net";
/// Name of the threads that run in a netns: the kernel names it as the writer of rules that they change.
pub const THREAD_NAME: &str = "netns";

/// Identity of a netns, independent of its path: device and inode of its file in nsfs.
///
/// The kernel may reuse the number of an ended netns for a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NetnsId {
    /// Device of its file system.
    pub dev: u64,
    /// Inode number of the file, the one in `net:[4026531840]`.
    pub ino: u64,
}

/// Identity of a netns among all that had its number, for data about a netns that is not kept alive.
///
/// The kernel creates the file in nsfs with the current time, and keeps it while it is bound or open, as a container
/// runtime does during the pod's life. The identity of a netns that is not held meanwhile may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NetnsInstance {
    id: NetnsId,
    /// Seconds and nanoseconds of the file's modification time, which is its creation time.
    made: (i64, i64),
}

/// An open network namespace, which lives at least as long as this value.
#[derive(Debug)]
pub struct Netns {
    fd: OwnedFd,
    instance: NetnsInstance,
}

impl Netns {
    /// Opens the netns behind a path such as `/run/netns/x` or `/proc/<pid>/ns/net`.
    ///
    /// # Errors
    ///
    /// [`Error::Missing`], [`Error::Denied`] or [`Error::Kernel`]; [`Error::NotNetns`] if the path is another kind of
    /// file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        Self::from_fd_at(open_file(path)?, path)
    }

    /// Takes ownership of an open netns, such as one that another process has sent.
    ///
    /// # Errors
    ///
    /// [`Error::NotNetns`] if it is another kind of file, [`Error::Kernel`].
    pub fn from_fd(fd: OwnedFd) -> Result<Self, Error> {
        Self::from_fd_at(fd, Path::new("a file descriptor"))
    }

    /// Returns the netns to which a socket belongs. A connection that was accepted on a Unix socket belongs to the
    /// netns of the process that connected (`unix_stream_connect` of net/unix/af_unix.c), whatever the listener's netns
    /// is.
    ///
    /// # Errors
    ///
    /// [`Error::Denied`] without CAP_NET_ADMIN over it, [`Error::Kernel`].
    pub fn from_socket(socket: &impl AsFd) -> Result<Self, Error> {
        let path = Path::new("of a socket");
        let fd = kind::from_socket(socket).map_err(|errno| Error::open_error(path, errno))?;
        Self::from_fd_at(fd, path)
    }

    fn from_fd_at(fd: OwnedFd, path: &Path) -> Result<Self, Error> {
        kind::check_netns(&fd, path)?;
        let stat = rustix::fs::fstat(&fd).map_err(|errno| Error::open_error(path, errno))?;
        let id = NetnsId { dev: stat.st_dev, ino: stat.st_ino };
        Ok(Self {
            fd,
            instance: NetnsInstance { id, made: (stat.st_mtime, stat.st_mtime_nsec.cast_signed()) },
        })
    }

    /// Opens the netns of the calling thread.
    ///
    /// # Errors
    ///
    /// As [`Netns::open`], if `/proc` is not mounted.
    pub fn current() -> Result<Self, Error> {
        Self::open(CURRENT)
    }

    /// Creates a netns without a name, which is removed when this value and everything in it have ended.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] if the kernel refuses, as it does without CAP_SYS_ADMIN.
    pub fn create() -> Result<Self, Error> {
        on_own_thread(|| {
            unshare_thread(UnshareFlags::NEWNET)
                .map_err(|errno| kernel_error("make a network namespace", errno))?;
            Self::current()
        })
    }

    /// Returns the identity, which shows whether two paths refer to the same netns.
    pub const fn id(&self) -> NetnsId {
        self.instance.id
    }

    /// Returns the identity that no later netns with the same number has.
    pub const fn instance(&self) -> NetnsInstance {
        self.instance
    }

    /// Runs `f` inside this netns, on a separate thread, and waits for it. A panic of `f` is propagated to the caller.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`]; `f` has not run then.
    pub fn run_in<T: Send>(&self, f: impl FnOnce() -> T + Send) -> Result<T, Error> {
        on_own_thread(|| {
            self.enter_thread()?;
            Ok(f())
        })
    }

    /// Runs `f` inside each of these netns, one after the other on one separate thread; `f` gets the index in the list.
    /// A thread for each would cost more than a short request to the kernel.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`]; if it is for one of them, `f` has not run for it.
    pub fn run_in_each<T: Send>(
        all: &[&Netns],
        f: impl Fn(usize) -> T + Sync,
    ) -> Result<Vec<Result<T, Error>>, Error> {
        on_own_thread(|| {
            let visit = |(place, netns): (usize, &&Netns)| netns.enter_thread().map(|()| f(place));
            Ok(all.iter().enumerate().map(visit).collect())
        })
    }

    /// Like [`Netns::run_in`], with mounts that only `f` and the processes it starts can see.
    ///
    /// # Errors
    ///
    /// [`Error::Sandbox`] if the mounts cannot be made: `f` has not run, and the caller may log a warning and use
    /// [`Netns::run_in`]. Others as for [`Netns::run_in`].
    pub fn run_in_sandbox<T: Send>(
        &self,
        sandbox: &MountSandbox,
        f: impl FnOnce() -> T + Send,
    ) -> Result<T, Error> {
        on_own_thread(|| {
            self.enter_thread()?;
            sandbox.prepare_mounts()?;
            Ok(f())
        })
    }

    /// Moves the calling thread, which must be one of our own that ends soon, into this netns.
    #[expect(clippy::disallowed_methods, reason = "this is the crate that the lint points to")]
    fn enter_thread(&self) -> Result<(), Error> {
        rustix::thread::move_into_link_name_space(self.fd.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|errno| kernel_error("enter network namespace", errno))
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Opens a file that should be one of nsfs. Opening a pipe or terminal instead neither blocks nor acquires a controlling
/// terminal.
fn open_file(path: &Path) -> Result<OwnedFd, Error> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| Error::open_error(path, errno))
}

/// Runs `f` on a thread that ends with it: namespaces belong to threads, and switching back could fail.
fn on_own_thread<T: Send>(f: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    thread::scope(|scope| {
        let spawned = thread::Builder::new().name(THREAD_NAME.to_owned()).spawn_scoped(scope, f);
        let thread =
            spawned.map_err(|error| kernel_error("start a thread for a network namespace", error))?;
        thread.join().unwrap_or_else(|panicked| panic::resume_unwind(panicked))
    })
}

/// Moves the calling thread, which must be one of our own that ends soon, into new namespaces.
#[expect(unsafe_code, clippy::disallowed_methods, reason = "this is the crate that the lints point to")]
fn unshare_thread(namespaces: UnshareFlags) -> Result<(), Errno> {
    // SAFETY: only a separate file descriptor table (CLONE_FILES) is unsafe, and it is never requested.
    unsafe { rustix::thread::unshare_unsafe(namespaces.difference(UnshareFlags::FILES)) }
}
