//! The command line of both tools.

use std::{env, ffi::OsString, io::Write};

use anyhow::Result;
use flags::{Flag, Request, Style, Values};

/// These tools log what they do to standard output and have no levels, so that Istio's logging flags have no effect.
const STYLE: Style = Style { ignored: flags::LOGGING };

/// Reads the flags of this process's call; none when it was only asked to explain itself, which it has then.
///
/// # Errors
/// A flag that cannot be understood, or `out` cannot be written to.
pub(crate) fn read(
    usage: &str,
    table: &'static [Flag],
    arguments: impl IntoIterator<Item = OsString>,
    out: &mut impl Write,
) -> Result<Option<Values>> {
    match flags::parse(table, STYLE, arguments, |name| env::var(name).ok())? {
        Request::Run(values) => Ok(Some(values)),
        Request::Help => {
            write!(out, "{}", flags::help(usage, table))?;
            Ok(None)
        }
    }
}
