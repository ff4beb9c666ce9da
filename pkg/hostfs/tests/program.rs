//! A program that is replaced while it runs. Alone in its process: a child of another test before its exec would hold the new
//! program open for writing, so that it could not be executed.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use hostfs::{WriteOutcome, fingerprint};

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn a_program_is_copied_while_it_runs() {
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().join("program");
    assert_eq!(hostfs::copy("/bin/sleep".as_ref(), &target).unwrap(), WriteOutcome::Replaced);
    assert_eq!(mode(&target), fs::metadata("/bin/sleep").unwrap().mode() & 0o7777);
    let mut running = Command::new(&target).arg("60").stdin(Stdio::null()).spawn().unwrap();
    let before = fingerprint(&target).unwrap();
    assert_eq!(hostfs::copy("/bin/sleep".as_ref(), &target).unwrap(), WriteOutcome::Unchanged);
    assert_eq!(fingerprint(&target).unwrap(), before);
    assert_eq!(hostfs::copy("/bin/true".as_ref(), &target).unwrap(), WriteOutcome::Replaced);
    assert!(Command::new(&target).status().unwrap().success(), "runs at once");
    assert!(running.try_wait().unwrap().is_none(), "what ran goes on running");
    running.kill().unwrap();
    running.wait().unwrap();
    assert_eq!(fs::read(&target).unwrap(), fs::read("/bin/true").unwrap());
    assert_eq!(hostfs::list(directory.path()).unwrap(), ["program"]);
}
