//! On the real file system, each with the kernel's events and without.

mod fallback;
mod time;

use std::fs;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::thread;

use tempfile::TempDir;

use super::*;

/// Far longer than any operation here, for waits that must not time out.
const LONG: Duration = Duration::from_secs(20);

/// A watcher of one directory without pending changes.
struct Fixture {
    directory: TempDir,
    watcher: DirectoryWatcher,
}

impl Fixture {
    fn both() -> [Self; 2] {
        let polling = DirectoryWatcher::with_inotify(None);
        [DirectoryWatcher::new(), polling].map(|watcher| {
            let fixture = Self { directory: tempfile::tempdir().unwrap(), watcher: watcher.unwrap() };
            fs::write(fixture.path("old"), "old").unwrap();
            fixture.started()
        })
    }

    fn started(mut self) -> Self {
        self.watcher.set_directories(&[self.path("")]);
        assert!(
            self.watcher.wait_for_change(LONG).unwrap().changed,
            "a directory that is new in the list counts as a change"
        );
        self.assert_quiet("start");
        self
    }

    fn path(&self, name: &str) -> PathBuf {
        if name.is_empty() { self.directory.path().to_owned() } else { self.directory.path().join(name) }
    }

    /// Long enough for pending changes to be observed, for waits that must time out.
    fn short(&self) -> Duration {
        if self.watcher.count_polled() > 0 { POLL + POLL / 2 } else { QUIET * 5 }
    }

    /// Runs one pass of a caller: passes the directories, then waits.
    fn assert_seen(&mut self, what: &str) {
        self.watcher.set_directories(&[self.path("")]);
        let wake = self.watcher.wait_for_change(LONG).unwrap();
        assert_eq!(wake, WakeReason { changed: true, woken: false }, "{what}: {:?}", self.watcher);
        self.assert_quiet(what);
    }

    fn assert_quiet(&mut self, after: &str) {
        self.watcher.set_directories(&[self.path("")]);
        assert_eq!(
            self.watcher.wait_for_change(self.short()).unwrap(),
            WakeReason::default(),
            "after {after}: {:?}",
            self.watcher
        );
    }
}

#[test]
fn every_kind_of_change_is_one_wake() {
    for mut fixture in Fixture::both() {
        let (old, new) = (fixture.path("old"), fixture.path("new"));
        fs::write(&old, "written in place").unwrap();
        fixture.assert_seen("written in place");
        fs::File::create(&new).unwrap();
        fixture.assert_seen("created");
        fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).unwrap();
        fixture.assert_seen("mode");
        fs::rename(&new, &old).unwrap();
        fixture.assert_seen("renamed over");
        fs::remove_file(&old).unwrap();
        fixture.assert_seen("removed");
        symlink("nowhere", &new).unwrap();
        fixture.assert_seen("symlink");
        fs::create_dir(fixture.path("sub")).unwrap();
        fixture.assert_seen("subdirectory");
    }
}

#[test]
fn renames_from_and_to_elsewhere_are_seen() {
    for mut fixture in Fixture::both() {
        let elsewhere = tempfile::tempdir_in(fixture.path("").parent().unwrap()).unwrap();
        fs::rename(fixture.path("old"), elsewhere.path().join("old")).unwrap();
        fixture.assert_seen("renamed away");
        fs::rename(elsewhere.path().join("old"), fixture.path("back")).unwrap();
        fixture.assert_seen("renamed in");
    }
}

#[test]
fn a_swap_of_a_projected_volume_is_seen() {
    for mut fixture in Fixture::both() {
        let version = |name: &str| {
            fs::create_dir(fixture.path(name)).unwrap();
            fs::write(fixture.path(name).join("token"), name).unwrap();
        };
        version("..1");
        version("..2");
        symlink("..1", fixture.path("..data")).unwrap();
        symlink("..data/token", fixture.path("token")).unwrap();
        fixture.assert_seen("made");
        symlink("..2", fixture.path("..data_tmp")).unwrap();
        fs::rename(fixture.path("..data_tmp"), fixture.path("..data")).unwrap();
        fixture.assert_seen("swapped");
        assert_eq!(fs::read_to_string(fixture.path("token")).unwrap(), "..2");
    }
}

