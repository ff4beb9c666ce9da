//! What the system knows of this process; without secrets.

use std::ffi::OsString;
use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::time::SystemTime;

/// Stands for what is not shown.
const REDACTED: &str = "redacted";
/// In the name of what is not shown. In capitals.
const SECRET_NAMES: [&str; 8] =
    ["TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "KEY", "CREDENTIAL", "AUTH"];

/// Of `/proc/self/status`, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Memory {
    /// Memory in use that no file has.
    pub(super) heap: u64,
    /// What was reserved for it.
    pub(super) data: u64,
    /// The first thread's stack.
    pub(super) stack: u64,
    /// The whole address space.
    pub(super) all: u64,
}

impl Memory {
    pub(super) fn read() -> Memory {
        Self::parse(&status())
    }

    fn parse(status: &str) -> Memory {
        let bytes = |name| number(field(status, name)).saturating_mul(1024);
        Memory { heap: bytes("RssAnon"), data: bytes("VmData"), stack: bytes("VmStk"), all: bytes("VmSize") }
    }
}

pub(super) fn threads() -> u64 {
    number(field(&status(), "Threads"))
}

pub(super) fn groups() -> Vec<u32> {
    field(&status(), "Groups").split_ascii_whitespace().filter_map(|group| group.parse().ok()).collect()
}

/// Empty when the system does not say.
pub(super) fn host_name() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}

/// The address that packets to far away would have; empty without a route. Connecting sends nothing.
pub(super) fn local_ip() -> String {
    let far = (Ipv4Addr::new(192, 0, 2, 1), 9);
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0));
    let address = socket.and_then(|socket| socket.connect(far).and_then(|()| socket.local_addr()));
    address.map(|address| address.ip().to_string()).unwrap_or_default()
}

/// Nanoseconds since the epoch.
pub(super) fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn status() -> String {
    fs::read_to_string("/proc/self/status").unwrap_or_default()
}

fn field<'a>(status: &'a str, name: &str) -> &'a str {
    let mut fields = status.lines().filter_map(|line| line.split_once(':'));
    fields.find(|(key, _)| *key == name).map_or("", |(_, value)| value.trim())
}

/// Without its unit.
fn number(text: &str) -> u64 {
    text.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// The environment by name, without the values of secrets.
pub(super) fn variables(all: impl Iterator<Item = (OsString, OsString)>) -> Vec<(String, String)> {
    let text = |text: OsString| text.to_string_lossy().into_owned();
    let shown = |(name, value)| {
        let name = text(name);
        let value = redact(&name, &text(value));
        (name, value)
    };
    let mut variables: Vec<(String, String)> = all.map(shown).collect();
    variables.sort_unstable();
    variables
}

/// The command line, without the values of secrets: `--name=value` and `--name value`.
pub(super) fn arguments(all: impl Iterator<Item = OsString>) -> Vec<String> {
    let mut named = String::new();
    let mut shown = Vec::new();
    for argument in all {
        let argument = argument.to_string_lossy().into_owned();
        shown.push(match argument.split_once('=').filter(|_| argument.starts_with('-')) {
            Some((name, value)) => format!("{name}={}", redact(name, value)),
            None if argument.starts_with('-') => argument.clone(),
            None => redact(&named, &argument),
        });
        named = if argument.starts_with('-') && !argument.contains('=') { argument } else { String::new() };
    }
    shown
}

fn redact(name: &str, value: &str) -> String {
    let name = name.to_ascii_uppercase();
    let secret = SECRET_NAMES.iter().any(|word| name.contains(word)) || carries_secret(value);
    if secret && !value.is_empty() { REDACTED.to_owned() } else { value.to_owned() }
}

/// A URL with a password, a token of the API server, a private key.
fn carries_secret(value: &str) -> bool {
    let authority =
        value.split_once("://").map(|(_, rest)| rest.split(['/', '?', '#']).next().unwrap_or(rest));
    authority.is_some_and(|authority| authority.contains('@'))
        || value.contains("eyJ")
        || value.contains("PRIVATE KEY")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_in_the_environment_are_not_shown() {
        let shown =
            |name: &str, value: &str| variables([(name.into(), value.into())].into_iter()).remove(0).1;
        for name in ["API_TOKEN", "aws_secret_access", "DB_PASSWORD", "SSH_KEY_FILE", "Credentials", "X_AUTH"]
        {
            assert_eq!(shown(name, "hunter2"), REDACTED, "{name}");
            assert_eq!(shown(name, ""), "", "{name}");
        }
        for value in [
            "http://user:pass@proxy:3128",
            "https://token@proxy",
            "eyJhbGciOi",
            "Bearer eyJhbGciOi",
            "-----BEGIN EC PRIVATE KEY-----\nx",
        ] {
            assert_eq!(shown("HTTP_PROXY", value), REDACTED, "{value}");
        }
        for value in ["/usr/bin:/bin", "http://proxy:3128/a@b", "a@b"] {
            assert_eq!(shown("PATH", value), value);
        }
    }

    #[test]
    fn variables_come_by_name() {
        let given = [("B", "2"), ("A", "1")].map(|(name, value)| (name.into(), value.into()));
        let text = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(variables(given.into_iter()), [text("A", "1"), text("B", "2")]);
    }

    #[test]
    fn secrets_among_arguments_are_not_shown() {
        let line =
            "install-cni --api-token=x --password y --port 9876 -v --key z --proxy=http://a:b@c --log=info t";
        let shown = arguments(line.split(' ').map(OsString::from));
        let expected = "install-cni --api-token=redacted --password redacted --port 9876 -v --key redacted \
                        --proxy=redacted --log=info t";
        assert_eq!(shown.join(" "), expected);
    }

    #[test]
    fn memory_is_read_from_the_kernels_text() {
        let text = "Name:\ta: b\nVmSize:\t  100 kB\nVmData:\t40 kB\nVmStk:\t8 kB\nRssAnon:\t 20 kB\n";
        let expected = Memory { heap: 20480, data: 40960, stack: 8192, all: 102_400 };
        assert_eq!(Memory::parse(text), expected);
        assert_eq!(Memory::parse("VmSize:\n"), Memory::default());
        let ours = Memory::read();
        assert!(ours.heap > 0 && ours.data >= ours.heap && ours.all >= ours.data, "{ours:?}");
        assert!(threads() >= 1);
    }
}
