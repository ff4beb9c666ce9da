//! Kinds of namespace files, and the namespace of a socket.

use std::ffi::c_void;
use std::os::fd::{AsFd, FromRawFd as _, OwnedFd};
use std::path::Path;

use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, opcode};

use crate::Error;

/// `NSFS_MAGIC` of `include/uapi/linux/magic.h`: the file system of all namespace files.
const NSFS_MAGIC: u32 = 0x6e73_6673;

/// Kinds of namespaces by the flag that makes one (`CLONE_NEW*`).
const NETWORK: i32 = 0x4000_0000;
const OTHERS: [(i32, &str); 7] = [
    (0x0002_0000, "a mount namespace"),
    (0x0200_0000, "a cgroup namespace"),
    (0x0400_0000, "a UTS namespace"),
    (0x0800_0000, "an IPC namespace"),
    (0x1000_0000, "a user namespace"),
    (0x2000_0000, "a PID namespace"),
    (0x0000_0080, "a time namespace"),
];

/// Returns an error with the kind of file at `path`, unless it is a network namespace.
///
/// The usual other kind is an empty file: a name whose mount was removed, or is not visible from here.
pub(crate) fn check_netns(fd: &OwnedFd, path: &Path) -> Result<(), Error> {
    let other = |found| Err(Error::NotNetns { path: path.to_owned(), found });
    let file_system = rustix::fs::fstatfs(fd).map_err(|errno| Error::open_error(path, errno))?;
    // The field's width differs between architectures; the number has 32 bits.
    if file_system.f_type as u32 != NSFS_MAGIC {
        return other("an ordinary file or directory");
    }
    match namespace_type(fd) {
        Ok(NETWORK) => Ok(()),
        Ok(kind) => {
            let known = OTHERS.iter().find(|(flag, _)| *flag == kind);
            other(known.map_or("another kind of namespace", |(_, name)| name))
        }
        // Older than Linux 4.11; entering it will show.
        Err(Errno::NOTTY) => Ok(()),
        Err(errno) => Err(Error::open_error(path, errno)),
    }
}

/// An ioctl on namespaces. Each takes no argument, and returns its result.
pub(crate) enum NamespaceQuery {
    /// `NS_GET_USERNS` of `include/uapi/linux/nsfs.h`: a new file descriptor of the user namespace that owns the
    /// queried one.
    Owner,
    /// `NS_GET_NSTYPE` of `include/uapi/linux/nsfs.h`: the flag that creates a namespace of this kind.
    Kind,
    /// `SIOCGSKNS` of `include/uapi/linux/sockios.h`: a new file descriptor of a socket's network namespace.
    OfSocket,
}

#[expect(unsafe_code, reason = "rustix has no pattern for an ioctl that answers by its return value")]
// SAFETY: the opcodes take no argument and write no memory, so nothing is mutated, the pointer is null, and the output is the
// plain return value.
unsafe impl Ioctl for NamespaceQuery {
    type Output = i32;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        match self {
            NamespaceQuery::Owner => opcode::none(0xb7, 0x1),
            NamespaceQuery::Kind => opcode::none(0xb7, 0x3),
            NamespaceQuery::OfSocket => 0x894c,
        }
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<i32> {
        Ok(out)
    }
}

#[expect(unsafe_code, reason = "rustix has no safe call for NS_GET_NSTYPE")]
fn namespace_type(fd: &OwnedFd) -> Result<i32, Errno> {
    // SAFETY: `fd` is a file of nsfs (checked by the caller), where this number means NS_GET_NSTYPE, which takes no
    // argument and touches no memory of ours.
    unsafe { rustix::ioctl::ioctl(fd, NamespaceQuery::Kind) }
}

/// Opens the network namespace to which a socket belongs.
#[expect(unsafe_code, reason = "rustix has no safe call for SIOCGSKNS")]
pub(crate) fn from_socket(socket: &impl AsFd) -> Result<OwnedFd, Errno> {
    // SAFETY: this number means SIOCGSKNS for a socket of any family (`sock_ioctl` of net/socket.c); it takes no
    // argument and touches no memory of ours. For any other file it is refused. The file descriptor is new and not
    // shared, and the kernel marks it close-on-exec itself (`open_related_ns`).
    unsafe { rustix::ioctl::ioctl(socket, NamespaceQuery::OfSocket).map(|fd| OwnedFd::from_raw_fd(fd)) }
}
