//! Kernel parameters of the network, such as `net/ipv4/conf/eth0/rp_filter`. Parameters per netns are those of the
//! calling thread's netns (enter one through `netns`).
//!
//! Names are written with `/`, as paths below `/proc/sys`, because the name of a link may contain a dot.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;

use crate::{ChangeOutcome, Error};

/// Returns the value of a parameter, without the trailing newline; `None` if the parameter does not exist, as for a
/// link that does not exist.
///
/// # Errors
///
/// [`Error::Sysctl`]; [`Error::UnsuitableSysctl`] for a name outside of `/proc/sys/net`.
pub fn read(name: &str) -> Result<Option<String>, Error> {
    match fs::read_to_string(parameter_path(name)?) {
        Ok(text) => Ok(Some(text.trim_end().to_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Sysctl { step: format!("read sysctl {name}"), source }),
    }
}

/// Sets a parameter, unless it has the value. Whitespace between several numbers does not matter.
///
/// # Errors
///
/// [`Error::Sysctl`], also if the parameter does not exist; others as [`read()`].
pub fn write(name: &str, value: &str) -> Result<ChangeOutcome, Error> {
    if read(name)?.is_some_and(|found| found.split_whitespace().eq(value.split_whitespace())) {
        return Ok(ChangeOutcome::No);
    }
    let failed = |source| Error::Sysctl { step: format!("set sysctl {name} to {value:?}"), source };
    write_value(&parameter_path(name)?, value).map_err(failed)?;
    Ok(ChangeOutcome::Yes)
}

/// Never creates a file, and writes the value with one system call, as the kernel requires.
fn write_value(path: &PathBuf, value: &str) -> io::Result<()> {
    OpenOptions::new().write(true).open(path)?.write_all(value.as_bytes())
}

fn parameter_path(name: &str) -> Result<PathBuf, Error> {
    let plain = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('\0');
    let mut parts = name.split('/');
    if parts.next() == Some("net") && name != "net" && parts.all(plain) {
        return Ok(PathBuf::from("/proc/sys").join(name));
    }
    Err(Error::UnsuitableSysctl { name: name.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_below_net() {
        for name in ["net/ipv4/ip_forward", "net/ipv4/conf/eth0.5/rp_filter", "net/core/somaxconn"] {
            assert_eq!(parameter_path(name).unwrap(), PathBuf::from(format!("/proc/sys/{name}")));
        }
        for name in [
            "",
            "net",
            "net/",
            "/net/ipv4/ip_forward",
            "kernel/hostname",
            "net/../kernel/hostname",
            "net/ipv4/conf//rp_filter",
            "net/ipv4/conf/./rp_filter",
            "net.ipv4.ip_forward",
            "net/a\0b",
        ] {
            assert!(matches!(parameter_path(name), Err(Error::UnsuitableSysctl { .. })), "{name:?}");
        }
    }
}
