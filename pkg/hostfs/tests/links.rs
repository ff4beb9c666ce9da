//! Where links within a directory lead, and which are refused.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use tempfile::TempDir;

/// A directory `in` with `file` and `sub/deep/file`, beside it `out` and `inner`, and `way`, a link to it.
struct Scene(TempDir);

impl Scene {
    fn new() -> Self {
        let scene = Self(tempfile::tempdir().unwrap());
        fs::create_dir_all(scene.path("in/sub/deep")).unwrap();
        for file in ["in/file", "in/sub/deep/file", "out", "inner"] {
            fs::write(scene.path(file), "").unwrap();
        }
        symlink("in", scene.path("way")).unwrap();
        scene
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
    let scene = Scene::new();
    scene.link("sub/up", "../file");
    scene.link("far", "sub/deep");
    scene.link("absolute", scene.path("in/file"));
    for (link, to, expected) in [
        ("same", "file", "in/file"),
        ("again", "./same", "in/file"),
        ("below", "sub/deep/file", "in/sub/deep/file"),
        ("roundabout", "sub/deep/../../file", "in/file"),
        ("back", "sub/up", "in/file"),
        ("through", "far/../up", "in/file"),
        ("by-absolute", "absolute", "in/file"),
    ] {
        scene.link(link, to);
        let found = hostfs::resolve(&scene.path("in"), link.as_ref()).unwrap();
        assert_eq!(found, scene.path(expected), "{link}");
        let by_kernel = fs::canonicalize(scene.path("in").join(link)).unwrap();
        assert_eq!(found, by_kernel, "{link}: the kernel goes elsewhere");
    }
    // The directory itself may be known by a link.
    assert_eq!(hostfs::resolve(&scene.path("way"), "absolute".as_ref()).unwrap(), scene.path("way/file"));
}

#[test]
fn a_file_and_a_missing_one_are_themselves() {
    let scene = Scene::new();
    for name in ["file", "missing"] {
        let found = hostfs::resolve(&scene.path("in"), name.as_ref()).unwrap();
        assert_eq!(found, scene.path("in").join(name));
    }
    assert_eq!(hostfs::resolve(&scene.path("none"), "x".as_ref()).unwrap(), scene.path("none/x"));
}

#[test]
fn links_that_leave_are_refused() {
    let scene = Scene::new();
    scene.link("a", "../out");
    scene.link("b", "sub/../../out");
    scene.link("c", "../in/file");
    scene.link("d", "/etc/passwd");
    scene.link("e", "a");
    scene.link("f", scene.path("inner"));
    scene.link("g", scene.path("in/../out"));
    scene.link("h", "..");
    for link in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        let expected = format!(
            "cannot resolve {}: it is a link that leaves the directory",
            scene.path("in").join(link).display()
        );
        assert_eq!(scene.refused(link).to_string(), expected);
    }
}

#[test]
fn links_that_lead_nowhere_are_refused() {
    let scene = Scene::new();
    for (link, to, why) in [
        ("a", "missing", "it is a link to a missing file"),
        ("b", "a", "it is a link to a missing file"),
        ("c", "file/below", "it is a link to a missing file"),
        ("d", "missing/../file", "it is a link to a missing file"),
        ("e", "e", "it is a link that goes in circles"),
        ("f", "sub/../f", "it is a link that goes in circles"),
    ] {
        scene.link(link, to);
        let refused = scene.refused(link);
        assert!(refused.to_string().ends_with(why), "{refused}");
        assert!(!refused.is_missing(), "dangling is not missing: {refused}");
        assert!(fs::metadata(scene.path("in").join(link)).is_err(), "{link}: the kernel finds it");
    }
}

#[test]
fn only_plain_names_are_resolved() {
    let scene = Scene::new();
    for name in ["", ".", "..", "sub/x", "/etc/passwd", "file/", "./file"] {
        assert!(scene.refused(name).to_string().ends_with("it is not a plain file name"), "{name}");
    }
}
