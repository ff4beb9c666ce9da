//! Output format of the commands, from their flags.

use anyhow::{Context as _, Result, anyhow};
use console::{OutputFormat, Printer};
use flags::{Flag, FlagValues};
use model::parse_switch;

use super::command_flags::{NO_COLOR, OUTPUT};

/// Program name, the prefix of each message.
pub(crate) const PROGRAM: &str = "install-cni";

/// Returns the output formats of `check` or of another command.
pub(crate) fn list_formats(is_check: bool) -> Vec<&'static str> {
    let formats = OutputFormat::ALL.into_iter().filter(|format| is_check || !format.belongs_to_check());
    formats.map(OutputFormat::code).collect()
}

/// Returns the printer that the flags select.
///
/// # Errors
/// The command, `check` or another one, has no such output format.
pub(crate) fn new_printer(values: &FlagValues, is_check: bool) -> Result<Printer> {
    let format = match values.flag_text(&OUTPUT) {
        "" => OutputFormat::Table,
        text => {
            let found = OutputFormat::from_name(text).filter(|format| is_check || !format.belongs_to_check());
            found.with_context(|| {
                format!("--output: {text:?} is not one of {}", list_formats(is_check).join(", "))
            })?
        }
    };
    Ok(Printer::new(format, is_on(values, &NO_COLOR)?))
}

/// Returns the value of a boolean flag; empty, or not in the table, counts as false.
///
/// # Errors
/// The value is neither true nor false.
pub(crate) fn is_on(values: &FlagValues, flag: &Flag) -> Result<bool> {
    parse_switch(values.flag_text(flag)).map_err(|mistake| anyhow!("--{flag}: {mistake}"))
}
