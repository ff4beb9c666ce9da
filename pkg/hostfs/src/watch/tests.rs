//! On the real file system, each once with the kernel's events and once without.

mod fallback;
mod time;

use std::fs;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::thread;

use tempfile::TempDir;

use super::*;

/// Far more than anything here takes, for waits that must not end by it.
const LONG: Duration = Duration::from_secs(20);

/// A watcher of one directory, quiet.
struct Scene {
    directory: TempDir,
    watcher: DirectoryWatcher,
}

impl Scene {
    fn both() -> [Self; 2] {
        let polling = DirectoryWatcher::with(Err("switched off".to_owned()));
        [DirectoryWatcher::new(), polling].map(|watcher| {
            let scene = Self { directory: tempfile::tempdir().unwrap(), watcher: watcher.unwrap() };
            fs::write(scene.path("old"), "old").unwrap();
            scene.started()
        })
    }

    fn started(mut self) -> Self {
        self.watcher.watch(&[self.path("")]);
        assert!(
            self.watcher.wait(LONG).unwrap().changed,
            "a directory that is new in the list counts as a change"
        );
        self.assert_quiet("start");
        self
    }

    fn path(&self, name: &str) -> PathBuf {
        if name.is_empty() { self.directory.path().to_owned() } else { self.directory.path().join(name) }
    }

    /// Long enough for what is pending to be seen, for waits that must end by it.
    fn short(&self) -> Duration {
        if self.watcher.any_polled() { POLL + POLL / 2 } else { QUIET * 5 }
    }

    /// One pass of a caller: tells the directories, then waits.
    fn assert_seen(&mut self, what: &str) {
        self.watcher.watch(&[self.path("")]);
        let wake = self.watcher.wait(LONG).unwrap();
        assert_eq!(wake, WakeReason { changed: true, woken: false }, "{what}: {:?}", self.watcher);
        self.assert_quiet(what);
    }

    fn assert_quiet(&mut self, after: &str) {
        self.watcher.watch(&[self.path("")]);
        assert_eq!(
            self.watcher.wait(self.short()).unwrap(),
            WakeReason::default(),
            "after {after}: {:?}",
            self.watcher
        );
    }
}

#[test]
fn every_kind_of_change_is_one_wake() {
    for mut scene in Scene::both() {
        let (old, new) = (scene.path("old"), scene.path("new"));
        fs::write(&old, "written in place").unwrap();
        scene.assert_seen("written in place");
        fs::File::create(&new).unwrap();
        scene.assert_seen("created");
        fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).unwrap();
        scene.assert_seen("mode");
        fs::rename(&new, &old).unwrap();
        scene.assert_seen("renamed over");
        fs::remove_file(&old).unwrap();
        scene.assert_seen("removed");
        symlink("nowhere", &new).unwrap();
        scene.assert_seen("symlink");
        fs::create_dir(scene.path("sub")).unwrap();
        scene.assert_seen("subdirectory");
    }
}

#[test]
fn renames_from_and_to_elsewhere_are_seen() {
    for mut scene in Scene::both() {
        let elsewhere = tempfile::tempdir_in(scene.path("").parent().unwrap()).unwrap();
        fs::rename(scene.path("old"), elsewhere.path().join("old")).unwrap();
        scene.assert_seen("renamed away");
        fs::rename(elsewhere.path().join("old"), scene.path("back")).unwrap();
        scene.assert_seen("renamed in");
    }
}

#[test]
fn a_swap_of_a_projected_volume_is_seen() {
    for mut scene in Scene::both() {
        let version = |name: &str| {
            fs::create_dir(scene.path(name)).unwrap();
            fs::write(scene.path(name).join("token"), name).unwrap();
        };
        version("..1");
        version("..2");
        symlink("..1", scene.path("..data")).unwrap();
        symlink("..data/token", scene.path("token")).unwrap();
        scene.assert_seen("made");
        symlink("..2", scene.path("..data_tmp")).unwrap();
        fs::rename(scene.path("..data_tmp"), scene.path("..data")).unwrap();
        scene.assert_seen("swapped");
        assert_eq!(fs::read_to_string(scene.path("token")).unwrap(), "..2");
    }
}

