//! A test's environment: the binaries under test, the sandbox, and the reasons for skipping a test.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Path of a binary under test: in `$MILLRACE_BIN_DIR` (such as `dist`), else where cargo puts it.
///
/// # Panics
/// If it has not been built.
#[must_use]
pub fn binary(name: &str) -> PathBuf {
    built(binary_dir().join(name))
}

/// Copies a program, following links, to the path from which it will be run.
///
/// In another process: a child that another test forks at this moment would hold the copy open for writing until its exec, and
/// until then the copy cannot be run ("text file busy").
///
/// # Panics
/// If it cannot be copied.
pub fn copy_program(from: &Path, to: &Path) {
    let copied = Command::new("install").args(["-m", "755"]).args([from, to]).status();
    assert!(
        copied.is_ok_and(|status| status.success()),
        "cannot copy {} to {}",
        from.display(),
        to.display()
    );
}

/// Writes a script that will be run, in another process as [`copy_program`] does.
///
/// # Panics
/// If it cannot be written.
pub fn write_script(path: &Path, text: &str) {
    let mut install = Command::new("install");
    install.args(["-m", "755", "/dev/stdin"]).arg(path).stdin(Stdio::piped());
    let written = install.spawn().and_then(|mut child| {
        let mut stdin = child.stdin.take().expect("it is a pipe");
        stdin.write_all(text.as_bytes())?;
        drop(stdin);
        child.wait()
    });
    assert!(written.is_ok_and(|status| status.success()), "cannot write {}", path.display());
}

/// Writes a script that runs a program and its children without IPv6 sockets, as on a kernel that was booted with `ipv6.disable=1`.
pub fn write_without_ipv6(path: &Path, program: &Path) {
    let text =
        format!("#!/bin/sh\nexec {} refuse ipv6 {} \"$@\"\n", kit_traffic().display(), program.display());
    write_script(path, &text);
}

/// The directory of binaries under test.
pub(crate) fn binary_dir() -> PathBuf {
    std::env::var_os("MILLRACE_BIN_DIR").map_or_else(cargo_dir, PathBuf::from)
}

/// Path of the kit's own helper, which is never a release binary.
pub fn kit_traffic() -> PathBuf {
    built(cargo_dir().join("kit-traffic"))
}

/// Cargo's directory of binaries. Test programs are in `target/<profile>/deps`, ordinary ones in its parent.
fn cargo_dir() -> PathBuf {
    let own = std::env::current_exe().expect("a running program has a path");
    let dir = own.parent().expect("a file lies in a directory");
    if dir.ends_with("deps") { dir.parent().expect("deps has a parent").into() } else { dir.into() }
}

fn built(path: PathBuf) -> PathBuf {
    assert!(path.is_file(), "no {}: run cargo build --workspace first", path.display());
    path
}

/// Whether this process runs in `hack/sandbox`.
#[must_use]
pub fn sandboxed() -> bool {
    std::env::var_os("MILLRACE_SANDBOX").is_some_and(|value| value == "1")
}

/// Whether processes can run as other users here; a sandbox started by a user other than root has only root.
#[must_use]
pub fn has_other_users() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").expect("proc is mounted");
    map.split_whitespace().nth(2) != Some("1")
}

/// Panics outside the sandbox, before the machine's own network is changed.
pub(crate) fn require_sandbox() {
    assert!(sandboxed(), "kit changes the network: run this through cargo, or as hack/sandbox COMMAND");
}

/// Reports that a test cannot run here, and why. The caller then returns.
///
/// The reason is also appended to the file `$MILLRACE_SKIPS`, from which `hack/test` counts.
///
/// # Panics
/// In CI (`CI=true`), where everything must run.
pub fn skip(reason: &str) {
    let test = std::thread::current().name().unwrap_or("main").to_owned();
    assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "CI runs everything, but: {reason}");
    eprintln!("skipped {test}: {reason}");
    if let Some(path) = std::env::var_os("MILLRACE_SKIPS") {
        let mut file =
            OpenOptions::new().create(true).append(true).open(path).expect("cannot open MILLRACE_SKIPS");
        file.write_all(format!("{test}: {reason}\n").as_bytes()).expect("cannot write MILLRACE_SKIPS");
    }
}
