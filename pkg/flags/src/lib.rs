//! Flags in the syntax of Istio's programs: long with `=` or a blank, short with or without a blank, booleans with an optional
//! `=value`; most can also be set by an environment variable. A flag takes precedence over the environment, and that over the
//! default.
//!
//! The crate parses words to texts. The program interprets them, with `duration` for a common type, and passes the environment.
//! Called by the programs in `cmd/`.

mod duration;
mod flag;
mod logging;

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
};

use lexopt::{Arg, Parser};

pub use duration::{duration_or_seconds, parse_duration};
pub use flag::{Flag, help_text, long_name};
pub use logging::{
    LOG_AS_JSON, LOG_CALLER, LOG_OUTPUT_LEVEL, LOG_ROTATE, LOG_STACKTRACE_LEVEL, LOG_TARGET, LOGGING,
};

/// Maximum length of a mistyped name.
const MAX_WORD: usize = 64;

/// How a program parses its flags.
#[derive(Clone, Copy, Debug, Default)]
pub struct FlagStyle {
    /// Flags that are accepted, with a value or without, and have no effect.
    pub ignored: &'static [Flag],
    /// Arguments that are no flags are taken, in any position: [`FlagValues::positionals`].
    pub takes_operands: bool,
}

/// All errors of a command line, never empty. Formats one per line.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct FlagErrors(pub Vec<String>);

/// Action requested by a call.
#[derive(Debug)]
pub enum ParseOutcome {
    /// Print help.
    Help,
    /// Run with these values.
    Run(FlagValues),
}

/// Source of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueSource {
    /// The default in the table.
    Default,
    /// An environment variable.
    Variable(&'static str),
    /// The command line.
    Flag,
}

/// Values of all flags.
#[derive(Clone, Debug, Default)]
pub struct FlagValues {
    values: BTreeMap<&'static str, (String, ValueSource)>,
    ignored: BTreeSet<&'static str>,
    operands: Vec<String>,
    service_links: Vec<(&'static str, String)>,
}

impl FlagValues {
    /// Returns the text of a flag; its own default if it is not in the command's table.
    pub fn flag_text(&self, flag: &Flag) -> &str {
        self.get(flag).0
    }

    /// Returns the text of a flag, and its source; its own default if it is not in the command's table.
    pub fn get(&self, flag: &Flag) -> (&str, ValueSource) {
        let found = self.values.get(flag.long);
        found.map_or((flag.default, ValueSource::Default), |(text, source)| (text.as_str(), *source))
    }

    /// Returns all flags with their texts, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str, ValueSource)> {
        self.values.iter().map(|(long, (text, source))| (*long, text.as_str(), *source))
    }

    /// Sets a flag that has its default, as if it were on the command line; other flags, and unknown names, are unchanged.
    pub fn fill_default(&mut self, long: &str, text: &str) {
        if let Some((value, source)) = self.values.get_mut(long)
            && *source == ValueSource::Default
        {
            (*value, *source) = (text.to_owned(), ValueSource::Flag);
        }
    }

    /// Copies a flag's text and source from other values.
    pub fn copy_from(&mut self, other: &FlagValues, flag: &Flag) {
        if let Some(found) = other.values.get(flag.long) {
            self.values.insert(flag.long, found.clone());
        }
    }

    /// Resets each switch that a variable sets to no boolean to its default, and returns the variables with their values.
    pub fn reset_switches(
        &mut self,
        table: &[Flag],
        is_boolean: impl Fn(&str) -> bool,
    ) -> Vec<(&'static str, String)> {
        let mut reset = Vec::new();
        for flag in table.iter().filter(|flag| flag.switch) {
            if let (text, ValueSource::Variable(name)) = self.get(flag)
                && !is_boolean(text)
            {
                reset.push((name, text.to_owned()));
                self.values.insert(flag.long, (flag.default.to_owned(), ValueSource::Default));
            }
        }
        reset
    }

    /// Returns the flags without effect that were given, on the command line or by a variable.
    pub fn ignored_flags(&self) -> impl Iterator<Item = &'static str> {
        self.ignored.iter().copied()
    }

    /// Returns the variables of flags that Kubernetes set for a Service, with their values; they count as unset.
    pub fn service_links(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.service_links.iter().map(|(name, text)| (*name, text.as_str()))
    }

    /// The operands, which are no flags, in their order; see [`FlagStyle::takes_operands`].
    pub fn positionals(&self) -> &[String] {
        &self.operands
    }
}

