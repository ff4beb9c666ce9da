//! Runs the tools with exactly the environment of a test.

use std::{path::Path, process::Command};

use kit::{Netns, binary};

/// Result of a run.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs `istio-iptables`.
#[must_use]
pub(crate) fn istio_iptables(netns: &Netns, env: &[(&str, &str)], arguments: &[&str]) -> Ended {
    run(netns, &binary("istio-iptables"), env, arguments)
}

/// Runs `istio-iptables`, which must succeed; returns its stdout.
pub(crate) fn applied(netns: &Netns, env: &[(&str, &str)], arguments: &[&str]) -> String {
    let ended = istio_iptables(netns, env, arguments);
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{env:?} {arguments:?}: {}", ended.stdout);
    ended.stdout
}

/// Runs a program in a namespace.
#[must_use]
pub(crate) fn run(netns: &Netns, program: &Path, env: &[(&str, &str)], arguments: &[&str]) -> Ended {
    let mut command = Command::new(program);
    command.args(arguments);
    ended(netns, command, env)
}

/// Runs a command with `PATH` and these variables.
#[must_use]
pub(crate) fn ended(netns: &Netns, mut command: Command, env: &[(&str, &str)]) -> Ended {
    command.env_clear().envs(std::env::var_os("PATH").map(|path| ("PATH", path))).envs(env.iter().copied());
    let output = netns.output(&mut command);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ended {
        code: output.status.code().expect("the tool was killed"),
        stdout: text(&output.stdout),
        stderr: text(&output.stderr),
    }
}

/// Runs `istio-iptables` with `text` in a file of the host, such as `/etc/resolv.conf`.
#[must_use]
pub(crate) fn with_file(
    netns: &Netns,
    file: &str,
    text: &str,
    env: &[(&str, &str)],
    arguments: &[&str],
) -> Ended {
    program_with_file(netns, &binary("istio-iptables"), (file, text), env, arguments)
}

/// As [`with_file`], for another program.
#[must_use]
pub(crate) fn program_with_file(
    netns: &Netns,
    program: &Path,
    (file, text): (&str, &str),
    env: &[(&str, &str)],
    arguments: &[&str],
) -> Ended {
    let dir = tempdir();
    let ours = dir.path().join("file");
    std::fs::write(&ours, text).unwrap();
    let mut command = Command::new("unshare");
    let script = r#"mount --bind "$1" "$2"; shift 2; exec "$@""#;
    command.args(["--mount", "sh", "-euc", script, "sh"]).arg(&ours).arg(file);
    command.arg(program).args(arguments);
    ended(netns, command, env)
}

/// A temporary directory that every user can read.
pub(crate) fn tempdir() -> kit::TempDir {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = kit::TempDir::new().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    dir
}
