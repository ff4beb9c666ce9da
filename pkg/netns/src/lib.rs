//! Network namespaces: open, identify, enter, make.
//!
//! The only crate that enters or makes namespaces (ARCHITECTURE.md, invariant 2). Who needs something done in a pod's
//! or the node's netns hands over a closure; it runs on a thread of its own that ends with it, so that no thread is
//! ever left in a foreign namespace. Sockets opened and processes started by the closure belong to that netns.
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
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

use error::kernel_error;

pub use error::Error;
pub use sandbox::{BindMount, MountSandbox};
pub use user::UserNamespace;

/// The calling thread's netns; `/proc/self` would be that of the process's first thread.
const CURRENT: &str = "/proc/thread-self/ns/net";

/// Identity of a netns, whatever path leads to it: device and inode of its file in nsfs.
///
/// The kernel may give the number of a netns that ended to a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NetnsId {
    /// Device of the file system that holds it.
    pub dev: u64,
    /// Inode number of the file, the one in `net:[4026531840]`.
    pub ino: u64,
}

/// Identity of a netns among all that had its number, for what is remembered of one without keeping it alive.
///
/// The kernel makes the file in nsfs with the present time, and keeps it while something has bound or opened it, as a container
/// runtime does as long as the pod lives. Of a netns that nothing holds meanwhile, it may be another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NetnsInstance {
    id: NetnsId,
    /// Seconds and nanoseconds of the file's modification, which is its creation.
    made: (i64, i64),
}

/// An open network namespace; it lives at least as long as this value.
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
    /// [`Error::Missing`], [`Error::Denied`] or [`Error::Kernel`]; [`Error::NotNetns`] if there is something else.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        // NONBLOCK and NOCTTY: a pipe or terminal in its place must not stop or capture us.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let fd =
            rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| Error::open_error(path, errno))?;
        Self::from_fd_at(fd, path)
    }

    /// Takes over an open netns, such as one that another process has sent.
    ///
    /// # Errors
    ///
    /// [`Error::NotNetns`] if it is something else, [`Error::Kernel`].
    pub fn from_fd(fd: OwnedFd) -> Result<Self, Error> {
        Self::from_fd_at(fd, Path::new("a file descriptor"))
    }

    /// The netns that a socket belongs to. A connection that was accepted on a Unix socket belongs to the netns of the
    /// process that connected (`unix_stream_connect` of net/unix/af_unix.c), whatever netns the listener is in.
    ///
    /// # Errors
    ///
    /// [`Error::Denied`] without CAP_NET_ADMIN over it, [`Error::Kernel`].
    pub fn of_socket(socket: &impl AsFd) -> Result<Self, Error> {
        let path = Path::new("of a socket");
        let fd = kind::of_socket(socket).map_err(|errno| Error::open_error(path, errno))?;
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

    /// The netns of the calling thread.
    ///
    /// # Errors
    ///
    /// As [`Netns::open`], should `/proc` not be mounted.
    pub fn current() -> Result<Self, Error> {
        Self::open(CURRENT)
    }

    /// Makes a netns without a name: it ends when this value and everything in it are gone.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] if the kernel refuses, as it does without CAP_SYS_ADMIN.
    pub fn create() -> Result<Self, Error> {
        on_own_thread(|| {
            leave_into_new()?;
            Self::current()
        })
    }

    /// Returns the identity, which shows whether two paths lead to the same netns.
    pub const fn id(&self) -> NetnsId {
        self.instance.id
    }

    /// Returns the identity that no successor with the same number has.
    pub const fn instance(&self) -> NetnsInstance {
        self.instance
    }

    /// Runs `f` inside this netns, on a thread of its own, and waits for it. A panic of `f` goes on in the caller.
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

    /// Runs `f` inside each of these netns, one after the other on one thread of its own; `f` gets the place in the list. A
    /// thread for each would cost more than a short question to the kernel.
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

    /// As [`Netns::run_in`], with mounts that only `f` and the processes it starts can see.
    ///
    /// # Errors
    ///
    /// [`Error::Sandbox`] if the mounts cannot be made: `f` has not run, and the caller may choose to warn and use
    /// [`Netns::run_in`]. Others as there.
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

    /// Moves the calling thread, which must be one of our own that ends soon.
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

/// Runs `f` on a thread that ends with it: namespaces belong to threads, and changing back could fail.
fn on_own_thread<T: Send>(f: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    thread::scope(|scope| {
        let spawned = thread::Builder::new().name("netns".to_owned()).spawn_scoped(scope, f);
        let thread =
            spawned.map_err(|error| kernel_error("start a thread for a network namespace", error))?;
        thread.join().unwrap_or_else(|panicked| panic::resume_unwind(panicked))
    })
}

/// Moves the calling thread, which must be one of our own that ends soon, into a new netns.
#[expect(unsafe_code, clippy::disallowed_methods, reason = "this is the crate that the lints point to")]
fn leave_into_new() -> Result<(), Error> {
    // SAFETY: unsafe is only a separate file descriptor table (CLONE_FILES), which is not asked for.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }
        .map_err(|errno| kernel_error("make a network namespace", errno))
}