/// Parses `arguments` (without the program's name) over the environment over the defaults.
///
/// An empty variable counts as unset: Helm renders an unset value as `NAME: ""`, meaning the default. A flag can be set to the
/// empty text. A variable that Kubernetes sets for a Service counts as unset, too: [`FlagValues::service_links`].
///
/// # Errors
/// All errors together.
pub fn parse(
    table: &'static [Flag],
    style: FlagStyle,
    arguments: impl IntoIterator<Item = OsString>,
    env: impl Fn(&str) -> Option<String>,
) -> Result<ParseOutcome, FlagErrors> {
    let mut values = from_environment(table, style.ignored, env);
    let mut parser = Parser::from_args(arguments);
    let mut errors = Vec::new();
    loop {
        match next_argument(table, style, &mut parser, &mut values) {
            Ok(NextArg::Flag) => {}
            Ok(NextArg::Word(word)) if style.takes_operands => values.operands.push(word),
            Ok(NextArg::Word(word)) => errors.push(format!("unexpected argument {word:?}")),
            Ok(NextArg::Help) => return Ok(ParseOutcome::Help),
            Ok(NextArg::End) if errors.is_empty() => return Ok(ParseOutcome::Run(values)),
            Ok(NextArg::End) => return Err(FlagErrors(errors)),
            Err(error) => errors.push(error.to_string()),
        }
    }
}

fn from_environment(
    table: &'static [Flag],
    ignored: &'static [Flag],
    env: impl Fn(&str) -> Option<String>,
) -> FlagValues {
    let variable = |name: &str| env(name).filter(|value| !value.is_empty() && !is_service_link(name, value));
    let found = |flag: &Flag| {
        flag.env.iter().find_map(|name| variable(name).map(|value| (value, ValueSource::Variable(name))))
    };
    let value = |flag: &'static Flag| {
        (flag.long, found(flag).unwrap_or_else(|| (flag.default.to_owned(), ValueSource::Default)))
    };
    let ignored = ignored.iter().filter(|flag| found(flag).is_some());
    let names = table.iter().flat_map(|flag| flag.env.iter().copied());
    let links = names.filter_map(|name| Some((name, env(name).filter(|text| is_service_link(name, text))?)));
    FlagValues {
        values: table.iter().map(value).collect(),
        ignored: ignored.map(|flag| flag.long).collect(),
        operands: Vec::new(),
        service_links: links.collect(),
    }
}

/// Returns whether Kubernetes sets this variable for a Service: `ENVOY_PORT=tcp://10.96.0.9:80` for one named `envoy`.
fn is_service_link(name: &str, text: &str) -> bool {
    name.ends_with("_PORT") && text.contains("://")
}

/// Returns the name that was probably meant; `None`: none is similar.
pub fn nearest_name<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // A mistyped name is never much longer than the name.
    let word = Some(word).filter(|word| word.len() <= MAX_WORD)?;
    let distances = names.into_iter().map(|name| (strsim::damerau_levenshtein(word, name), name));
    let similar = distances.filter(|(distance, name)| *distance <= (name.len() / 3).max(1));
    similar.min_by_key(|(distance, _)| *distance).map(|(_, name)| name)
}

enum NextArg {
    Flag,
    Word(String),
    Help,
    End,
}

/// Consumes one flag of the command line.
fn next_argument(
    table: &'static [Flag],
    style: FlagStyle,
    parser: &mut Parser,
    values: &mut FlagValues,
) -> Result<NextArg, lexopt::Error> {
    let named =
        |flags: &'static [Flag], matches: &dyn Fn(&Flag) -> bool| flags.iter().find(|flag| matches(flag));
    let (flag, ignored, shown) = match parser.next()? {
        None => return Ok(NextArg::End),
        Some(Arg::Long("help") | Arg::Short('h')) => return Ok(NextArg::Help),
        Some(Arg::Long(name)) => {
            let is = |flag: &Flag| flag.long == name;
            (named(table, &is), named(style.ignored, &is), format!("--{name}"))
        }
        Some(Arg::Short(name)) => {
            let is = |flag: &Flag| flag.short == Some(name);
            (named(table, &is), None, format!("-{name}"))
        }
        Some(Arg::Value(word)) => return Ok(NextArg::Word(word.to_string_lossy().into_owned())),
    };
    let Some(known) = flag.or(ignored) else {
        parser.optional_value(); // otherwise it would cause a second error
        let meant =
            shown.strip_prefix("--").and_then(|name| nearest_name(name, table.iter().map(|flag| flag.long)));
        let hint = meant.map(|name| format!(" (did you mean --{name}?)")).unwrap_or_default();
        return Err(format!("unknown flag: {shown}{hint}").into());
    };
    let value = match known.switch {
        true => parser.optional_value().unwrap_or_else(|| "true".into()),
        false => parser.value()?,
    };
    let value = value.into_string().map_err(|_| format!("the value of --{known} is not UTF-8"))?;
    if flag.is_some() {
        values.values.insert(known.long, (value, ValueSource::Flag));
    } else {
        values.ignored.insert(known.long);
    }
    Ok(NextArg::Flag)
}

