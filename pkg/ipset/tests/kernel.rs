//! Against the kernel, each test in a network namespace of its own; `ipset` is the witness of what is there.
#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::indexing_slicing, reason = "tests")]

#[path = "kernel/bulk.rs"]
mod bulk;
#[path = "kernel/members.rs"]
mod members;
#[path = "kernel/rules.rs"]
mod rules;
#[path = "kernel/sets.rs"]
mod sets;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::{Command, Output};
use std::slice;

use ipset::{Comment, CreateOutcome, Error, Family, IpsetCause, IpsetHandle, SetEntry, SetName, SetSpec};
use netlink::Errno;
use netns::Netns;

/// Whether a member was added, or was one.
#[derive(Debug, PartialEq, Eq)]
enum AddOutcome {
    Yes,
    Existed,
}

trait AddOne {
    /// Adds a single member.
    fn add(&mut self, set: &SetSpec, entry: &SetEntry) -> Result<AddOutcome, Error>;
}

impl AddOne for IpsetHandle {
    fn add(&mut self, set: &SetSpec, entry: &SetEntry) -> Result<AddOutcome, Error> {
        let mut bulk = self.add_all(set, slice::from_ref(entry))?;
        match (bulk.failed.pop(), bulk.added, bulk.existed) {
            (Some(failed), 0, 0) => Err(failed.error),
            (None, 1, 0) => Ok(AddOutcome::Yes),
            (None, 0, 1) => Ok(AddOutcome::Existed),
            other => panic!("one member: {other:?}"),
        }
    }
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

/// Runs a test inside a new netns. Where we may not make one it is skipped, with the reason on stderr; CI must be able
/// to.
fn in_fresh_netns(test: impl FnOnce(&mut IpsetHandle) + Send) {
    let netns = match Netns::create() {
        Ok(netns) => netns,
        Err(reason) if std::env::var_os("CI").is_some_and(|ci| ci == "true") => panic!("{reason}"),
        Err(reason) => return eprintln!("skipped: {reason}"),
    };
    netns.run_in(|| test(&mut IpsetHandle::open().unwrap())).unwrap();
}

/// Runs a command in the calling thread's netns.
fn run(program: &str, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).output().unwrap()
}

/// The same of a command that must succeed: what it prints.
fn shown(line: &str) -> String {
    let (program, arguments) = line.split_once(' ').unwrap();
    let output = run(program, &arguments.split(' ').collect::<Vec<_>>());
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The lines of `ipset save` that add members, in its order, as entries.
fn saved(set: &SetName) -> Vec<SetEntry> {
    let save = shown(&format!("ipset save {set}"));
    let lines = save.lines().filter_map(|line| line.strip_prefix(&format!("add {set} ")));
    let entry = |line: &str| match line.split_once(" comment ") {
        Some((ip, comment)) => noted(ip, comment.strip_prefix('"').unwrap().strip_suffix('"').unwrap()),
        None => SetEntry::new(line.parse().unwrap()),
    };
    lines.map(entry).collect()
}

fn name(text: &str) -> SetName {
    SetName::new(text).unwrap()
}

fn noted(ip: &str, comment: &str) -> SetEntry {
    SetEntry::with_comment(ip.parse().unwrap(), Comment::new(comment).unwrap())
}

/// Makes a set that was not there.
fn made(handle: &mut IpsetHandle, spec: SetSpec) -> SetSpec {
    assert_eq!(handle.create_set(&spec).unwrap(), CreateOutcome::Yes);
    spec
}

/// The first so many addresses of a family, beginning with 1.
fn addresses(family: Family, count: u32) -> Vec<IpAddr> {
    let v4 = |number| IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + number));
    let v6 = |number| IpAddr::V6(Ipv6Addr::from_bits((0x2001_0db8 << 96) + u128::from(number)));
    (1..=count).map(|number| if family == Family::V4 { v4(number) } else { v6(number) }).collect()
}

/// Members of a set, sorted.
fn sorted(mut entries: Vec<SetEntry>) -> Vec<SetEntry> {
    entries.sort();
    entries
}
