//! Forms of output.

use std::{
    env,
    io::{self, IsTerminal as _, Write as _},
};

use anyhow::{Context as _, Result, bail};
use flags::{Flag, FlagValues};
use model::parse_go_bool;
use serde::Serialize;

use super::command_flags::{NO_COLOR, OUTPUT};

/// Format of the standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputFormat {
    /// For people.
    Table,
    /// For people, with more columns where there are any.
    Wide,
    /// One JSON value.
    Json,
    /// One YAML document.
    Yaml,
    /// A test report for build servers; of `check` alone.
    Junit,
    /// SARIF 2.1.0; of `check` alone.
    Sarif,
}

impl OutputFormat {
    /// Only `check` has this form.
    pub(crate) fn is_of_check(self) -> bool {
        matches!(self, OutputFormat::Junit | OutputFormat::Sarif)
    }
}

/// How to print.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutputOptions {
    /// In which form.
    pub(crate) form: OutputFormat,
    /// With colours.
    pub(crate) colour: bool,
}

impl OutputOptions {
    /// As the flags, the variable `NO_COLOR` and the terminal have it.
    ///
    /// # Errors
    /// There is no such form.
    pub(crate) fn from_flags(values: &FlagValues) -> Result<OutputOptions> {
        let form = match values.flag_text(&OUTPUT) {
            "table" | "" => OutputFormat::Table,
            "wide" => OutputFormat::Wide,
            "json" => OutputFormat::Json,
            "yaml" => OutputFormat::Yaml,
            "junit" => OutputFormat::Junit,
            "sarif" => OutputFormat::Sarif,
            other => bail!("--output: {other:?} is none of table, wide, json and yaml"),
        };
        let plain =
            is_on(values, &NO_COLOR)? || env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = env::var_os("TERM").is_some_and(|term| term == "dumb");
        Ok(OutputOptions { form, colour: !plain && !dumb && io::stdout().is_terminal() })
    }

    /// Prints a value: as a table, made by the function that is told whether colours are wanted, or as it is.
    ///
    /// # Errors
    /// It cannot be printed.
    pub(crate) fn print_value<T: Serialize + ?Sized>(
        self,
        value: &T,
        table: impl FnOnce(bool) -> String,
    ) -> Result<()> {
        let text = match self.form {
            OutputFormat::Table | OutputFormat::Wide | OutputFormat::Junit | OutputFormat::Sarif => {
                table(self.colour)
            }
            OutputFormat::Json => {
                format!("{}\n", serde_json::to_string_pretty(value).context("cannot write JSON")?)
            }
            OutputFormat::Yaml => report::to_yaml(&serde_json::to_value(value).context("cannot write YAML")?),
        };
        write_stdout(text.as_bytes())
    }
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

/// Writes to standard output; a reader that has gone, as `head` does, has what it wanted.
///
/// # Errors
/// It cannot be written.
pub(crate) fn write_stdout(bytes: &[u8]) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}