#[test]
fn what_happened_before_a_wait_is_seen_by_it() {
    for mut scene in Scene::both() {
        scene.watcher.watch(&[scene.path("")]);
        fs::write(scene.path("new"), "new").unwrap();
        fs::remove_file(scene.path("new")).unwrap();
        fs::write(scene.path("old"), "changed").unwrap();
        assert!(scene.watcher.wait(LONG).unwrap().changed);
        scene.assert_quiet("all of it");
    }
}

#[test]
fn what_came_and_went_is_seen() {
    for mut scene in Scene::both() {
        fs::write(scene.path("new"), "new").unwrap();
        fs::remove_file(scene.path("new")).unwrap();
        scene.assert_seen("made and removed");
    }
}

#[test]
fn lost_events_count_as_a_change() {
    let [mut scene, _] = Scene::both();
    let most = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    let most: usize = most.trim().parse().unwrap();
    // Events of a watch that the watcher does not know fill its queue: alone they would not count.
    let other = tempfile::tempdir().unwrap();
    scene.watcher.inotify.as_ref().unwrap().add(other.path()).unwrap();
    fs::write(other.path().join("x"), "x").unwrap();
    scene.assert_quiet("events of others");
    for i in 0..=most {
        // Two names in turn: equal events one after the other are merged.
        fs::File::create(other.path().join(format!("{}", i % 2))).unwrap();
    }
    scene.assert_seen("overflow");
}

#[test]
fn events_of_directories_that_are_not_told_any_more_do_not_wake() {
    for mut scene in Scene::both() {
        let other = tempfile::tempdir().unwrap();
        scene.watcher.watch(&[scene.path(""), other.path().to_owned()]);
        assert!(scene.watcher.wait(LONG).unwrap().changed);
        fs::write(other.path().join("x"), "x").unwrap();
        scene.assert_quiet("taken from the list");
        if let Ok(inotify) = &scene.watcher.inotify {
            let info = format!("/proc/self/fdinfo/{}", inotify.as_fd().as_raw_fd());
            assert_eq!(
                fs::read_to_string(info).unwrap().matches("inotify wd:").count(),
                1,
                "the watch is kept"
            );
        }
        fs::write(other.path().join("y"), "y").unwrap();
        scene.assert_quiet("taken from the list before");
    }
}

#[test]
fn one_directory_under_two_names_stays_watched_when_one_goes() {
    for mut scene in Scene::both() {
        let link = tempfile::tempdir().unwrap();
        let alias = link.path().join("alias");
        symlink(scene.path(""), &alias).unwrap();
        scene.watcher.watch(&[scene.path(""), alias, scene.path("")]);
        assert!(scene.watcher.wait(LONG).unwrap().changed);
        scene.assert_quiet("the alias was taken from the list");
        fs::write(scene.path("new"), "x").unwrap();
        scene.assert_seen("written");
    }
}

#[test]
fn a_directory_made_anew_is_watched_again() {
    for mut scene in Scene::both() {
        let (directory, moved) = (scene.path("watched"), scene.path("moved"));
        let watched = std::slice::from_ref(&directory);
        fs::create_dir(&directory).unwrap();
        scene.watcher.watch(watched);
        assert!(scene.watcher.wait(LONG).unwrap().changed);
        for way in ["removed", "moved"] {
            // Between two calls of watch, and so fast that it may get the same inode number.
            if way == "removed" { fs::remove_dir(&directory) } else { fs::rename(&directory, &moved) }
                .unwrap();
            fs::create_dir(&directory).unwrap();
            scene.watcher.watch(watched);
            assert!(scene.watcher.wait(LONG).unwrap().changed, "{way}");
            scene.watcher.watch(watched);
            assert_eq!(scene.watcher.wait(scene.short()).unwrap(), WakeReason::default(), "{way}");
            fs::write(directory.join("new"), "x").unwrap();
            assert!(scene.watcher.wait(LONG).unwrap().changed, "{way}, without another call of watch");
            fs::remove_file(directory.join("new")).unwrap();
            assert!(scene.watcher.wait(LONG).unwrap().changed, "{way}");
        }
        let old = moved.join("new");
        fs::write(old, "x").unwrap();
        assert_eq!(
            scene.watcher.wait(scene.short()).unwrap(),
            WakeReason::default(),
            "the one that was moved away"
        );
    }
}

