//! Becomes another program, for which and for whose children no socket of IPv6 can be made: `EAFNOSUPPORT`, as with a
//! kernel that was started with `ipv6.disable=1`.
#![allow(unsafe_code, reason = "nothing that tests have offers seccomp")]

use std::ffi::{c_int, c_ulong};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

const PR_SET_SECCOMP: c_int = 22;
const SECCOMP_MODE_FILTER: c_ulong = 2;
/// `socket(2)`.
#[cfg(target_arch = "x86_64")]
const SOCKET: u32 = 41;
#[cfg(not(target_arch = "x86_64"))]
const SOCKET: u32 = 198;
const AF_INET6: u32 = 10;
const ALLOW: u32 = 0x7fff_0000;
const REFUSE: u32 = 0x0005_0000 | 97;
/// `BPF_LD | BPF_W | BPF_ABS`, `BPF_JMP | BPF_JEQ | BPF_K`, `BPF_RET | BPF_K`.
const LOAD: u16 = 0x20;
const IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;

/// `struct sock_filter`.
#[repr(C)]
struct Instruction {
    code: u16,
    then: u8,
    or_else: u8,
    value: u32,
}

/// `struct sock_fprog`.
#[repr(C)]
struct Program {
    length: u16,
    instructions: *const Instruction,
}

unsafe extern "C" {
    fn prctl(option: c_int, ...) -> c_int;
}

/// Never returns but with the reason why not.
pub(crate) fn run(mut words: impl Iterator<Item = String>) -> io::Error {
    let step = |code, then, or_else, value| Instruction { code, then, or_else, value };
    // `struct seccomp_data`: the number of the call is at 0, the first argument at 16 (little endian).
    let filter = [
        step(LOAD, 0, 0, 0),
        step(IF_EQUAL, 0, 3, SOCKET),
        step(LOAD, 0, 0, 16),
        step(IF_EQUAL, 0, 1, AF_INET6),
        step(RETURN, 0, 0, REFUSE),
        step(RETURN, 0, 0, ALLOW),
    ];
    let program = Program { length: 6, instructions: filter.as_ptr() };
    // SAFETY: the kernel copies the program, which is as long as it says, before the call returns.
    if unsafe { prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &raw const program) } != 0 {
        return io::Error::last_os_error();
    }
    Command::new(words.next().expect("a program")).args(words).exec()
}
