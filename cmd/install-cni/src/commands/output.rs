//! Output of the commands as their flags ask for it.

use anyhow::{Context as _, Result};
use console::{OutputFormat, Printer};
use flags::{Flag, FlagValues};
use model::parse_go_bool;

use super::command_flags::{NO_COLOR, OUTPUT};

/// Returns how to print, as the flags have it.
///
/// # Errors
/// There is no such form.
pub(crate) fn new_printer(values: &FlagValues) -> Result<Printer> {
    let format = match values.flag_text(&OUTPUT) {
        "" => OutputFormat::Table,
        text => OutputFormat::from_name(text)
            .with_context(|| format!("--output: {text:?} must be one of table, wide, json and yaml"))?,
    };
    Ok(Printer::new(format, is_on(values, &NO_COLOR)?))
}

/// The value of a switch; empty, or not in the table, counts as false.
///
/// # Errors
/// It is neither true nor false.
pub(crate) fn is_on(values: &FlagValues, flag: &Flag) -> Result<bool> {
    let text = values.flag_text(flag);
    if text.is_empty() {
        return Ok(false);
    }
    parse_go_bool(text).with_context(|| format!("--{flag}: {text:?} is neither true nor false"))
}
