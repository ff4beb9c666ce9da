//! Flags as Istio's tools take them: long with `=` or a blank, short with or without a blank, booleans with an
//! optional `=value`; each also by an environment variable.

use std::{collections::BTreeMap, env, ffi::OsString, fmt::Write as _, io::Write};

use lexopt::{Arg, Parser};

/// One flag.
#[derive(Debug)]
pub struct Flag {
    /// Its long name, which is its key too.
    pub long: &'static str,
    /// Its short name.
    pub short: Option<char>,
    /// Environment variables that set it, the first that is there wins.
    pub env: &'static [&'static str],
    /// Its value when nobody says anything.
    pub default: &'static str,
    /// True for a switch.
    pub switch: bool,
    /// One line for `--help`.
    pub help: &'static str,
}

/// A flag with a value.
pub(crate) const fn flag(
    long: &'static str,
    short: Option<char>,
    env: &'static [&'static str],
    default: &'static str,
    help: &'static str,
) -> Flag {
    Flag { long, short, env, default, switch: false, help }
}

/// A flag without, or with an optional one.
pub(crate) const fn switch(
    long: &'static str,
    short: Option<char>,
    env: &'static [&'static str],
    default: &'static str,
    help: &'static str,
) -> Flag {
    Flag { switch: true, ..flag(long, short, env, default, help) }
}

