//! Writers that are killed at any moment, and cleaning up beside running ones.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::env;
use std::fs::{self, Permissions};
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use hostfs::WriteOutcome;

/// Set in the process that is killed: its directory.
const DIRECTORY: &str = "HOSTFS_TEST_DIRECTORY";
/// Approximate number of bytes.
const SIZE: usize = 1_000_000;
const KILLS: u64 = 60;

/// Content that distinguishes a complete file of round `n` from every other and from every part of one.
fn content(round: usize) -> Vec<u8> {
    vec![u8::try_from(round % 251).unwrap(); SIZE + round % 251]
}

fn assert_complete(file: &Path, mode: u32) -> usize {
    let found = fs::read(file).unwrap();
    let round = usize::from(*found.first().unwrap());
    assert!(found == content(round), "{} is of {} bytes: torn", file.display(), found.len());
    assert_eq!(fs::metadata(file).unwrap().mode() & 0o7777, mode);
    round
}

/// Runs one of the writers below in a process of its own, until it reports that it writes.
fn start(test: &str, directory: &Path) -> Child {
    let mut child = Command::new(env::current_exe().unwrap());
    child.args(["--exact", test, "--nocapture"]).env(DIRECTORY, directory).stdout(Stdio::piped());
    let mut child = child.spawn().unwrap();
    let said = BufReader::new(child.stdout.as_mut().unwrap())
        .lines()
        .find(|line| line.as_ref().unwrap().contains("writing"));
    assert!(said.is_some(), "{test} did not start");
    child
}

fn kill_again_and_again(test: &str, name: &str, mode: u32) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join(name);
    hostfs::write(&file, &content(0), mode).unwrap();
    let sources = sources(directory.path());
    let (mut left, mut rounds) = (0, Vec::new());
    for kill in 0..KILLS {
        let mut child = start(test, directory.path());
        // A moment that differs from kill to kill: the timing is tested.
        thread::sleep(Duration::from_micros(kill * 7919 % 20_000));
        child.kill().unwrap();
        child.wait().unwrap();
        rounds.push(assert_complete(&file, mode));
        let removed = hostfs::remove_stale(directory.path(), name).unwrap();
        left += removed.len();
        assert!(removed.len() <= 1, "one writer, {removed:?}");
        let mut names = hostfs::list(directory.path()).unwrap();
        names.retain(|found| !sources.contains(&found.to_str().unwrap()));
        assert_eq!(names, [name], "more than the file is left");
    }
    rounds.sort_unstable();
    rounds.dedup();
    assert!(left >= 5, "of {KILLS} kills {left} were in the middle of a write");
    assert!(rounds.len() >= 2, "nothing was written: {rounds:?}");
}

/// Two programs, for the writer that copies.
fn sources(directory: &Path) -> [&'static str; 2] {
    for (name, round) in [("one", 1), ("two", 2)] {
        fs::write(directory.join(name), content(round)).unwrap();
        fs::set_permissions(directory.join(name), Permissions::from_mode(0o755)).unwrap();
    }
    ["one", "two"]
}

#[test]
fn a_killed_write_leaves_the_old_or_the_new_file() {
    let Some(directory) = env::var_os(DIRECTORY) else {
        return kill_again_and_again("a_killed_write_leaves_the_old_or_the_new_file", "file", 0o644);
    };
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
    let file = Path::new(&directory).join("file");
    let first = usize::from(fs::read(&file).unwrap()[0]) + 1;
    println!("writing");
    for round in first.. {
        assert_eq!(hostfs::write(&file, &content(round), 0o644).unwrap(), WriteOutcome::Replaced);
    }
}

#[test]
fn a_killed_copy_leaves_the_old_or_the_new_program() {
    let Some(directory) = env::var_os(DIRECTORY) else {
        return kill_again_and_again("a_killed_copy_leaves_the_old_or_the_new_program", "program", 0o755);
    };
    let at = |name| Path::new(&directory).join(name);
    println!("writing");
    for source in ["one", "two"].into_iter().cycle() {
        hostfs::copy(&at(source), &at("program")).unwrap();
    }
}

#[test]
fn cleaning_up_beside_a_writer_fails_no_write() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                hostfs::remove_stale(directory.path(), "file").unwrap();
            }
        });
        for round in 0..3000_u32 {
            let written = hostfs::write(&file, &round.to_ne_bytes(), 0o644);
            done.store(written.is_err() || round == 2999, Ordering::Relaxed);
            written.unwrap();
        }
    });
    assert_eq!(hostfs::list(directory.path()).unwrap(), ["file"]);
}
