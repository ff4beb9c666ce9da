//! Options of `SOL_NETLINK`, which rustix does not offer: the one place here that needs `unsafe`.

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;

use super::NetlinkProtocol;

const SOL_NETLINK: c_int = 270;
/// Do not echo the whole request in an error (Linux 4.3).
const CAP_ACK: c_int = 10;
/// Say the reason of an error in words (Linux 4.12).
const EXT_ACK: c_int = 11;
/// Check requests for lists strictly, and so honour the filters in them (Linux 4.20).
const GET_STRICT_CHK: c_int = 12;

/// Switches on what we rely on for good errors and small lists. A kernel that is too old for an option is fine:
/// errors are poorer then, and callers filter lists themselves anyway.
pub(super) fn set(fd: &OwnedFd, protocol: NetlinkProtocol) -> Result<(), Errno> {
    let strict = (protocol == NetlinkProtocol::Route).then_some(GET_STRICT_CHK);
    for option in [CAP_ACK, EXT_ACK].into_iter().chain(strict) {
        match switch_on(fd, option) {
            Ok(()) | Err(Errno::NOPROTOOPT) => {}
            Err(other) => return Err(other),
        }
    }
    Ok(())
}

#[expect(unsafe_code, reason = "neither std nor rustix sets options of SOL_NETLINK")]
fn switch_on(fd: &OwnedFd, option: c_int) -> Result<(), Errno> {
    unsafe extern "C" {
        fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: u32) -> c_int;
    }
    let on: c_int = 1;
    // SAFETY: the signature is that of POSIX's setsockopt in the C library that std links (socklen_t is 32 bits
    // wide on Linux); the kernel only reads the four bytes of `on`, which outlives the call; `fd` is open.
    let result = unsafe { setsockopt(fd.as_raw_fd(), SOL_NETLINK, option, (&raw const on).cast(), 4) };
    if result == 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
}
