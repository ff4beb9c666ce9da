//! Socket options that rustix does not offer, with the only `unsafe` code of this crate; and queries by such options.

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::NetlinkProtocol;

const SOL_IP: c_int = 0;
const SOL_SOCKET: c_int = 1;
const SOL_IPV6: c_int = 41;
const SOL_NETLINK: c_int = 270;
/// Attach a classic BPF program that filters received messages (`SO_ATTACH_FILTER`).
const ATTACH_FILTER: c_int = 26;
/// Do not echo the whole request in an error (Linux 4.3).
const CAP_ACK: c_int = 10;
/// Add a message with the reason to an error (Linux 4.12).
const EXT_ACK: c_int = 11;
/// Check requests for lists strictly, and so honour the filters in them (Linux 4.20).
const GET_STRICT_CHK: c_int = 12;

/// Enables options for detailed errors and short lists. A kernel that is too old for an option is supported: its errors
/// have less detail, and callers filter lists anyway.
pub(super) fn enable_options(fd: &OwnedFd, protocol: NetlinkProtocol) -> Result<(), Errno> {
    let strict = (protocol == NetlinkProtocol::Route).then_some(GET_STRICT_CHK);
    for option in [CAP_ACK, EXT_ACK].into_iter().chain(strict) {
        match set_option(fd, SocketOption::On(option)) {
            Ok(()) | Err(Errno::NOPROTOOPT) => {}
            Err(other) => return Err(other),
        }
    }
    Ok(())
}

/// Makes the kernel drop datagrams that do not begin with a message of this type. A notification is one message.
pub(super) fn let_only_through(fd: &OwnedFd, message_type: u16) -> Result<(), Errno> {
    // The filter reads in network byte order, while the header is in host byte order.
    let expected = u32::from(u16::from_be_bytes(message_type.to_ne_bytes()));
    let instruction = |code, jump_false, operand| BpfInstruction { code, jump_true: 0, jump_false, operand };
    let instructions = [
        instruction(BPF_LOAD_HALF_WORD, 0, MESSAGE_TYPE_OFFSET),
        instruction(BPF_JUMP_IF_EQUAL, 1, expected),
        instruction(BPF_RETURN, 0, u32::MAX),
        instruction(BPF_RETURN, 0, 0),
    ];
    set_option(fd, SocketOption::Filter(&instructions))
}

/// Offset of the type in `struct nlmsghdr`.
const MESSAGE_TYPE_OFFSET: u32 = 4;
/// `BPF_LD | BPF_H | BPF_ABS`.
const BPF_LOAD_HALF_WORD: u16 = 0x28;
/// `BPF_JMP | BPF_JEQ | BPF_K`.
const BPF_JUMP_IF_EQUAL: u16 = 0x15;
/// `BPF_RET | BPF_K`: how many bytes of the message are accepted.
const BPF_RETURN: u16 = 0x06;

/// `struct sock_filter`.
#[repr(C)]
struct BpfInstruction {
    code: u16,
    jump_true: u8,
    jump_false: u8,
    operand: u32,
}

/// `struct sock_fprog`.
#[repr(C)]
struct BpfProgram {
    length: u16,
    instructions: *const BpfInstruction,
}

/// A socket option with its value.
#[derive(Clone, Copy)]
enum SocketOption<'a> {
    /// A boolean option of `SOL_NETLINK`.
    On(c_int),
    /// `SO_ATTACH_FILTER`.
    Filter(&'a [BpfInstruction; 4]),
}

#[expect(unsafe_code, reason = "neither std nor rustix sets options of SOL_NETLINK, or attaches filters")]
fn set_option(fd: &OwnedFd, option: SocketOption<'_>) -> Result<(), Errno> {
    unsafe extern "C" {
        fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: u32) -> c_int;
    }
    let on: c_int = 1;
    let instructions = match option {
        SocketOption::On(_) => ptr::null(),
        SocketOption::Filter(instructions) => instructions.as_ptr(),
    };
    let program = BpfProgram { length: 4, instructions };
    let (level, name, value, length) = match option {
        SocketOption::On(name) => (SOL_NETLINK, name, (&raw const on).cast(), size_of::<c_int>()),
        SocketOption::Filter(_) => {
            (SOL_SOCKET, ATTACH_FILTER, (&raw const program).cast(), size_of::<BpfProgram>())
        }
    };
    // SAFETY: the signature is that of POSIX's setsockopt in the C library that std links (socklen_t is 32 bits
    // wide on Linux). The kernel only reads `length` bytes of `value`, and the four instructions that `program` points
    // to; `on`, `program` and the instructions outlive the call. `fd` is open.
    let result = unsafe { setsockopt(fd.as_raw_fd(), level, name, value, length as u32) };
    if result == 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
}

/// A socket for queries of netfilter by socket options, its interface before netlink. It is bound to the netns in which
/// it was opened.
#[derive(Debug)]
pub struct OptionSocket {
    fd: OwnedFd,
    level: c_int,
}

impl OptionSocket {
    /// Opens a socket in the calling thread's netns for the options of IPv6, or else of IPv4. Requires no privilege.
    ///
    /// # Errors
    ///
    /// The kernel does not open one.
    pub fn open(is_v6: bool) -> io::Result<Self> {
        let (family, level) =
            if is_v6 { (AddressFamily::INET6, SOL_IPV6) } else { (AddressFamily::INET, SOL_IP) };
        Ok(Self { fd: socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?, level })
    }

    /// Reads the option with this number into `value`, which contains the query.
    ///
    /// # Errors
    ///
    /// That of the kernel.
    #[expect(unsafe_code, reason = "neither std nor rustix reads options by number")]
    pub fn read_option(&self, number: i32, value: &mut [u8]) -> io::Result<()> {
        unsafe extern "C" {
            fn getsockopt(fd: c_int, level: c_int, name: c_int, to: *mut c_void, size: *mut u32) -> c_int;
        }
        let (fd, mut length) = (self.fd.as_raw_fd(), u32::try_from(value.len()).map_err(io::Error::other)?);
        // SAFETY: the signature is that of POSIX's getsockopt in the C library that std links (socklen_t is 32 bits wide
        // on Linux); the kernel writes at most `length` bytes to `value`, which has that many, and four to `length`; `fd`
        // is open.
        let result =
            unsafe { getsockopt(fd, self.level, number, value.as_mut_ptr().cast(), &raw mut length) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}
