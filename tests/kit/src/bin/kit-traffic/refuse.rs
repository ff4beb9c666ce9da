//! Executes another program, with a seccomp filter that makes system calls of it and its children fail: `ipv6`, IPv6 sockets, with
//! `EAFNOSUPPORT`, as on a kernel booted with `ipv6.disable=1`; `netfilter`, netlink sockets of netfilter, with `EPROTONOSUPPORT`,
//! as without nfnetlink; `netns`, new network namespaces, with `EPERM`, as without CAP_SYS_ADMIN.
#![allow(unsafe_code, reason = "nothing that tests have offers seccomp")]

use std::ffi::{c_int, c_ulong};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

const PR_SET_SECCOMP: c_int = 22;
const SECCOMP_MODE_FILTER: c_ulong = 2;
/// `socket(2)` and `unshare(2)`.
#[cfg(target_arch = "x86_64")]
const CALLS: [u32; 2] = [41, 272];
#[cfg(not(target_arch = "x86_64"))]
const CALLS: [u32; 2] = [198, 97];
const AF_INET6: u32 = 10;
const NETLINK_NETFILTER: u32 = 12;
const CLONE_NEWNET: u32 = 0x4000_0000;
const ALLOW: u32 = 0x7fff_0000;
const REFUSE: u32 = 0x0005_0000;
/// Offset of the arguments in `struct seccomp_data`, 8 bytes each (little endian); the number of the call is at 0.
const ARGUMENTS: u32 = 16;
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

/// The call, the index and the value of an argument, and the error.
fn refused(what: &str) -> (u32, u32, u32, u32) {
    let [socket, unshare] = CALLS;
    match what {
        "ipv6" => (socket, 0, AF_INET6, 97),
        "netfilter" => (socket, 2, NETLINK_NETFILTER, 93),
        "netns" => (unshare, 0, CLONE_NEWNET, 1),
        other => panic!("{other:?} cannot be refused"),
    }
}

/// Returns only if it fails, with the error.
pub(crate) fn run(mut words: impl Iterator<Item = String>) -> io::Error {
    let (call, argument, value, errno) = refused(&words.next().expect("something to refuse"));
    let step = |code, then, or_else, value| Instruction { code, then, or_else, value };
    let filter = [
        step(LOAD, 0, 0, 0),
        step(IF_EQUAL, 0, 3, call),
        step(LOAD, 0, 0, ARGUMENTS + 8 * argument),
        step(IF_EQUAL, 0, 1, value),
        step(RETURN, 0, 0, REFUSE | errno),
        step(RETURN, 0, 0, ALLOW),
    ];
    let program = Program { length: 6, instructions: filter.as_ptr() };
    // SAFETY: the kernel copies the program, whose length is correct, before the call returns.
    if unsafe { prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &raw const program) } != 0 {
        return io::Error::last_os_error();
    }
    Command::new(words.next().expect("a program")).args(words).exec()
}
