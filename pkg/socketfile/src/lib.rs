//! Unix sockets: creation in a directory without a moment in which the socket is missing or has the wrong mode, peer credentials,
//! and passing of file descriptors.
//!
//! Called by the servers (the agent, the server of the plugin's log lines, ZDS) and by the plugin, which sends its pod's network
//! namespace. The crate must not accept connections or know the protocols.

mod descriptors;

use std::ffi::{OsStr, OsString};
use std::fs::DirBuilder;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, chmodat, renameat, statat, unlinkat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

pub use descriptors::{Accompanying, receive_with_descriptor, send_with_descriptor};

const DIRECTORY_MODE: u32 = 0o750;
/// Backlog of clients to be accepted. A node that boots starts many pods at the same time.
const BACKLOG: i32 = 1024;

/// Number of attempts to find a listener's end, and the delay between them. An agent that was killed while it started a tool keeps
/// listening in the child, until that executes its own program; its successor may start sooner.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(100);

/// Error of creating a socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// A process listens there: another agent, which must not lose its clients.
    #[error("{} is in use by another process", path.display())]
    InUse {
        /// Path of the socket.
        path: PathBuf,
    },
    /// The path has a file that is not ours to remove.
    #[error("{} exists and is not a socket", path.display())]
    NotASocket {
        /// Path of the conflicting file.
        path: PathBuf,
    },
    /// The system refuses.
    #[error("cannot {doing} for the socket {}: {source}", path.display())]
    System {
        /// Path of the socket.
        path: PathBuf,
        /// The attempted operation.
        doing: &'static str,
        /// Error of the system.
        source: io::Error,
    },
}

/// Socket file. Removed when dropped, unless it was replaced.
#[derive(Debug)]
pub struct SocketFile {
    directory: OwnedFd,
    name: OsString,
    identity: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let now = statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW);
        if now.is_ok_and(|stat| file_identity(&stat) == self.identity) {
            let _ = unlinkat(&self.directory, &self.name, AtFlags::empty());
        }
    }
}

/// Returns device and inode.
fn file_identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

/// Creates a listening socket with this mode at the path, replacing one without a listener. A missing directory is created. The
/// listener is non-blocking.
///
/// # Errors
/// A process listens there, and still does after half a second, another kind of file exists there, or the system refuses.
pub fn bind(path: &Path, mode: u32) -> Result<(UnixListener, SocketFile), SocketError> {
    bind_type(path, mode, SocketType::STREAM).map(|(listener, file)| (listener.into(), file))
}

/// Creates a socket as [`bind`] does, of another type, such as one that preserves packet boundaries.
///
/// # Errors
/// As [`bind`].
pub fn bind_type(
    path: &Path,
    mode: u32,
    socket_type: SocketType,
) -> Result<(OwnedFd, SocketFile), SocketError> {
    let at = SocketLocation { path, mode: Mode::from_raw_mode(mode), socket_type };
    // A path to which clients could not connect is refused here, with the kernel's error.
    let address = at.map_system_error("use this path", SocketAddrUnix::new(path))?;
    let name = path.file_name().ok_or(Errno::INVAL);
    let name = at.map_system_error("use this path", name)?;
    let directory = at.open_directory()?;
    at.wait_for_the_last_one(&directory, name, &address)?;
    let temporary = temporary_name(name);
    let listener = at.listen_in(&directory, &temporary)?;
    let moved = at.move_into_place(&directory, &temporary, name);
    if moved.is_err() {
        let _ = unlinkat(&directory, &temporary, AtFlags::empty());
    }
    let file = SocketFile { identity: moved?, directory, name: name.to_owned() };
    Ok((listener, file))
}

/// Whether a process listens at a path, so that [`bind`] would refuse it.
///
/// # Errors
/// The kernel does not report whether it does.
pub fn is_in_use(path: &Path) -> Result<bool, SocketError> {
    let at = SocketLocation { path, mode: Mode::empty(), socket_type: SocketType::STREAM };
    at.is_in_use(&at.map_system_error("use this path", SocketAddrUnix::new(path))?)
}

/// Returns the UID as which the peer of a Unix socket connected, as mapped in our user namespace.
///
/// The process ID that comes with it is 0 for a peer outside our PID namespace, which is the usual case in a container.
///
/// # Errors
/// The kernel's error; none is possible for a connected Unix socket.
pub fn peer_user(socket: &impl AsFd) -> io::Result<u32> {
    Ok(getsockopt(socket, PeerCredentials)?.uid())
}

