//! Kernel parameters of the network, such as `net/ipv4/conf/eth0/rp_filter`: of the netns of the calling thread (enter
//! one through `netns`), for those that each netns has of its own.
//!
//! Names are written with `/`, as paths below `/proc/sys`: the name of a link may hold a dot.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;

use crate::{ChangeOutcome, Error};

/// The value of a parameter, without the end of its line; none if there is no such parameter, as for a link that does
/// not exist.
///
/// # Errors
///
/// [`Error::Sysctl`]; [`Error::UnsuitableSysctl`] for a name that leads out of `/proc/sys/net`.
pub fn read(name: &str) -> Result<Option<String>, Error> {
    match fs::read_to_string(parameter_path(name)?) {
        Ok(text) => Ok(Some(text.trim_end().to_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Sysctl { step: format!("read sysctl {name}"), source }),
    }
}

/// Gives a parameter a value, unless it has it. Several numbers in one are the same with any blanks between them.
///
/// # Errors
///
/// [`Error::Sysctl`], also if there is no such parameter; others as [`read()`].
pub fn write(name: &str, value: &str) -> Result<ChangeOutcome, Error> {
    if read(name)?.is_some_and(|found| found.split_whitespace().eq(value.split_whitespace())) {
        return Ok(ChangeOutcome::No);
    }
    let failed = |source| Error::Sysctl { step: format!("set sysctl {name} to {value:?}"), source };
    write_value(&parameter_path(name)?, value).map_err(failed)?;
    Ok(ChangeOutcome::Yes)
}

/// Never makes a file, and gives the kernel the value with one system call, as it wants it.
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
