//! Command line of both tools.

use std::{env, ffi::OsString, io::Write};

use anyhow::Result;
use flags::{Flag, FlagStyle, FlagValues, ParseOutcome};
use model::parse_go_bool;

/// These tools log to standard output and have no levels, so Istio's logging flags have no effect.
const STYLE: FlagStyle = FlagStyle { ignored: flags::LOGGING, takes_operands: false };

/// Parses the flags of this process's call; `None` if it only asked for help, which has then been printed.
///
/// # Errors
/// A flag is invalid, or `out` cannot be written to.
pub(crate) fn read_flags(
    usage: &str,
    table: &'static [Flag],
    arguments: impl IntoIterator<Item = OsString>,
    out: &mut impl Write,
) -> Result<Option<FlagValues>> {
    match flags::parse(table, STYLE, arguments, |name| env::var(name).ok())? {
        ParseOutcome::Run(mut values) => {
            for (name, text) in values.service_links() {
                writeln!(out, "warning: {name} is {text:?}, which is an address of a Service: ignored")?;
            }
            // As in Istio: a container's variable for another program must not keep a pod from starting.
            for (name, text) in values.reset_switches(table, |text| parse_go_bool(text).is_some()) {
                writeln!(out, "warning: {name} is {text:?}, which is not a boolean: ignored")?;
            }
            Ok(Some(values))
        }
        ParseOutcome::Help => {
            write!(out, "{}", flags::help_text(usage, table))?;
            Ok(None)
        }
    }
}
