//! Unix sockets: puts one into a directory without a moment in which it is missing or has the wrong mode, reads the
//! peer's credentials, and passes file descriptors.
//!
//! Called by the servers (the agent, the server of the plugin's log lines, ZDS) and by the plugin, which sends its pod's
//! network namespace. It must not accept connections or know the protocols.

mod descriptors;
mod peer;

use std::ffi::{OsStr, OsString};
use std::fs::DirBuilder;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process;
use std::thread;
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, chmodat, renameat, statat, unlinkat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

pub use descriptors::{Accompanying, receive_with_descriptor, send_with_descriptor};
pub use peer::peer_user;

const DIRECTORY_MODE: u32 = 0o750;
/// Number of clients that may wait to be served. A node starts many pods at once when it comes up.
const BACKLOG: i32 = 1024;

/// How often somebody who listens is asked again, and after which pause. An agent that was killed while it started a tool
/// goes on listening in the child, until that runs its own program; its successor may come sooner.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(100);

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Somebody listens there: another agent, which must not lose its clients.
    #[error("{} is in use by another process", path.display())]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// Something is there that is not ours to remove.
    #[error("{} exists and is not a socket", path.display())]
    NotASocket {
        /// Path of the file that is in the way.
        path: PathBuf,
    },
    /// The system refuses.
    #[error("cannot {doing} for the socket {}: {source}", path.display())]
    System {
        /// The socket.
        path: PathBuf,
        /// The attempted operation.
        doing: &'static str,
        /// The system's reason.
        source: io::Error,
    },
}

/// The socket in its directory. Removed when dropped, unless it was replaced.
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

/// Device and inode.
fn file_identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

/// Puts a listening socket with this mode at the path, in the place of one that nobody listens on. The directory is made
/// when it is missing. The listener does not block.
///
/// # Errors
/// When somebody listens there, and still does after half a second, when something else is there, and when the system
/// refuses.
pub fn bind(path: &Path, mode: u32) -> Result<(UnixListener, SocketFile), SocketError> {
    bind_type(path, mode, SocketType::STREAM).map(|(listener, file)| (listener.into(), file))
}

/// As [`bind`], of another type, such as one that keeps packets apart.
///
/// # Errors
/// As [`bind`].
pub fn bind_type(
    path: &Path,
    mode: u32,
    socket_type: SocketType,
) -> Result<(OwnedFd, SocketFile), SocketError> {
    let at = SocketLocation { path, mode: Mode::from_raw_mode(mode), socket_type };
    // What clients could not connect to is refused here, with the kernel's reason.
    let address = at.map_system_error("use this path", SocketAddrUnix::new(path))?;
    let name = path.file_name().ok_or(Errno::INVAL);
    let name = at.map_system_error("use this path", name)?;
    let directory = at.open_directory()?;
    at.wait_for_the_last_one(&directory, name, &address)?;
    let temporary = temporary_name();
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
/// The kernel cannot be asked for listeners there.
pub fn is_in_use(path: &Path) -> Result<bool, SocketError> {
    let at = SocketLocation { path, mode: Mode::empty(), socket_type: SocketType::STREAM };
    at.is_in_use(&at.map_system_error("use this path", SocketAddrUnix::new(path))?)
}

/// Unlike any other agent's, even of one that has the same process id in its own namespace.
fn temporary_name() -> OsString {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!(".socket-{}-{}", process::id(), since_epoch.as_nanos()).into()
}

/// The place of the socket, for errors.
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

    /// Made when it is missing.
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
                Err(SocketError::InUse { .. }) => thread::sleep(PAUSE), // nothing tells when a child runs
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
        match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(()),
            stat => {
                let mode = self.map_system_error("stat the existing file", stat)?.st_mode;
                if FileType::from_raw_mode(mode) != FileType::Socket {
                    return Err(SocketError::NotASocket { path: self.path.into() });
                }
            }
        }
        match self.is_in_use(address)? {
            false => Ok(()),
            true => Err(SocketError::InUse { path: self.path.into() }),
        }
    }

    fn is_in_use(&self, address: &SocketAddrUnix) -> Result<bool, SocketError> {
        match self.create_socket().and_then(|socket| rustix::net::connect(&socket, address)) {
            // Nobody listens, or it is gone by now.
            Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(false),
            // Busy, or a socket of another type: somebody's in any case.
            Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => Ok(true),
            error => self.map_system_error("ask who listens", error).map(|()| false),
        }
    }

    /// A listening socket with the right mode.
    fn listen_in(&self, directory: &OwnedFd, name: &OsStr) -> Result<OwnedFd, SocketError> {
        let socket = self.map_system_error("make a socket", self.create_socket())?;
        // Through the open directory, since an address has room for a short path only.
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

    /// Moves the socket into place, and tells which one it is.
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
