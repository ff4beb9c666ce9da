//! Output of commands: formats of a value, standard output, and files for people.
//!
//! The crate must not know what is printed. Used by `millrace` and by the commands of `install-cni`.

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
        Wide = "wide", "Table with more columns, and every finding",
        /// JSON.
        Json = "json", "One JSON value",
        /// YAML.
        Yaml = "yaml", "One YAML document",
        /// JUnit's XML.
        Junit = "junit", "Test report for build servers; check only",
        /// SARIF 2.1.0.
        Sarif = "sarif", "SARIF 2.1.0, for services that show results; check only",
    }
}

impl OutputFormat {
    /// Whether only checks have this format.
    pub fn belongs_to_check(self) -> bool {
        matches!(self, OutputFormat::Junit | OutputFormat::Sarif)
    }
}

/// Output options of a command.
#[derive(Clone, Copy, Debug)]
pub struct Printer {
    /// Output format.
    pub format: OutputFormat,
    /// Whether to use colours.
    pub colour: bool,
}

impl Printer {
    /// Returns a printer with colours unless the flag `no_color`, the variable `NO_COLOR` or the terminal forbids them.
    pub fn new(format: OutputFormat, no_color: bool) -> Printer {
        let plain = no_color || env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = env::var_os("TERM").is_some_and(|term| term == "dumb");
        Printer { format, colour: !plain && !dumb && io::stdout().is_terminal() }
    }

    /// Prints a value: as text, rendered by a function of two flags (all, colours), or serialised.
    ///
    /// # Errors
    /// The value cannot be printed.
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

    /// Prints one of a series of values: as a line of text, or serialised. Returns false if standard output is a closed pipe, so that
    /// the series can end.
    ///
    /// # Errors
    /// The value cannot be printed.
    pub fn print_event(self, value: &Value, line: &str) -> Result<bool> {
        let text = match self.format {
            OutputFormat::Json => format!("{value}\n"),
            OutputFormat::Yaml => format!("---\n{}", report::to_yaml(value)),
            _ => line.to_owned(),
        };
        write_output(text.as_bytes())
    }
}

/// Writes to standard output; a closed pipe, as with `head`, is no error.
///
/// # Errors
/// The output cannot be written.
pub fn write_stdout(bytes: &[u8]) -> Result<()> {
    write_output(bytes).map(|_| ())
}

/// Writes to standard output; returns false if it is a closed pipe.
fn write_output(bytes: &[u8]) -> Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error).context("cannot write to standard output"),
    }
}

/// Returns whether standard output is a terminal, to which an archive is not written.
///
/// # Errors
/// Standard output is a terminal, and the archive is to be written there: `file` is `-`.
pub fn check_terminal(file: &str) -> Result<bool> {
    let is_terminal = io::stdout().is_terminal();
    ensure!(
        !is_terminal || file != "-",
        "refusing to write a binary archive to a terminal: redirect the output, or name a file with -f"
    );
    Ok(is_terminal)
}

/// Writes an archive to a new file with mode 0600, and prints its name; `None`: to standard output. Never overwrites another file,
/// nor follows a link that another user put there for root. On Windows the directory's permissions apply.
///
/// # Errors
/// The archive cannot be written.
pub fn write_archive(file: Option<&str>, archive: &[u8]) -> Result<()> {
    let Some(file) = file else { return write_stdout(archive) };
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut made = options.open(file).with_context(|| format!("cannot write {file}"))?;
    if let Err(error) = made.write_all(archive) {
        drop(fs::remove_file(file)); // a part of an archive is of no use, and would be in the way of the next one
        return Err(error).with_context(|| format!("cannot write {file}"));
    }
    write_stdout(format!("{file}\n").as_bytes())
}

/// Prints a program's message to standard error. A closed pipe, as with `2>&1 | head`, changes no exit status.
pub fn print_message(program: &str, message: &str) {
    let _ = writeln!(io::stderr(), "{program}: {message}");
}