/// The command line cannot be understood.
#[derive(Debug, thiserror::Error)]
pub enum FlagError {
    /// As the parser says.
    #[error("{0}")]
    Usage(#[from] lexopt::Error),
    /// A word that is no flag.
    #[error("unexpected argument {0:?}")]
    Unexpected(String),
    /// No such flag.
    #[error("unknown flag: {0}")]
    Unknown(String),
    /// A value that is not text.
    #[error("the value of --{0} is not UTF-8")]
    NotText(&'static str),
}

/// What a call asks for.
#[derive(Debug)]
pub enum Request {
    /// To explain itself.
    Help,
    /// To work with these values.
    Run(Values),
}

/// The value of every flag.
#[derive(Clone, Debug, Default)]
pub struct Values {
    values: BTreeMap<&'static str, String>,
}

impl Values {
    /// The text of a flag. Empty for one that is not in the table.
    #[must_use]
    pub fn text(&self, long: &str) -> &str {
        self.values.get(long).map_or("", String::as_str)
    }
}

/// Logging flags that every Istio command takes; this tool logs what it does to standard output and has no levels,
/// so that they are accepted and have no effect.
const IGNORED: [&str; 9] = [
    "log_as_json",
    "log_caller",
    "log_output_level",
    "log_rotate",
    "log_rotate_max_age",
    "log_rotate_max_backups",
    "log_rotate_max_size",
    "log_stacktrace_level",
    "log_target",
];

/// Reads `arguments` (without the program's name) over the environment over the defaults.
///
/// # Errors
/// [`FlagError`]
pub fn parse(
    table: &'static [Flag],
    arguments: impl IntoIterator<Item = OsString>,
    env: impl Fn(&str) -> Option<String>,
) -> Result<Request, FlagError> {
    let mut values = Values::default();
    for flag in table {
        let from_env = flag.env.iter().find_map(|name| env(name)).filter(|value| !value.is_empty());
        values.values.insert(flag.long, from_env.unwrap_or_else(|| flag.default.to_owned()));
    }
    let mut parser = Parser::from_args(arguments);
    while let Some(argument) = parser.next()? {
        let (flag, shown) = match argument {
            Arg::Long("help") | Arg::Short('h') => return Ok(Request::Help),
            Arg::Long(name) if IGNORED.contains(&name) => {
                let is_switch = name == "log_as_json";
                skip_value(&mut parser, is_switch)?;
                continue;
            }
            Arg::Long(name) => (table.iter().find(|flag| flag.long == name), format!("--{name}")),
            Arg::Short(name) => (table.iter().find(|flag| flag.short == Some(name)), format!("-{name}")),
            Arg::Value(word) => return Err(FlagError::Unexpected(word.to_string_lossy().into_owned())),
        };
        let flag = flag.ok_or(FlagError::Unknown(shown))?;
        let value = if flag.switch {
            parser.optional_value().unwrap_or_else(|| "true".into())
        } else {
            parser.value()?
        };
        let value = value.into_string().map_err(|_| FlagError::NotText(flag.long))?;
        values.values.insert(flag.long, value);
    }
    Ok(Request::Run(values))
}

fn skip_value(parser: &mut Parser, is_switch: bool) -> Result<(), FlagError> {
    if parser.optional_value().is_none() && !is_switch {
        parser.value()?;
    }
    Ok(())
}

/// Reads the flags of this process's call; none when it was only asked to explain itself, which it has then.
///
/// # Errors
/// [`FlagError`], or `out` cannot be written to.
pub fn read(
    usage: &str,
    table: &'static [Flag],
    arguments: impl IntoIterator<Item = OsString>,
    out: &mut impl Write,
) -> anyhow::Result<Option<Values>> {
    match parse(table, arguments, |name| env::var(name).ok())? {
        Request::Run(values) => Ok(Some(values)),
        Request::Help => {
            write!(out, "{}", help(usage, table))?;
            Ok(None)
        }
    }
}

/// The text of `--help`.
fn help(usage: &str, table: &[Flag]) -> String {
    let mut text = format!("{usage}\n\nFlags:\n");
    for flag in table {
        let short = flag.short.map_or_else(|| "    ".to_owned(), |short| format!("-{short}, "));
        let value = if flag.switch { "" } else { " string" };
        let default =
            if flag.default.is_empty() { String::new() } else { format!(" (default {})", flag.default) };
        let env = if flag.env.is_empty() { String::new() } else { format!(" [{}]", flag.env.join(", ")) };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {short}--{}{value}\n        {}{default}{env}", flag.long, flag.help);
    }
    text.push_str("  -h, --help\n        this text\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[Flag] = &[
        Flag { long: "envoy-port", short: Some('p'), env: &[], default: "15001", switch: false, help: "" },
        Flag {
            long: "proxy-uid",
            short: Some('u'),
            env: &["PROXY_UID"],
            default: "",
            switch: false,
            help: "",
        },
        Flag {
            long: "redirect-dns",
            short: None,
            env: &["REDIRECT_DNS", "ISTIO_META_DNS_CAPTURE"],
            default: "false",
            switch: true,
            help: "",
        },
    ];

    fn values(arguments: &[&str], env: &[(&str, &str)]) -> Result<Values, FlagError> {
        let lookup =
            |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        match parse(TABLE, arguments.iter().map(OsString::from), lookup)? {
            Request::Run(values) => Ok(values),
            Request::Help => panic!("help"),
        }
    }

    #[test]
    fn a_flag_wins_over_the_environment_and_that_over_the_default() {
        let env = [("PROXY_UID", "1"), ("ISTIO_META_DNS_CAPTURE", "true"), ("ENVOY_PORT", "9")];
        let read = values(&["-u", "2"], &env).unwrap();
        assert_eq!(read.text("proxy-uid"), "2");
        assert_eq!(read.text("redirect-dns"), "true");
        assert_eq!(read.text("envoy-port"), "15001", "--envoy-port has no variable");
        assert_eq!(values(&[], &env).unwrap().text("proxy-uid"), "1");
    }

    #[test]
    fn every_form_of_a_flag_is_read() {
        for form in [&["-p16001"][..], &["-p", "16001"], &["--envoy-port=16001"], &["--envoy-port", "16001"]]
        {
            assert_eq!(values(form, &[]).unwrap().text("envoy-port"), "16001", "{form:?}");
        }
        assert_eq!(values(&["--redirect-dns"], &[]).unwrap().text("redirect-dns"), "true");
        assert_eq!(
            values(&["--redirect-dns=false"], &[("REDIRECT_DNS", "1")]).unwrap().text("redirect-dns"),
            "false"
        );
        assert_eq!(values(&["-u", ""], &[("PROXY_UID", "1")]).unwrap().text("proxy-uid"), "");
        assert!(
            values(&["--log_output_level=default:info", "--log_as_json", "--log_target", "x"], &[]).is_ok()
        );
    }

    #[test]
    fn what_is_no_flag_is_refused_by_name() {
        assert_eq!(values(&["--nope"], &[]).unwrap_err().to_string(), "unknown flag: --nope");
        assert_eq!(values(&["word"], &[]).unwrap_err().to_string(), "unexpected argument \"word\"");
        assert!(values(&["-p"], &[]).is_err());
    }
}
