//! Flags as Istio's programs take them: long with `=` or a blank, short with or without a blank, booleans with an
//! optional `=value`; most also by an environment variable. A flag wins over the environment, and that over the
//! default.
//!
//! It reads words and gives texts; what they mean is the business of the program, and so is where the environment comes
//! from. Called by the programs in `cmd/`.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fmt::{self, Write as _},
};

use lexopt::{Arg, Parser};

/// One flag.
#[derive(Clone, Copy, Debug)]
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
#[must_use]
pub const fn flag(
    long: &'static str,
    short: Option<char>,
    env: &'static [&'static str],
    default: &'static str,
    help: &'static str,
) -> Flag {
    Flag { long, short, env, default, switch: false, help }
}

/// A flag without, or with an optional one.
#[must_use]
pub const fn switch(
    long: &'static str,
    short: Option<char>,
    env: &'static [&'static str],
    default: &'static str,
    help: &'static str,
) -> Flag {
    Flag { switch: true, ..flag(long, short, env, default, help) }
}

/// The logging flags that every program of Istio takes, with its defaults.
pub const LOGGING: &[Flag] = &[
    flag("log_target", None, &[], "stdout", "comma-separated: stdout, stderr, or paths of files"),
    flag("log_rotate", None, &[], "", "path of a log file that is rotated"),
    flag("log_rotate_max_age", None, &[], "30", "days after which rotated files are removed; 0: never"),
    flag("log_rotate_max_size", None, &[], "104857600", "megabytes at which the file is rotated"),
    flag("log_rotate_max_backups", None, &[], "1000", "rotated files to keep; 0: all"),
    switch("log_as_json", None, &[], "false", "one JSON object per line"),
    flag(
        "log_output_level",
        None,
        &[],
        "default:info",
        "scope:level,... with debug, info, warn, error, fatal, none",
    ),
    flag("log_stacktrace_level", None, &[], "default:none", "accepted for compatibility, without effect"),
    flag(
        "log_caller",
        None,
        &[],
        "",
        "comma-separated scopes whose lines tell where in the source they are from",
    ),
    flag("vklog", None, &[], "0", "accepted for compatibility, without effect"),
];

/// How a program takes its flags.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// Flags that are accepted, with a value or without, and have no effect.
    pub ignored: &'static [Flag],
}

/// A word that cannot be understood.
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

/// All that is wrong with a command line: never empty. Prints one per line.
#[derive(Debug)]
pub struct FlagErrors(pub Vec<FlagError>);

impl fmt::Display for FlagErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, error) in self.0.iter().enumerate() {
            write!(f, "{}{error}", if at == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl std::error::Error for FlagErrors {}

/// What a call asks for.
#[derive(Debug)]
pub enum Request {
    /// To explain itself.
    Help,
    /// To work with these values.
    Run(Values),
}

/// Where a value came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The table.
    Default,
    /// This variable.
    Variable(&'static str),
    /// The command line.
    Flag,
}

/// The value of every flag.
#[derive(Clone, Debug, Default)]
pub struct Values {
    values: BTreeMap<&'static str, (String, Source)>,
    ignored: BTreeSet<&'static str>,
    words: Vec<String>,
}

/// What a flag has that was not asked for.
const NOTHING: (&str, Source) = ("", Source::Default);

impl Values {
    /// The text of a flag. Empty for one that is not in the table.
    #[must_use]
    pub fn text(&self, long: &str) -> &str {
        self.get(long).0
    }

    /// The text of a flag, and where it is from. Empty and the default for one that is not in the table.
    #[must_use]
    pub fn get(&self, long: &str) -> (&str, Source) {
        self.values.get(long).map_or(NOTHING, |(text, source)| (text.as_str(), *source))
    }

    /// All flags with their texts, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str, Source)> {
        self.values.iter().map(|(long, (text, source))| (*long, text.as_str(), *source))
    }

    /// The flags without effect that were given, on the command line or by a variable.
    pub fn ignored(&self) -> impl Iterator<Item = &'static str> {
        self.ignored.iter().copied()
    }

