//! Standard output and standard error.

use std::{
    env,
    io::{self, IsTerminal as _, Write as _},
};

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use serde::Serialize;

use crate::arguments::Options;

/// Exit status when the answer could not be determined, as clap's for wrong usage.
pub(crate) const CANNOT: u8 = 2;

/// What stands on standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// For people
    Table,
    /// The same with more columns, and every finding
    Wide,
    /// One JSON value
    Json,
    /// One YAML document
    Yaml,
    /// A test report for build servers; of check alone
    Junit,
    /// SARIF 2.1.0, for services that show results; of check alone
    Sarif,
}

impl OutputFormat {
    /// Only checks have this form.
    pub(crate) fn is_of_check(self) -> bool {
        matches!(self, OutputFormat::Junit | OutputFormat::Sarif)
    }
}

/// How to print.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Printer {
    pub(crate) format: OutputFormat,
    pub(crate) colour: bool,
}

impl Printer {
    /// As the flags, the variable `NO_COLOR` and the terminal have it.
    pub(crate) fn new(options: &Options) -> Printer {
        let plain = options.no_color || env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = env::var_os("TERM").is_some_and(|term| term == "dumb");
        Printer { format: options.output, colour: !plain && !dumb && io::stdout().is_terminal() }
    }

    /// Prints a value: as text, which the function makes that is told whether all and whether colours are wanted, or as it is.
    ///
    /// # Errors
    /// It cannot be printed.
    pub(crate) fn print_value<T: Serialize>(
        self,
        value: &T,
        text: impl FnOnce(bool, bool) -> String,
    ) -> Result<()> {
        let text = match self.format {
            OutputFormat::Table | OutputFormat::Junit | OutputFormat::Sarif => text(false, self.colour),
            OutputFormat::Wide => text(true, self.colour),
            OutputFormat::Json => {
                format!("{}\n", serde_json::to_string_pretty(value).context("cannot write JSON")?)
            }
            OutputFormat::Yaml => report::to_yaml(&serde_json::to_value(value).context("cannot write YAML")?),
        };
        write_stdout(text.as_bytes())
    }
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

/// A message for people, beside the answer.
#[expect(clippy::print_stderr, reason = "the answer is on standard output, for scripts")]
pub(crate) fn print_message(message: &str) {
    message.lines().for_each(|line| eprintln!("millrace: {}", report::sanitize_text(line)));
}