#[test]
fn what_happened_before_a_wait_is_seen_by_it() {
    for mut fixture in Fixture::both() {
        fixture.watcher.set_directories(&[fixture.path("")]);
        fs::write(fixture.path("new"), "new").unwrap();
        fs::remove_file(fixture.path("new")).unwrap();
        fs::write(fixture.path("old"), "changed").unwrap();
        assert!(fixture.watcher.wait_for_change(LONG).unwrap().changed);
        fixture.assert_quiet("all of it");
    }
}

#[test]
fn what_came_and_went_is_seen() {
    for mut fixture in Fixture::both() {
        fs::write(fixture.path("new"), "new").unwrap();
        fs::remove_file(fixture.path("new")).unwrap();
        fixture.assert_seen("made and removed");
    }
}

#[test]
fn lost_events_count_as_a_change() {
    let [mut fixture, _] = Fixture::both();
    let most = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    let most: usize = most.trim().parse().unwrap();
    // Events of an unknown watch descriptor fill the queue: alone they would not count.
    let other = tempfile::tempdir().unwrap();
    fixture.watcher.inotify.as_ref().unwrap().add_watch(other.path()).unwrap();
    fs::write(other.path().join("x"), "x").unwrap();
    fixture.assert_quiet("events of others");
    for i in 0..=most {
        // Two names alternating: consecutive equal events are merged.
        fs::File::create(other.path().join(format!("{}", i % 2))).unwrap();
    }
    fixture.assert_seen("overflow");
}

#[test]
fn events_of_directories_that_are_not_told_any_more_do_not_wake() {
    for mut fixture in Fixture::both() {
        let other = tempfile::tempdir().unwrap();
        fixture.watcher.set_directories(&[fixture.path(""), other.path().to_owned()]);
        assert!(fixture.watcher.wait_for_change(LONG).unwrap().changed);
        fs::write(other.path().join("x"), "x").unwrap();
        fixture.assert_quiet("taken from the list");
        if let Some(inotify) = &fixture.watcher.inotify {
            let info = format!("/proc/self/fdinfo/{}", inotify.as_fd().as_raw_fd());
            assert_eq!(
                fs::read_to_string(info).unwrap().matches("inotify wd:").count(),
                1,
                "the watch is kept"
            );
        }
        fs::write(other.path().join("y"), "y").unwrap();
        fixture.assert_quiet("taken from the list before");
    }
}

#[test]
fn one_directory_under_two_names_stays_watched_when_one_goes() {
    for mut fixture in Fixture::both() {
        let link = tempfile::tempdir().unwrap();
        let alias = link.path().join("alias");
        symlink(fixture.path(""), &alias).unwrap();
        fixture.watcher.set_directories(&[fixture.path(""), alias, fixture.path("")]);
        assert!(fixture.watcher.wait_for_change(LONG).unwrap().changed);
        fixture.assert_quiet("the alias was taken from the list");
        fs::write(fixture.path("new"), "x").unwrap();
        fixture.assert_seen("written");
    }
}

#[test]
fn a_directory_made_anew_is_watched_again() {
    for mut fixture in Fixture::both() {
        let (directory, moved) = (fixture.path("watched"), fixture.path("moved"));
        let watched = std::slice::from_ref(&directory);
        fs::create_dir(&directory).unwrap();
        fixture.watcher.set_directories(watched);
        assert!(fixture.watcher.wait_for_change(LONG).unwrap().changed);
        for way in ["removed", "moved"] {
            // Between two calls of watch, and so quickly that it may get the same inode number.
            if way == "removed" { fs::remove_dir(&directory) } else { fs::rename(&directory, &moved) }
                .unwrap();
            fs::create_dir(&directory).unwrap();
            fixture.watcher.set_directories(watched);
            assert!(fixture.watcher.wait_for_change(LONG).unwrap().changed, "{way}");
            fixture.watcher.set_directories(watched);
            assert_eq!(
                fixture.watcher.wait_for_change(fixture.short()).unwrap(),
                WakeReason::default(),
                "{way}"
            );
            fs::write(directory.join("new"), "x").unwrap();
            assert!(
                fixture.watcher.wait_for_change(LONG).unwrap().changed,
                "{way}, without another call of watch"
            );
            fs::remove_file(directory.join("new")).unwrap();
            assert!(fixture.watcher.wait_for_change(LONG).unwrap().changed, "{way}");
        }
        let old = moved.join("new");
        fs::write(old, "x").unwrap();
        assert_eq!(
            fixture.watcher.wait_for_change(fixture.short()).unwrap(),
            WakeReason::default(),
            "the one that was moved away"
        );
    }
}