    /// The words that are no flags, in their order; see [`parse_with_words`].
    #[must_use]
    pub fn words(&self) -> &[String] {
        &self.words
    }
}

/// Reads `arguments` (without the program's name) over the environment over the defaults.
///
/// An empty variable counts as unset: Helm renders a value that nobody set as `NAME: ""`, and means the default. A flag
/// can be set to the empty text.
///
/// # Errors
/// Everything that cannot be understood, at once.
pub fn parse(
    table: &'static [Flag],
    style: Style,
    arguments: impl IntoIterator<Item = OsString>,
    env: impl Fn(&str) -> Option<String>,
) -> Result<Request, FlagErrors> {
    read(table, style, false, arguments, env)
}

/// The same for a command that takes words which are no flags, wherever they stand: [`Values::words`].
///
/// # Errors
/// Everything that cannot be understood, at once.
pub fn parse_with_words(
    table: &'static [Flag],
    style: Style,
    arguments: impl IntoIterator<Item = OsString>,
    env: impl Fn(&str) -> Option<String>,
) -> Result<Request, FlagErrors> {
    read(table, style, true, arguments, env)
}

fn read(
    table: &'static [Flag],
    style: Style,
    takes_words: bool,
    arguments: impl IntoIterator<Item = OsString>,
    env: impl Fn(&str) -> Option<String>,
) -> Result<Request, FlagErrors> {
    let mut values = from_environment(table, style.ignored, env);
    let mut parser = Parser::from_args(arguments);
    let mut errors = Vec::new();
    loop {
        match next(table, style, &mut parser, &mut values) {
            Ok(Next::Flag) => {}
            Ok(Next::Word(word)) if takes_words => values.words.push(word),
            Ok(Next::Word(word)) => errors.push(FlagError::Unexpected(word)),
            Ok(Next::Help) => return Ok(Request::Help),
            Ok(Next::End) if errors.is_empty() => return Ok(Request::Run(values)),
            Ok(Next::End) => return Err(FlagErrors(errors)),
            Err(error) => errors.push(error),
        }
    }
}

fn from_environment(
    table: &'static [Flag],
    ignored: &'static [Flag],
    env: impl Fn(&str) -> Option<String>,
) -> Values {
    let variable = |name: &str| env(name).filter(|value| !value.is_empty());
    let found = |flag: &Flag| {
        flag.env.iter().find_map(|name| variable(name).map(|value| (value, Source::Variable(name))))
    };
    let value = |flag: &'static Flag| {
        (flag.long, found(flag).unwrap_or_else(|| (flag.default.to_owned(), Source::Default)))
    };
    let ignored = ignored.iter().filter(|flag| found(flag).is_some());
    Values {
        values: table.iter().map(value).collect(),
        ignored: ignored.map(|flag| flag.long).collect(),
        words: Vec::new(),
    }
}

enum Next {
    Flag,
    Word(String),
    Help,
    End,
}

/// Takes one flag off the command line.
fn next(
    table: &'static [Flag],
    style: Style,
    parser: &mut Parser,
    values: &mut Values,
) -> Result<Next, FlagError> {
    let named =
        |flags: &'static [Flag], matches: &dyn Fn(&Flag) -> bool| flags.iter().find(|flag| matches(flag));
    let (flag, ignored, shown) = match parser.next()? {
        None => return Ok(Next::End),
        Some(Arg::Long("help") | Arg::Short('h')) => return Ok(Next::Help),
        Some(Arg::Long(name)) => {
            let is = |flag: &Flag| flag.long == name;
            (named(table, &is), named(style.ignored, &is), format!("--{name}"))
        }
        Some(Arg::Short(name)) => {
            let is = |flag: &Flag| flag.short == Some(name);
            (named(table, &is), None, format!("-{name}"))
        }
        Some(Arg::Value(word)) => return Ok(Next::Word(word.to_string_lossy().into_owned())),
    };
    let Some(known) = flag.or(ignored) else {
        parser.optional_value(); // else it would be a second mistake
        return Err(FlagError::Unknown(shown));
    };
    let value = match known.switch {
        true => parser.optional_value().unwrap_or_else(|| "true".into()),
        false => parser.value()?,
    };
    let value = value.into_string().map_err(|_| FlagError::NotText(known.long))?;
    if flag.is_some() {
        values.values.insert(known.long, (value, Source::Flag));
    } else {
        values.ignored.insert(known.long);
    }
    Ok(Next::Flag)
}