/// Returns the name of a new socket until it is complete. One that a killed agent left is replaced by the next one.
fn temporary_name(name: &OsStr) -> OsString {
    [OsStr::new("."), name, OsStr::new(".new")].into_iter().collect()
}

/// Location of the socket, for errors.
struct SocketLocation<'a> {
    path: &'a Path,
    mode: Mode,
    socket_type: SocketType,
}

impl SocketLocation<'_> {
    fn map_system_error<T, E>(&self, doing: &'static str, result: Result<T, E>) -> Result<T, SocketError>
    where
        io::Error: From<E>,
    {
        result.map_err(|error| SocketError::System { path: self.path.into(), doing, source: error.into() })
    }

    /// Opens the directory, and creates it if it is missing.
    fn open_directory(&self) -> Result<OwnedFd, SocketError> {
        let directory = match self.path.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        let made = DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(directory);
        self.map_system_error("make the directory", made)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        self.map_system_error("open the directory", rustix::fs::open(directory, flags, Mode::empty()))
    }

    fn wait_for_the_last_one(
        &self,
        directory: &OwnedFd,
        name: &OsStr,
        address: &SocketAddrUnix,
    ) -> Result<(), SocketError> {
        for _ in 1..TRIES {
            match self.refuse_to_replace_others(directory, name, address) {
                Err(SocketError::InUse { .. }) => thread::sleep(PAUSE), // no event reports that a child has executed its program
                other => return other,
            }
        }
        self.refuse_to_replace_others(directory, name, address)
    }

    fn refuse_to_replace_others(
        &self,
        directory: &OwnedFd,
        name: &OsStr,
        address: &SocketAddrUnix,
    ) -> Result<(), SocketError> {
        let stat = match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(()),
            stat => self.map_system_error("stat the existing file", stat)?,
        };
        if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
            return Err(SocketError::NotASocket { path: self.path.into() });
        }
        match self.is_in_use(address)? {
            false => Ok(()),
            true => Err(SocketError::InUse { path: self.path.into() }),
        }
    }

    fn is_in_use(&self, address: &SocketAddrUnix) -> Result<bool, SocketError> {
        match self.create_socket().and_then(|socket| rustix::net::connect(&socket, address)) {
            // No process listens, or the socket was removed meanwhile.
            Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(false),
            // Backlog full, or a socket of another type: in use in any case.
            Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => Ok(true),
            error => self.map_system_error("ask who listens", error).map(|()| false),
        }
    }

    /// Creates a listening socket with the right mode.
    fn listen_in(&self, directory: &OwnedFd, name: &OsStr) -> Result<OwnedFd, SocketError> {
        let socket = self.map_system_error("make a socket", self.create_socket())?;
        let _ = unlinkat(directory, name, AtFlags::empty()); // usually missing
        // Through the open directory, since the length of a socket address is limited.
        let path = Path::new("/proc/self/fd").join(directory.as_fd().as_raw_fd().to_string()).join(name);
        let bound = SocketAddrUnix::new(path).and_then(|address| rustix::net::bind(&socket, &address));
        self.map_system_error("bind", bound)?;
        let ready = chmodat(directory, name, self.mode, AtFlags::empty())
            .and_then(|()| rustix::net::listen(&socket, BACKLOG));
        if ready.is_err() {
            let _ = unlinkat(directory, name, AtFlags::empty());
        }
        self.map_system_error("listen", ready)?;
        Ok(socket)
    }

    /// Renames the socket to its final name, and returns its identity.
    fn move_into_place(
        &self,
        directory: &OwnedFd,
        from: &OsStr,
        to: &OsStr,
    ) -> Result<(u64, u64), SocketError> {
        let stat = statat(directory, from, AtFlags::SYMLINK_NOFOLLOW);
        let identity = file_identity(&self.map_system_error("stat the new socket", stat)?);
        self.map_system_error("move the new socket", renameat(directory, from, directory, to))?;
        Ok(identity)
    }

    fn create_socket(&self) -> Result<OwnedFd, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        rustix::net::socket_with(AddressFamily::UNIX, self.socket_type, flags, None)
    }
}
