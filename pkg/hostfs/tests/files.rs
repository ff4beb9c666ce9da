//! On real file systems: reading, replacing, copying and removing files, and refusals.
//!
//! No children are started here: until its exec, a child holds files of other tests open, so that a mount is busy.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use hostfs::{FileFingerprint, WriteOutcome, conclusive_fingerprint, fingerprint};
use rustix::fs::{CWD, FileType, Mode};
use rustix::mount::{MountFlags, UnmountFlags};
use tempfile::TempDir;

struct Scratch(TempDir);

impl Scratch {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn file(&self, name: &str, content: impl AsRef<[u8]>, mode: u32) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path
    }

    fn pipe(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        let owner = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, owner, 0).unwrap();
        path
    }

    fn names(&self) -> Vec<OsString> {
        hostfs::list(self.0.path()).unwrap()
    }
}

/// A small file system; drop unmounts it.
struct Small(PathBuf);

impl Small {
    fn mount(at: PathBuf) -> Self {
        fs::create_dir(&at).unwrap();
        rustix::mount::mount("tmpfs", &at, "tmpfs", MountFlags::empty(), Some(c"size=1m")).unwrap();
        Self(at)
    }

    fn remount(&self, flags: MountFlags) {
        rustix::mount::mount_remount(&self.0, flags, "size=1m").unwrap();
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        rustix::mount::unmount(&self.0, UnmountFlags::DETACH).unwrap();
    }
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

fn words<T: std::fmt::Debug>(result: Result<T, hostfs::Error>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn a_regular_file_up_to_the_limit_is_read() {
    let scratch = Scratch::new();
    let file = scratch.file("file", "12345", 0o600);
    assert_eq!(hostfs::read(&file, 5).unwrap(), b"12345");
    assert_eq!(
        words(hostfs::read(&file, 4)),
        format!("cannot read {}: it is larger than 4 bytes", file.display())
    );
    symlink("file", scratch.path("link")).unwrap();
    assert_eq!(hostfs::read(&scratch.path("link"), 5).unwrap(), b"12345");
    let missing = hostfs::read(&scratch.path("missing"), 5).unwrap_err();
    assert!(missing.is_missing());
    assert_eq!(missing.path(), scratch.path("missing"));
    // The kernel's files have size 0; so has one that grows while it is read.
    assert!(!hostfs::read("/proc/self/status".as_ref(), 100_000).unwrap().is_empty());
    assert!(words(hostfs::read("/proc/self/status".as_ref(), 10)).ends_with("it is larger than 10 bytes"));
}

#[test]
fn what_is_no_regular_file_is_refused_at_once_and_in_words() {
    let scratch = Scratch::new();
    let pipe = scratch.pipe("pipe");
    let socket = scratch.path("socket");
    let _listener = UnixListener::bind(&socket).unwrap();
    symlink("pipe", scratch.path("link")).unwrap();
    let target = scratch.path("target");
    for (path, what) in [
        (pipe.as_path(), "a named pipe"),
        (&scratch.path("link"), "a named pipe"),
        (&socket, "a socket"),
        (scratch.0.path(), "a directory"),
        ("/dev/null".as_ref(), "a device"),
    ] {
        let refused = format!("{}: it is {what}, not a regular file", path.display());
        assert_eq!(words(hostfs::read(path, 10)), format!("cannot read {refused}"));
        assert_eq!(words(hostfs::copy(path, &target)), format!("cannot copy {refused}"));
        if path != scratch.path("link") {
            assert_eq!(words(hostfs::write(path, b"", 0o644)), format!("cannot write {refused}"));
        }
    }
    assert!(words(hostfs::copy(&scratch.file("f", "", 0o644), &pipe)).starts_with("cannot install "));
    let root = words(hostfs::write("/".as_ref(), b"", 0o644));
    assert_eq!(root, "cannot write /: it is a directory, not a regular file");
    assert_eq!(scratch.names(), ["f", "link", "pipe", "socket"], "nothing was changed or left");
}

#[test]
fn a_file_is_replaced_only_if_it_is_another() {
    let scratch = Scratch::new();
    let file = scratch.path("file");
    for (content, mode_wanted, expected) in [
        ("one", 0o644, WriteOutcome::Replaced),
        ("one", 0o644, WriteOutcome::Unchanged),
        ("two", 0o644, WriteOutcome::Replaced),
        ("two", 0o600, WriteOutcome::Replaced),
        ("two", 0o100_600, WriteOutcome::Unchanged),
        ("two", 0o4755, WriteOutcome::Replaced),
        ("two", 0o4755, WriteOutcome::Unchanged),
        ("twofold", 0o4755, WriteOutcome::Replaced),
        ("", 0o000, WriteOutcome::Replaced),
        ("", 0o000, WriteOutcome::Unchanged),
    ] {
        let before = fingerprint(&file).unwrap();
        assert_eq!(hostfs::write(&file, content.as_bytes(), mode_wanted).unwrap(), expected, "{content}");
        let untouched = fingerprint(&file).unwrap() == before;
        assert_eq!(untouched, expected == WriteOutcome::Unchanged, "{content} {mode_wanted:o}");
        assert_eq!(fs::read_to_string(&file).unwrap(), content);
        assert_eq!(mode(&file), mode_wanted & 0o7777);
        assert_eq!(scratch.names(), ["file"]);
    }
}

#[test]
fn a_lone_name_is_of_the_current_directory() {
    // Only a name's parent is opened; nothing is written where tests run.
    assert!(hostfs::remove("surely-missing".as_ref()).is_ok_and(|removed| !removed));
    let parent = words(hostfs::write("..".as_ref(), b"", 0o644));
    assert_eq!(parent, "cannot write ..: it is a directory, not a regular file");
    let missing = hostfs::write("/nowhere/file".as_ref(), b"", 0o644).unwrap_err();
    assert!(missing.is_missing() && missing.path() == Path::new("/nowhere/file"));
}

#[test]
fn on_a_full_disk_the_old_file_stays() {
    let scratch = Scratch::new();
    let small = Small::mount(scratch.path("small"));
    let file = small.0.join("file");
    let old = vec![b'o'; 500_000];
    hostfs::write(&file, &old, 0o640).unwrap();
    let before = fingerprint(&file).unwrap();
    let large = scratch.file("large", vec![b'n'; 700_000], 0o755);
    let by_write = hostfs::write(&file, &vec![b'n'; 700_000], 0o644).unwrap_err();
    let by_copy = hostfs::copy(&large, &file).unwrap_err();
    for failed in [by_write, by_copy] {
        assert_eq!(failed.path(), file);
        assert_eq!(failed.io_error().raw_os_error(), Some(28), "ENOSPC");
        assert_eq!(fingerprint(&file).unwrap(), before);
        assert_eq!(hostfs::read(&file, 1_000_000).unwrap(), old);
        assert_eq!(hostfs::list(&small.0).unwrap(), ["file"], "a temporary was left");
    }
    hostfs::write(&file, b"small again", 0o640).unwrap();
}

#[test]
fn a_read_only_mount_is_found_out_beforehand() {
    let scratch = Scratch::new();
    let small = Small::mount(scratch.path("small"));
    let file = small.0.join("file");
    hostfs::write(&file, b"old", 0o644).unwrap();
    hostfs::check_writable(&small.0).unwrap();
    small.remount(MountFlags::RDONLY);
    let failures = [
        (&small.0, hostfs::check_writable(&small.0).unwrap_err()),
        (&file, hostfs::write(&file, b"new", 0o644).unwrap_err()),
        (&file, hostfs::remove(&file).unwrap_err()),
        (&file, hostfs::rename(&file, &small.0.join("other")).unwrap_err()),
    ];
    for (path, failed) in failures {
        assert_eq!(failed.path(), path);
        assert_eq!(failed.io_error().raw_os_error(), Some(30), "EROFS: {failed}");
    }
    assert_eq!(hostfs::write(&file, b"old", 0o644).unwrap(), WriteOutcome::Unchanged);
    assert!(!hostfs::remove(&small.0.join("missing")).unwrap(), "nothing has to be removed");
    small.remount(MountFlags::empty());
    hostfs::write(&file, b"new", 0o644).unwrap();
}

#[test]
fn only_a_directory_is_writable() {
    let scratch = Scratch::new();
    hostfs::check_writable(scratch.0.path()).unwrap();
    assert!(hostfs::check_writable(&scratch.path("missing")).unwrap_err().is_missing());
    let file = scratch.file("file", "", 0o777);
    assert_eq!(
        words(hostfs::check_writable(&file)),
        format!("cannot put files in {}: it is not a directory", file.display())
    );
    assert_eq!(scratch.names(), ["file"]);
}

#[test]
fn every_difference_of_a_copy_is_seen() {
    let scratch = Scratch::new();
    let mut content = vec![7_u8; 300_000];
    let source = scratch.file("source", &content, 0o755);
    let target = scratch.path("target");
    let assert_copied = |expected| {
        assert_eq!(hostfs::copy(&source, &target).unwrap(), expected);
        assert_eq!(fs::read(&target).unwrap(), fs::read(&source).unwrap());
        assert_eq!(mode(&target), mode(&source));
    };
    assert_copied(WriteOutcome::Replaced);
    assert_copied(WriteOutcome::Unchanged);
    for changed in [0, 128 * 1024 - 1, 128 * 1024, 299_999] {
        content[changed] += 1;
        scratch.file("source", &content, 0o755);
        assert_copied(WriteOutcome::Replaced);
        assert_copied(WriteOutcome::Unchanged);
    }
    scratch.file("source", &content, 0o2711);
    assert_copied(WriteOutcome::Replaced);
    scratch.file("source", &content[..128 * 1024], 0o755);
    assert_copied(WriteOutcome::Replaced);
    scratch.file("source", "", 0o755);
    assert_copied(WriteOutcome::Replaced);
    assert_copied(WriteOutcome::Unchanged);
    symlink("source", scratch.path("link")).unwrap();
    assert_eq!(hostfs::copy(&scratch.path("link"), &target).unwrap(), WriteOutcome::Unchanged);
    assert!(hostfs::copy(&scratch.path("missing"), &target).unwrap_err().is_missing());
}

/// A link in place of our file, as people create them into a data directory that an upgrade replaces.
#[test]
fn a_link_is_replaced_and_what_it_leads_to_stays() {
    let scratch = Scratch::new();
    let source = scratch.file("source", "new", 0o755);
    let elsewhere = scratch.file("elsewhere", "old", 0o600);
    let place = scratch.path("place");
    for to in ["elsewhere", "missing", "place", "/dev/null", "source"] {
        for write in [&|| hostfs::copy(&source, &place), &|| hostfs::write(&place, b"new", 0o755)]
            as [&dyn Fn() -> Result<WriteOutcome, hostfs::Error>; 2]
        {
            drop(fs::remove_file(&place));
            symlink(to, &place).unwrap();
            assert_eq!(write().unwrap(), WriteOutcome::Replaced, "{to}");
            assert_eq!(
                (mode(&place), fs::read_to_string(&place).unwrap()),
                (0o755, "new".to_owned()),
                "{to}"
            );
            assert!(!place.is_symlink(), "{to}");
            assert_eq!(write().unwrap(), WriteOutcome::Unchanged, "{to}");
        }
    }
    assert_eq!(fs::read_to_string(elsewhere).unwrap(), "old");
}

#[test]
fn a_directory_that_was_removed_while_it_is_in_use_says_so() {
    let scratch = Scratch::new();
    let directory = scratch.path("mounted");
    fs::create_dir(&directory).unwrap();
    hostfs::check_linked(&directory).unwrap();
    // As in a mount of it: the open descriptor still refers to the removed directory.
    let open = fs::File::open(&directory).unwrap();
    let mounted = PathBuf::from(format!("/proc/self/fd/{}", open.as_raw_fd()));
    fs::remove_dir(&directory).unwrap();
    fs::create_dir(&directory).unwrap();
    let written = hostfs::write(&mounted.join("file"), b"", 0o644).map(drop);
    for error in [hostfs::check_linked(&mounted), written] {
        let error = words(error);
        assert!(error.contains("removed on the host after it had been mounted here"), "{error}");
    }
    hostfs::check_linked(&directory).unwrap();
}

#[test]
fn a_source_that_changes_meanwhile_is_not_installed() {
    let scratch = Scratch::new();
    let source = scratch.file("source", vec![0; 4_000_000], 0o755);
    let target = scratch.file("target", "old", 0o755);
    let stop = std::sync::atomic::AtomicBool::new(false);
    let relaxed = std::sync::atomic::Ordering::Relaxed;
    let refused = thread::scope(|scope| {
        scope.spawn(|| {
            let writer = fs::OpenOptions::new().write(true).open(&source).unwrap();
            let mut round = 0_u64;
            while !stop.load(relaxed) {
                round += 1;
                // The last bytes, which are copied long before they are compared.
                std::os::unix::fs::FileExt::write_at(&writer, &round.to_ne_bytes(), 3_999_000).unwrap();
            }
        });
        let found = (0..50).find_map(|_| hostfs::copy(&source, &target).err());
        stop.store(true, relaxed);
        found
    });
    let refused = refused.unwrap();
    assert_eq!(refused.path(), target);
    let cause = format!("the copy differs from {}; was that changed meanwhile?", source.display());
    assert_eq!(refused.io_error().to_string(), cause);
    assert_eq!(scratch.names(), ["source", "target"]);
}

#[test]
fn a_fingerprint_tells_every_touch() {
    let scratch = Scratch::new();
    assert_eq!(fingerprint(&scratch.path("missing")).unwrap(), None);
    let file = scratch.file("file", "x", 0o644);
    let mut seen = vec![fingerprint(&file).unwrap()];
    let mut assert_new = |what| {
        let now = fingerprint(&file).unwrap();
        assert_eq!(fingerprint(&file).unwrap(), now, "{what}: not stable");
        assert!(!seen.contains(&now), "{what}: not seen");
        seen.push(now);
    };
    fs::write(&file, "xy").unwrap();
    assert_new("size");
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    assert_new("mode");
    fs::File::open(&file).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    assert_new("mtime");
    hostfs::write(&file, b"ab", 0o600).unwrap();
    assert_new("replaced");
    fs::remove_file(&file).unwrap();
    symlink("elsewhere", &file).unwrap();
    assert_new("a symlink, which is not followed");
}

#[test]
fn a_fingerprint_is_settled_when_the_clock_has_ticked_since_the_last_touch() {
    let scratch = Scratch::new();
    let file = scratch.file("file", "x", 0o644);
    let link = scratch.path("link");
    symlink("file", &link).unwrap();
    let fingerprint_file = |path: &Path| FileFingerprint::from_metadata(&fs::metadata(path).unwrap());
    let seen = fingerprint_file(&link);
    assert_eq!(Some(seen), fingerprint(&file).unwrap());
    let touched = fs::metadata(&file).unwrap().modified().unwrap();
    let after = |millis| seen.is_conclusive(touched + Duration::from_millis(millis));
    assert_eq!([0, 50, 200].map(after), [false, false, true]);
    assert!(!seen.is_conclusive(touched - Duration::from_secs(9)), "the clock was put back");
    // Setting an old modification time changes the file nevertheless; a file of the future is never settled.
    let opened = fs::File::open(&file).unwrap();
    opened.set_modified(touched - Duration::from_secs(9)).unwrap();
    assert!(!fingerprint_file(&file).is_conclusive(touched));
    opened.set_modified(touched + Duration::from_secs(9)).unwrap();
    assert!(!fingerprint_file(&file).is_conclusive(touched + Duration::from_secs(8)));
    fs::remove_file(&file).unwrap();
    assert_eq!(conclusive_fingerprint(&link), None);
}

#[test]
fn what_an_interrupted_write_left_goes_with_the_next_one_or_with_its_file() {
    let scratch = Scratch::new();
    let (file, source) = (scratch.path("a"), scratch.file("b", "new", 0o755));
    let changes: [&dyn Fn(); 3] = [
        &|| assert_eq!(hostfs::write(&file, b"old", 0o644).unwrap(), WriteOutcome::Replaced),
        &|| assert_eq!(hostfs::copy(&source, &file).unwrap(), WriteOutcome::Replaced),
        &|| assert!(hostfs::remove(&file).unwrap()),
    ];
    for change in changes {
        scratch.file("a.tmp.aZ09bcde", "half", 0o600);
        scratch.file("a.tmp.notes.txt", "another's", 0o600);
        change();
        assert!(!scratch.path("a.tmp.aZ09bcde").exists());
    }
    assert_eq!(scratch.names(), ["a.tmp.notes.txt", "b"]);
}

#[test]
fn files_are_removed_and_renamed() {
    let scratch = Scratch::new();
    let (a, b) = (scratch.file("a", "a", 0o644), scratch.file("b", "b", 0o644));
    hostfs::rename(&a, &b).unwrap();
    assert_eq!((scratch.names(), fs::read_to_string(&b).unwrap()), (vec!["b".into()], "a".to_owned()));
    assert!(hostfs::rename(&a, &b).unwrap_err().is_missing());
    let directory = scratch.path("directory");
    fs::create_dir(&directory).unwrap();
    let refused = format!("cannot rename {}: {} is a directory", b.display(), directory.display());
    assert_eq!(words(hostfs::rename(&b, &directory)), refused);
    assert!(words(hostfs::rename(&b, &directory.join("b"))).ends_with("is in another directory"));
    assert!(words(hostfs::remove(&directory)).ends_with("it is a directory"));
    symlink("b", scratch.path("link")).unwrap();
    assert!(hostfs::remove(&scratch.path("link")).unwrap());
    assert!(hostfs::remove(&b).unwrap() && !hostfs::remove(&b).unwrap());
    assert!(!hostfs::remove(&scratch.path("nowhere/b")).unwrap());
    assert!(scratch.names().is_empty());
}

#[test]
fn lists_are_sorted_bytewise_and_without_directories() {
    let scratch = Scratch::new();
    for name in ["b", "B", "a-b", "a", "10", "9", "ä"] {
        scratch.file(name, "", 0o644);
    }
    fs::create_dir(scratch.path("directory")).unwrap();
    symlink("directory", scratch.path("..data")).unwrap();
    assert_eq!(scratch.names(), ["..data", "10", "9", "B", "a", "a-b", "b", "ä"]);
    assert!(hostfs::list(&scratch.path("missing")).unwrap_err().is_missing());
}

#[test]
fn stale_temporaries_go_and_nothing_else() {
    let scratch = Scratch::new();
    let others = ["a", "a.tmp", "a.tmp.", "a.tmp.1.json", "aa.tmp.1", "b.tmp.1"];
    for name in others.iter().chain(&["a.tmp.3141592653", "a.tmp.Ab0"]) {
        scratch.file(name, "", 0o000);
    }
    symlink("a", scratch.path("a.tmp.link")).unwrap();
    scratch.pipe("a.tmp.pipe");
    fs::create_dir(scratch.path("a.tmp.directory")).unwrap();
    let mut removed = hostfs::remove_stale(scratch.0.path(), "a").unwrap();
    removed.sort();
    assert_eq!(removed, [scratch.path("a.tmp.3141592653"), scratch.path("a.tmp.Ab0")]);
    let mut left: Vec<_> = others.iter().chain(&["a.tmp.link", "a.tmp.pipe"]).map(OsString::from).collect();
    left.sort();
    assert_eq!(scratch.names(), left);
    assert!(hostfs::remove_stale(&scratch.path("missing"), "a").unwrap().is_empty());
}