/// The text of `--help`.
#[must_use]
pub fn help(usage: &str, table: &[Flag]) -> String {
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

    const IGNORED: &[Flag] = &[
        switch("log_as_json", None, &[], "false", ""),
        flag("log_target", None, &[], "stdout", ""),
        flag("log_output_level", None, &["LOG_OUTPUT_LEVEL"], "", ""),
    ];

    fn values(arguments: &[&str], env: &[(&str, &str)]) -> Result<Values, FlagErrors> {
        let lookup =
            |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        let style = Style { ignored: IGNORED };
        match parse(TABLE, style, arguments.iter().map(OsString::from), lookup)? {
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
        let read =
            values(&["--log_output_level=default:info", "--log_as_json", "--log_target", "x"], &[]).unwrap();
        assert_eq!(read.ignored().collect::<Vec<_>>(), ["log_as_json", "log_output_level", "log_target"]);
    }

    #[test]
    fn an_empty_variable_counts_as_unset_and_an_empty_flag_does_not() {
        let env = [("PROXY_UID", ""), ("REDIRECT_DNS", ""), ("ISTIO_META_DNS_CAPTURE", "true")];
        let read = values(&[], &env).unwrap();
        assert_eq!(read.get("proxy-uid"), ("", Source::Default));
        let next = ("true", Source::Variable("ISTIO_META_DNS_CAPTURE"));
        assert_eq!(read.get("redirect-dns"), next, "the next variable of the flag");
        assert_eq!(values(&["--envoy-port="], &env).unwrap().get("envoy-port"), ("", Source::Flag));
        assert_eq!(values(&[], &[("LOG_OUTPUT_LEVEL", "x")]).unwrap().ignored().count(), 1);
        assert_eq!(values(&[], &[("LOG_OUTPUT_LEVEL", "")]).unwrap().ignored().count(), 0);
    }

    #[test]
    fn words_are_kept_where_they_are_asked_for() {
        let style = Style { ignored: &[] };
        let arguments = ["shop/web", "-u", "3", "b", "--redirect-dns", "--", "-c"].map(OsString::from);
        match parse_with_words(TABLE, style, arguments, |_| None).unwrap() {
            Request::Run(values) => {
                assert_eq!(values.words(), ["shop/web", "b", "-c"]);
                assert_eq!(values.text("proxy-uid"), "3");
            }
            Request::Help => panic!("help"),
        }
        assert!(values(&[], &[]).unwrap().words().is_empty());
    }

    #[test]
    fn what_is_no_flag_is_refused_by_name() {
        assert_eq!(values(&["--nope"], &[]).unwrap_err().to_string(), "unknown flag: --nope");
        assert_eq!(values(&["word"], &[]).unwrap_err().to_string(), "unexpected argument \"word\"");
        assert!(values(&["-p"], &[]).is_err());
        let all = values(&["--nope=1", "word", "-x", "-u", "3", "--last"], &[]).unwrap_err().to_string();
        let lines = [
            "unknown flag: --nope",
            "unexpected argument \"word\"",
            "unknown flag: -x",
            "unknown flag: --last",
        ];
        assert_eq!(all.lines().collect::<Vec<_>>(), lines, "all at once");
    }
}
