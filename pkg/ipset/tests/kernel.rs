//! With the kernel, each test in its own network namespace; `ipset` reports the actual state.
#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::indexing_slicing, reason = "tests")]

#[path = "kernel/bulk.rs"]
mod bulk;
#[path = "../../netns/tests/fresh/create.rs"]
mod create;
#[path = "kernel/members.rs"]
mod members;
#[path = "kernel/rules.rs"]
mod rules;
#[path = "kernel/sets.rs"]
mod sets;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::{Command, Output};

use ipset::{Error, Family, IpsetCause, IpsetHandle, SetName, SetSpec};
use model::PodUid;
use netlink::Errno;

type Owners = BTreeMap<IpAddr, Option<PodUid>>;

/// Adds members without an owner.
fn add_ips(handle: &mut IpsetHandle, set: &SetName, ips: &[IpAddr]) -> Result<(), Error> {
    let nobody = PodUid::default();
    handle.add_owned(set, ips.iter().map(|ip| (*ip, &nobody)))
}

fn errno(error: &Error) -> Option<Errno> {
    std::error::Error::source(error)?.downcast_ref::<IpsetCause>()?.errno()
}

fn is_missing_set(error: &Error) -> bool {
    errno(error) == Some(Errno::NOENT)
}

fn is_busy(error: &Error) -> bool {
    matches!(errno(error), Some(Errno::BUSY | Errno(4100 | 4108)))
}

fn is_full(error: &Error) -> bool {
    errno(error) == Some(Errno(4352))
}

/// Runs a test inside a new network namespace. Without permission to create one it is skipped, with the reason on stderr; CI must
/// have it.
fn in_fresh_netns(test: impl FnOnce(&mut IpsetHandle) + Send) {
    let Some(netns) = create::create_or_skip() else { return };
    netns.run_in(|| test(&mut IpsetHandle::open().unwrap())).unwrap();
}

/// Runs a command in the calling thread's network namespace.
fn run(program: &str, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).output().unwrap()
}

/// Output of a command, which must succeed.
fn shown(line: &str) -> String {
    let (program, arguments) = line.split_once(' ').unwrap();
    let output = run(program, &arguments.split(' ').collect::<Vec<_>>());
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The lines of `ipset save` that add members.
fn saved(set: &SetName) -> Owners {
    let save = shown(&format!("ipset save {set}"));
    let lines = save.lines().filter_map(|line| line.strip_prefix(&format!("add {set} ")));
    let member = |line: &str| match line.split_once(" comment ") {
        Some((ip, owner)) => owned(ip, owner.strip_prefix('"').unwrap().strip_suffix('"').unwrap()),
        None => (line.parse().unwrap(), None),
    };
    lines.map(member).collect()
}

fn name(text: &str) -> SetName {
    SetName::new(text).unwrap()
}

fn owned(ip: &str, owner: &str) -> (IpAddr, Option<PodUid>) {
    (ip.parse().unwrap(), Some(owner.into()))
}

/// Creates a set.
fn made(handle: &mut IpsetHandle, set: &str, family: Family) -> SetName {
    handle.create_set(&SetSpec { name: name(set), family }).unwrap();
    name(set)
}

/// The first `count` addresses of a family, beginning with 1.
fn addresses(family: Family, count: u32) -> Vec<IpAddr> {
    let v4 = |number| IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + number));
    let v6 = |number| IpAddr::V6(Ipv6Addr::from_bits((0x2001_0db8 << 96) + u128::from(number)));
    (1..=count).map(|number| if family == Family::V4 { v4(number) } else { v6(number) }).collect()
}
