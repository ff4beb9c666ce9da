//! Memory and descriptors of watches, and behaviour without them: one test at a time in its own process, whose figures it reads.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

#[path = "../../netns/tests/fresh/create.rs"]
mod create;

use std::fs::{self, File};
use std::iter;
use std::sync::{Mutex, PoisonError};

use netns_changes::ChangeWatcher;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use create::create_or_skip;

const NAMESPACES: usize = 250;

/// Bytes of anonymous memory of the process.
fn anonymous_memory() -> usize {
    let rollup = fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = rollup.lines().find_map(|line| line.strip_prefix("Anonymous:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

#[test]
fn two_hundred_and_fifty_namespaces_cost_little() {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(all) = (0..NAMESPACES).map(|_| create_or_skip()).collect::<Option<Vec<_>>>() else { return };
    let watcher = ChangeWatcher::new().unwrap();
    let key = |number: usize| format!("7b1d1a52-6ffe-4f6c-9e0c-{number:012}");
    let (memory, open) = (anonymous_memory(), descriptors());
    let watch = |(number, netns)| watcher.watch(key(number), netns).unwrap();
    let watches: Vec<_> = all.iter().enumerate().map(watch).collect();
    let grown = anonymous_memory().saturating_sub(memory);
    let opened = descriptors() - open;
    eprintln!("{NAMESPACES} namespaces: {} KiB of memory, {opened} descriptors", grown / 1024);
    assert!(grown < 512 * 1024, "{grown} bytes");
    assert_eq!((opened, watcher.len()), (2 * NAMESPACES, NAMESPACES));
    drop(watches);
    assert_eq!((descriptors(), watcher.len()), (open, 0));
}

#[test]
fn a_namespace_that_cannot_be_watched_is_an_error_with_its_cause() {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let (Some(first), Some(second)) = (create_or_skip(), create_or_skip()) else { return };
    let watcher = ChangeWatcher::new().unwrap();
    let _watch = watcher.watch("pod", &first).unwrap();
    let (limits, open) = (getrlimit(Resource::Nofile), descriptors());
    setrlimit(Resource::Nofile, Rlimit { current: Some(256), ..limits }).unwrap();
    let mut others: Vec<File> = iter::repeat_with(|| File::open("/dev/null")).map_while(Result::ok).collect();
    others.pop(); // leaves a descriptor for the first of the two sockets
    let failed = watcher.watch("pod", &second);
    drop(others);
    setrlimit(Resource::Nofile, limits).unwrap();
    assert_eq!(
        failed.unwrap_err().to_string(),
        "cannot listen for changes of links, addresses and routes: cannot open a netlink socket: Too many open files (os error 24)"
    );
    assert_eq!((descriptors(), watcher.len()), (open, 1));
}

#[test]
fn watches_leave_descriptors_for_other_work() {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(netns) = create_or_skip() else { return };
    let watchers = [(); 2].map(|()| ChangeWatcher::new().unwrap());
    let limits = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), ..limits }).unwrap();
    let one_after_the_other = watchers.iter().cycle().take(17);
    let watches: Vec<_> = one_after_the_other.map(|watcher| watcher.watch("pod", &netns)).collect();
    setrlimit(Resource::Nofile, limits).unwrap();
    assert_eq!(watchers.each_ref().map(ChangeWatcher::len), [8, 8]);
    let message = watches.into_iter().find_map(Result::err).unwrap().to_string();
    assert_eq!(message, "watched network namespaces may take 32 file descriptors at most");
    assert!(watchers.iter().all(ChangeWatcher::is_empty));
}