#[cfg(test)]
#[expect(unreachable_pub, reason = "the macro is for other crates")]
mod tests {
    use super::*;

    const ENVOY_PORT: Flag = Flag::with_value("15001", "").long("envoy-port").short('p');

    crate::flag_table!(
        TABLE,
        ENVOY_PORT,
        PROXY_UID = Flag::with_value("", "").short('u'),
        REDIRECT_DNS = Flag::new_switch("").env(&["REDIRECT_DNS", "ISTIO_META_DNS_CAPTURE"]),
    );

    const IGNORED: &[Flag] = &[
        Flag::new_switch("").long("log_as_json"),
        Flag::with_value("stdout", "").long("log_target"),
        Flag::with_value("", "").long("log_output_level").env(&["LOG_OUTPUT_LEVEL"]),
    ];

    #[test]
    fn a_table_names_flags_and_variables_by_their_consts() {
        let names = TABLE.iter().map(|flag| (flag.long, flag.env)).collect::<Vec<_>>();
        let expected: [(&str, &[&str]); 3] = [
            ("envoy-port", &[]),
            ("proxy-uid", &["PROXY_UID"]),
            ("redirect-dns", &["REDIRECT_DNS", "ISTIO_META_DNS_CAPTURE"]),
        ];
        assert_eq!(names, expected);
    }

    fn values(arguments: &[&str], env: &[(&str, &str)]) -> Result<FlagValues, FlagErrors> {
        let lookup =
            |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        let style = FlagStyle { ignored: IGNORED, takes_operands: false };
        match parse(TABLE, style, arguments.iter().map(OsString::from), lookup)? {
            ParseOutcome::Run(values) => Ok(values),
            ParseOutcome::Help => panic!("help"),
        }
    }

    #[test]
    fn a_flag_wins_over_the_environment_and_that_over_the_default() {
        let env = [("PROXY_UID", "1"), ("ISTIO_META_DNS_CAPTURE", "true"), ("ENVOY_PORT", "9")];
        let read = values(&["-u", "2"], &env).unwrap();
        assert_eq!(read.flag_text(&PROXY_UID), "2");
        assert_eq!(read.flag_text(&REDIRECT_DNS), "true");
        assert_eq!(read.flag_text(&ENVOY_PORT), "15001", "--envoy-port has no variable");
        assert_eq!(values(&[], &env).unwrap().flag_text(&PROXY_UID), "1");
    }

    #[test]
    fn a_port_variable_of_a_service_counts_as_unset_and_is_reported() {
        const ADMIN_PORT: Flag = Flag::with_value("9", "").long("admin-port").env(&["ADMIN_PORT"]);
        const TEXT: Flag = Flag::with_value("", "").long("text").env(&["TEXT"]);
        const LINK: &str = "tcp://10.96.0.9:80";
        let parsed = parse(&[ADMIN_PORT, TEXT], FlagStyle::default(), [], |_| Some(LINK.to_owned()));
        let Ok(ParseOutcome::Run(values)) = parsed else { panic!("it is valid") };
        assert_eq!(values.get(&ADMIN_PORT), ("9", ValueSource::Default));
        assert_eq!(values.flag_text(&TEXT), LINK, "no port");
        assert_eq!(values.service_links().collect::<Vec<_>>(), [("ADMIN_PORT", LINK)]);
    }