#[test]
fn a_directory_that_went_is_told_and_waited_for() {
    for mut fixture in Fixture::both() {
        let directory = fixture.path("later/watched");
        let watched = std::slice::from_ref(&directory);
        fixture.watcher.set_directories(watched);
        assert!(fixture.watcher.wait_for_change(LONG).unwrap().changed, "new in the list");
        for _ in 0..2 {
            assert_eq!(
                fixture.watcher.wait_for_change(fixture.short()).unwrap(),
                WakeReason::default(),
                "it is missing"
            );
            assert_eq!(fixture.watcher.count_polled(), 1);
            fs::create_dir_all(&directory).unwrap();
            assert!(fixture.watcher.wait_for_change(LONG).unwrap().changed, "it appeared");
            assert_eq!(fixture.watcher.count_polled() == 0, fixture.watcher.inotify.is_some());
            fs::write(directory.join("new"), "x").unwrap();
            assert!(fixture.watcher.wait_for_change(LONG).unwrap().changed, "written there");
            fs::remove_dir_all(fixture.path("later")).unwrap();
            assert!(fixture.watcher.wait_for_change(LONG).unwrap().changed, "it went");
        }
    }
}

#[test]
fn a_directory_that_is_moved_away_or_removed_ends_a_wait() {
    for mut fixture in Fixture::both() {
        let directory = fixture.path("watched");
        let moved = tempfile::tempdir().unwrap();
        for way in ["moved", "removed"] {
            fs::create_dir(&directory).unwrap();
            fixture.watcher.set_directories(std::slice::from_ref(&directory));
            assert!(fixture.watcher.wait_for_change(LONG).unwrap().changed);
            assert_eq!(fixture.watcher.wait_for_change(fixture.short()).unwrap(), WakeReason::default());
            match way {
                "moved" => fs::rename(&directory, moved.path().join("x")).unwrap(),
                _ => fs::remove_dir(&directory).unwrap(),
            }
            assert!(fixture.watcher.wait_for_change(LONG).unwrap().changed, "{way}");
            assert_eq!(fixture.watcher.count_polled(), 1, "{way}: waited for, without another call of watch");
        }
    }
}

#[test]
fn a_waker_ends_the_running_and_the_next_wait() {
    for mut fixture in Fixture::both() {
        let waker = fixture.watcher.waker();
        let thread = thread::spawn(move || waker.wake());
        assert_eq!(
            fixture.watcher.wait_for_change(LONG).unwrap(),
            WakeReason { changed: false, woken: true }
        );
        thread.join().unwrap();
        let waker = fixture.watcher.waker();
        waker.wake();
        waker.clone().wake();
        assert_eq!(
            fixture.watcher.wait_for_change(LONG).unwrap(),
            WakeReason { changed: false, woken: true }
        );
        fixture.assert_quiet("two calls, which are one");
        fs::write(fixture.path("new"), "x").unwrap();
        waker.wake();
        let mut all = WakeReason::default();
        while all != (WakeReason { changed: true, woken: true }) {
            let wake = fixture.watcher.wait_for_change(LONG).unwrap();
            assert_ne!(wake, WakeReason::default(), "lost: {all:?}");
            all |= wake;
        }
    }
}

#[test]
fn looking_wakes_nobody_and_writing_wakes_once() {
    for mut fixture in Fixture::both() {
        let (directory, file) = (fixture.path(""), fixture.path("old"));
        assert_eq!(crate::write(&file, b"mine", 0o640).unwrap(), crate::WriteOutcome::Replaced);
        fixture.assert_seen("written");
        assert_eq!(crate::write(&file, b"mine", 0o640).unwrap(), crate::WriteOutcome::Unchanged);
        assert_eq!(crate::copy(&file, &file).unwrap(), crate::WriteOutcome::Unchanged);
        assert_eq!(crate::read(&file, 10).unwrap(), b"mine");
        assert!(crate::fingerprint(&file).unwrap().is_some());
        assert_eq!(crate::resolve(&directory, "old".as_ref()).unwrap(), file);
        assert_eq!(crate::list(&directory).unwrap(), ["old"]);
        assert!(crate::remove_stale(&directory, "old").unwrap().is_empty());
        assert!(!crate::remove(&fixture.path("missing")).unwrap());
        crate::check_writable(&directory).unwrap();
        fixture.assert_quiet("looking");
    }
}
