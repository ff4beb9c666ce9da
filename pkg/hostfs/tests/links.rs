//! Targets of links within a directory, and refused links.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use tempfile::TempDir;

/// A directory `in` with `file` and `sub/deep/file`, beside it `out` and `inner`, and `way`, a link to it.
struct Fixture(TempDir);

impl Fixture {
    fn new() -> Self {
        let fixture = Self(tempfile::tempdir().unwrap());
        fs::create_dir_all(fixture.path("in/sub/deep")).unwrap();
        for file in ["in/file", "in/sub/deep/file", "out", "inner"] {
            fs::write(fixture.path(file), "").unwrap();
        }
        symlink("in", fixture.path("way")).unwrap();
        fixture
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn link(&self, name: &str, to: impl AsRef<std::path::Path>) {
        symlink(to, self.path("in").join(name)).unwrap();
    }

    fn refused(&self, name: &str) -> hostfs::Error {
        hostfs::resolve(&self.path("in"), name.as_ref()).unwrap_err()
    }
}

#[test]
fn links_within_the_directory_are_followed() {
    let fixture = Fixture::new();
    fixture.link("sub/up", "../file");
    fixture.link("far", "sub/deep");
    fixture.link("absolute", fixture.path("in/file"));
    for (link, to, expected) in [
        ("same", "file", "in/file"),
        ("again", "./same", "in/file"),
        ("below", "sub/deep/file", "in/sub/deep/file"),
        ("roundabout", "sub/deep/../../file", "in/file"),
        ("back", "sub/up", "in/file"),
        ("through", "far/../up", "in/file"),
        ("by-absolute", "absolute", "in/file"),
    ] {
        fixture.link(link, to);
        let found = hostfs::resolve(&fixture.path("in"), link.as_ref()).unwrap();
        assert_eq!(found, fixture.path(expected), "{link}");
        let by_kernel = fs::canonicalize(fixture.path("in").join(link)).unwrap();
        assert_eq!(found, by_kernel, "{link}: the kernel goes elsewhere");
    }
    // The directory itself may be given by a link.
    assert_eq!(hostfs::resolve(&fixture.path("way"), "absolute".as_ref()).unwrap(), fixture.path("way/file"));
}

#[test]
fn a_file_and_a_missing_one_are_themselves() {
    let fixture = Fixture::new();
    for name in ["file", "missing"] {
        let found = hostfs::resolve(&fixture.path("in"), name.as_ref()).unwrap();
        assert_eq!(found, fixture.path("in").join(name));
    }
    assert_eq!(hostfs::resolve(&fixture.path("none"), "x".as_ref()).unwrap(), fixture.path("none/x"));
}

#[test]
fn links_that_leave_are_refused() {
    let fixture = Fixture::new();
    fixture.link("a", "../out");
    fixture.link("b", "sub/../../out");
    fixture.link("c", "../in/file");
    fixture.link("d", "/etc/passwd");
    fixture.link("e", "a");
    fixture.link("f", fixture.path("inner"));
    fixture.link("g", fixture.path("in/../out"));
    fixture.link("h", "..");
    for link in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        let expected = format!(
            "cannot resolve {}: it is a link that leaves the directory",
            fixture.path("in").join(link).display()
        );
        assert_eq!(fixture.refused(link).to_string(), expected);
        assert!(!fixture.refused(link).is_no_file(), "the host may have a file there");
    }
}

#[test]
fn links_that_lead_nowhere_are_refused() {
    let fixture = Fixture::new();
    for (link, to, why) in [
        ("a", "missing", "it is a link to a missing file"),
        ("b", "a", "it is a link to a missing file"),
        ("c", "file/below", "it is a link to a missing file"),
        ("d", "missing/../file", "it is a link to a missing file"),
        ("e", "e", "it is a link that goes in circles"),
        ("f", "sub/../f", "it is a link that goes in circles"),
        ("g", "/dev/null", "it is a link to /dev/null"),
    ] {
        fixture.link(link, to);
        let refused = fixture.refused(link);
        assert!(refused.to_string().ends_with(why), "{refused}");
        assert!(!refused.is_missing(), "dangling is not missing: {refused}");
        assert!(refused.is_no_file(), "{refused}");
        let found = fs::metadata(fixture.path("in").join(link));
        assert!(!found.is_ok_and(|found| found.is_file()), "{link}: the kernel finds a file");
    }
}

#[test]
fn only_plain_names_are_resolved() {
    let fixture = Fixture::new();
    for name in ["", ".", "..", "sub/x", "/etc/passwd", "file/", "./file"] {
        assert!(fixture.refused(name).to_string().ends_with("it is not a plain file name"), "{name}");
    }
}
