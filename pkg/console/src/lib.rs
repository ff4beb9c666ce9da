//! Output of commands: the forms in which a value is printed, standard output, and files that are made for people.
//!
//! It must not know what is printed. Used by `millrace` and by the commands of `install-cni`.

use std::{
    env, fs,
    io::{self, IsTerminal as _, Write as _},
};

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;
use serde_json::Value;

model::word_enum! {
    /// Format of the standard output.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum OutputFormat {
        /// A table, or prose.
        Table = "table", "For people",
        /// As [`OutputFormat::Table`], in full.
        Wide = "wide", "The same with more columns, and every finding",
        /// JSON.
        Json = "json", "One JSON value",
        /// YAML.
        Yaml = "yaml", "One YAML document",
        /// JUnit's XML.
        Junit = "junit", "A test report for build servers; of check alone",
        /// SARIF 2.1.0.
        Sarif = "sarif", "SARIF 2.1.0, for services that show results; of check alone",
    }
}

impl OutputFormat {
    /// Only checks have this form.
    pub fn is_of_check(self) -> bool {
        matches!(self, OutputFormat::Junit | OutputFormat::Sarif)
    }
}

/// How to print.
#[derive(Clone, Copy, Debug)]
pub struct Printer {
    /// In which form.
    pub format: OutputFormat,
    /// With colours.
    pub colour: bool,
}

impl Printer {
    /// With colours unless the flag `no_color`, the variable `NO_COLOR` or the terminal forbids them.
    pub fn new(format: OutputFormat, no_color: bool) -> Printer {
        let plain = no_color || env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = env::var_os("TERM").is_some_and(|term| term == "dumb");
        Printer { format, colour: !plain && !dumb && io::stdout().is_terminal() }
    }

    /// Prints a value: as text, which the function makes that is told whether all and whether colours are wanted, or as it is.
    ///
    /// # Errors
    /// It cannot be printed.
    pub fn print_value<T: Serialize + ?Sized>(
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

    /// Prints one of many values that follow each other: as a line of text, or as it is.
    ///
    /// # Errors
    /// It cannot be printed.
    pub fn print_event(self, value: &Value, line: &str) -> Result<()> {
        let text = match self.format {
            OutputFormat::Json => format!("{value}\n"),
            OutputFormat::Yaml => format!("---\n{}", report::to_yaml(value)),
            _ => line.to_owned(),
        };
        write_stdout(text.as_bytes())
    }
}

/// Writes to standard output; a reader that has gone, as `head` does, has what it wanted.
///
/// # Errors
/// It cannot be written.
pub fn write_stdout(bytes: &[u8]) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}

/// Returns whether standard output is a terminal, which an archive is not written to.
///
/// # Errors
/// It is one, and the archive is to go there: `file` is `-`.
pub fn check_terminal(file: &str) -> Result<bool> {
    let is_terminal = io::stdout().is_terminal();
    ensure!(
        !is_terminal || file != "-",
        "refusing to write a binary archive to a terminal: redirect the output, or name a file with -f"
    );
    Ok(is_terminal)
}

/// Writes an archive to a new file that only its owner may read, and prints its name; `None`: to standard output. It is never
/// written over another file, nor through a link that another user put there for root to follow. On Windows the directory decides
/// who may read it.
///
/// # Errors
/// It cannot be written.
pub fn write_archive(file: Option<&str>, archive: &[u8]) -> Result<()> {
    let Some(file) = file else { return write_stdout(archive) };
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let made = options.open(file);
    made.and_then(|mut made| made.write_all(archive)).with_context(|| format!("cannot write {file}"))?;
    write_stdout(format!("{file}\n").as_bytes())
}

/// Prints a message of a program on standard error.
#[expect(
    clippy::print_stderr,
    reason = "beside the answer on standard output, and where there may be no log yet"
)]
pub fn print_message(program: &str, message: &str) {
    eprintln!("{program}: {message}");
}