#[test]
fn a_directory_that_went_is_told_and_waited_for() {
    for mut scene in Scene::both() {
        let directory = scene.path("later/watched");
        let watched = std::slice::from_ref(&directory);
        scene.watcher.watch(watched);
        assert!(scene.watcher.wait(LONG).unwrap().changed, "new in the list");
        for _ in 0..2 {
            assert_eq!(scene.watcher.wait(scene.short()).unwrap(), WakeReason::default(), "it is missing");
            assert_eq!(scene.watcher.polled().len(), 1);
            fs::create_dir_all(&directory).unwrap();
            assert!(scene.watcher.wait(LONG).unwrap().changed, "it appeared");
            assert_eq!(scene.watcher.polled().is_empty(), scene.watcher.inotify.is_ok());
            fs::write(directory.join("new"), "x").unwrap();
            assert!(scene.watcher.wait(LONG).unwrap().changed, "written there");
            fs::remove_dir_all(scene.path("later")).unwrap();
            assert!(scene.watcher.wait(LONG).unwrap().changed, "it went");
        }
    }
}

#[test]
fn a_directory_that_is_moved_away_or_removed_ends_a_wait() {
    for mut scene in Scene::both() {
        let directory = scene.path("watched");
        let moved = tempfile::tempdir().unwrap();
        for way in ["moved", "removed"] {
            fs::create_dir(&directory).unwrap();
            scene.watcher.watch(std::slice::from_ref(&directory));
            assert!(scene.watcher.wait(LONG).unwrap().changed);
            assert_eq!(scene.watcher.wait(scene.short()).unwrap(), WakeReason::default());
            match way {
                "moved" => fs::rename(&directory, moved.path().join("x")).unwrap(),
                _ => fs::remove_dir(&directory).unwrap(),
            }
            assert!(scene.watcher.wait(LONG).unwrap().changed, "{way}");
            assert_eq!(scene.watcher.polled().len(), 1, "{way}: waited for, without another call of watch");
        }
    }
}

#[test]
fn a_waker_ends_the_running_and_the_next_wait() {
    for mut scene in Scene::both() {
        let waker = scene.watcher.waker();
        let thread = thread::spawn(move || waker.wake());
        assert_eq!(scene.watcher.wait(LONG).unwrap(), WakeReason { changed: false, woken: true });
        thread.join().unwrap();
        let waker = scene.watcher.waker();
        waker.wake();
        waker.clone().wake();
        assert_eq!(scene.watcher.wait(LONG).unwrap(), WakeReason { changed: false, woken: true });
        scene.assert_quiet("two calls, which are one");
        fs::write(scene.path("new"), "x").unwrap();
        waker.wake();
        let mut all = WakeReason::default();
        while all != (WakeReason { changed: true, woken: true }) {
            let wake = scene.watcher.wait(LONG).unwrap();
            assert_ne!(wake, WakeReason::default(), "lost: {all:?}");
            all |= wake;
        }
    }
}

#[test]
fn looking_wakes_nobody_and_writing_wakes_once() {
    for mut scene in Scene::both() {
        let (directory, file) = (scene.path(""), scene.path("old"));
        assert_eq!(crate::write(&file, b"mine", 0o640).unwrap(), crate::WriteOutcome::Replaced);
        scene.assert_seen("written");
        assert_eq!(crate::write(&file, b"mine", 0o640).unwrap(), crate::WriteOutcome::Unchanged);
        assert_eq!(crate::copy(&file, &file).unwrap(), crate::WriteOutcome::Unchanged);
        assert_eq!(crate::read(&file, 10).unwrap(), b"mine");
        assert!(crate::fingerprint(&file).unwrap().is_some());
        assert_eq!(crate::resolve(&directory, "old".as_ref()).unwrap(), file);
        assert_eq!(crate::list(&directory).unwrap(), ["old"]);
        assert!(crate::remove_stale(&directory, "old").unwrap().is_empty());
        assert!(!crate::remove(&scene.path("missing")).unwrap());
        crate::check_writable(&directory).unwrap();
        scene.assert_quiet("looking");
    }
}