    #[test]
    fn every_form_of_a_flag_is_read() {
        for form in [&["-p16001"][..], &["-p", "16001"], &["--envoy-port=16001"], &["--envoy-port", "16001"]]
        {
            assert_eq!(values(form, &[]).unwrap().flag_text(&ENVOY_PORT), "16001", "{form:?}");
        }
        assert_eq!(values(&["--redirect-dns"], &[]).unwrap().flag_text(&REDIRECT_DNS), "true");
        assert_eq!(
            values(&["--redirect-dns=false"], &[("REDIRECT_DNS", "1")]).unwrap().flag_text(&REDIRECT_DNS),
            "false"
        );
        assert_eq!(values(&["-u", ""], &[("PROXY_UID", "1")]).unwrap().flag_text(&PROXY_UID), "");
        let read =
            values(&["--log_output_level=default:info", "--log_as_json", "--log_target", "x"], &[]).unwrap();
        assert_eq!(
            read.ignored_flags().collect::<Vec<_>>(),
            ["log_as_json", "log_output_level", "log_target"]
        );
    }

    #[test]
    fn an_empty_variable_counts_as_unset_and_an_empty_flag_does_not() {
        let env = [("PROXY_UID", ""), ("REDIRECT_DNS", ""), ("ISTIO_META_DNS_CAPTURE", "true")];
        let read = values(&[], &env).unwrap();
        assert_eq!(read.get(&PROXY_UID), ("", ValueSource::Default));
        let next = ("true", ValueSource::Variable("ISTIO_META_DNS_CAPTURE"));
        assert_eq!(read.get(&REDIRECT_DNS), next, "the next variable of the flag");
        assert_eq!(values(&["--envoy-port="], &env).unwrap().get(&ENVOY_PORT), ("", ValueSource::Flag));
        assert_eq!(values(&[], &[("LOG_OUTPUT_LEVEL", "x")]).unwrap().ignored_flags().count(), 1);
        assert_eq!(values(&[], &[("LOG_OUTPUT_LEVEL", "")]).unwrap().ignored_flags().count(), 0);
    }

    #[test]
    fn a_mistyped_name_is_recognised_and_another_word_is_not() {
        let names = ["state", "explain", "list", "log-level"];
        for (word, meant) in [
            ("explian", Some("explain")),
            ("stat", Some("state")),
            ("loglevel", Some("log-level")),
            ("lsit", Some("list")),
            ("uninstall", None),
            ("", None),
        ] {
            assert_eq!(nearest_name(word, names), meant, "{word}");
        }
        assert_eq!(nearest_name(&"list".repeat(1000), names), None);
        let error = values(&["--envoy-prot=1"], &[]).unwrap_err().to_string();
        assert_eq!(error, "unknown flag: --envoy-prot (did you mean --envoy-port?)");
        assert_eq!(values(&["--verbose"], &[]).unwrap_err().to_string(), "unknown flag: --verbose");
    }

    #[test]
    fn only_a_flag_that_nobody_has_given_is_filled_in() {
        let mut read = values(&["-u", "2"], &[("REDIRECT_DNS", "true")]).unwrap();
        for (long, text) in
            [("proxy-uid", "3"), ("redirect-dns", "false"), ("envoy-port", "9"), ("no-such", "1")]
        {
            read.fill_default(long, text);
        }
        assert_eq!((read.flag_text(&PROXY_UID), read.flag_text(&REDIRECT_DNS)), ("2", "true"));
        assert_eq!(read.get(&ENVOY_PORT), ("9", ValueSource::Flag));
    }

    #[test]
    fn a_flag_of_another_command_has_its_own_default() {
        let elsewhere = Flag::with_value("table", "").long("output").env(&["OUTPUT"]);
        assert_eq!(
            values(&[], &[("OUTPUT", "json")]).unwrap().get(&elsewhere),
            ("table", ValueSource::Default)
        );
    }

    #[test]
    fn words_are_kept_where_they_are_asked_for() {
        let style = FlagStyle { ignored: &[], takes_operands: true };
        let arguments = ["shop/web", "-u", "3", "b", "--redirect-dns", "--", "-c"].map(OsString::from);
        match parse(TABLE, style, arguments, |_| None).unwrap() {
            ParseOutcome::Run(values) => {
                assert_eq!(values.positionals(), ["shop/web", "b", "-c"]);
                assert_eq!(values.flag_text(&PROXY_UID), "3");
            }
            ParseOutcome::Help => panic!("help"),
        }
        assert!(values(&[], &[]).unwrap().positionals().is_empty());
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
