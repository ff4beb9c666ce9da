//! Istio's logging flags: from text to values.

use std::collections::BTreeSet;

use super::level::{ALL_SCOPES, DEFAULT_SCOPE, ScopeLevels};

/// The values of Istio's logging flags, as text. The default values are Istio's.
#[derive(Clone, Copy, Debug)]
pub struct LogFlags<'a> {
    /// `--log_target`: comma-separated `stdout`, `stderr`, or paths of files, which are appended to.
    pub log_target: &'a str,
    /// `--log_rotate`: path of a file, beside the targets; empty for none. It is appended to and never rotated: the
    /// container runtime or logrotate does that.
    pub log_rotate: &'a str,
    /// `--log_as_json`: a JSON object on each line, not text with tabs.
    pub log_as_json: &'a str,
    /// `--log_output_level`: `scope:level,…`.
    pub log_output_level: &'a str,
    /// `--log_stacktrace_level`: as the one before. Checked, and without effect: there are no stack traces.
    pub log_stacktrace_level: &'a str,
    /// `--log_caller`: comma-separated scopes whose lines tell where in the source they come from.
    pub log_caller: &'a str,
}

impl Default for LogFlags<'_> {
    fn default() -> Self {
        LogFlags {
            log_target: "stdout",
            log_rotate: "",
            log_as_json: "false",
            log_output_level: "default:info",
            log_stacktrace_level: "default:none",
            log_caller: "",
        }
    }
}

/// How to log: the flags, checked.
#[derive(Debug)]
pub struct LogOptions {
    /// `stdout`, `stderr` or paths.
    pub(super) targets: Vec<String>,
    pub(super) json: bool,
    pub(super) levels: ScopeLevels,
    pub(super) callers: CallerScopes,
}

/// The scopes of `--log_caller`.
#[derive(Debug, Default)]
pub(super) struct CallerScopes(BTreeSet<String>);

impl CallerScopes {
    pub(super) fn contains(&self, scope: &str) -> bool {
        let scope = if scope.is_empty() { DEFAULT_SCOPE } else { scope };
        self.0.contains(scope) || self.0.contains(ALL_SCOPES)
    }
}

impl LogOptions {
    /// Reads the flags.
    ///
    /// # Errors
    /// All mistakes, each with the name of its flag.
    pub fn parse(flags: &LogFlags<'_>) -> Result<LogOptions, Vec<String>> {
        let mut mistakes = OptionErrors::default();
        let options = LogOptions {
            targets: log_targets(flags),
            json: mistakes.collect_error("log_as_json", parse_boolean(flags.log_as_json)),
            levels: mistakes.collect_errors("log_output_level", ScopeLevels::parse(flags.log_output_level)),
            callers: CallerScopes(owned_elements(flags.log_caller).collect()),
        };
        mistakes.collect_errors("log_stacktrace_level", ScopeLevels::parse(flags.log_stacktrace_level));
        if mistakes.0.is_empty() { Ok(options) } else { Err(mistakes.0) }
    }

    /// The level of a scope: its own, else that of `default`.
    #[must_use]
    pub fn level_of(&self, scope: &str) -> super::OutputLevel {
        self.levels.level_of(scope)
    }
}

#[derive(Default)]
struct OptionErrors(Vec<String>);

impl OptionErrors {
    fn collect_error<T: Default>(&mut self, flag: &str, value: Result<T, String>) -> T {
        self.collect_errors(flag, value.map_err(|mistake| vec![mistake]))
    }

    fn collect_errors<T: Default>(&mut self, flag: &str, value: Result<T, Vec<String>>) -> T {
        value.unwrap_or_else(|mistakes| {
            self.0.extend(mistakes.into_iter().map(|mistake| format!("--{flag}: {mistake}")));
            T::default()
        })
    }
}

fn owned_elements(text: &str) -> impl Iterator<Item = String> {
    model::list_elements(text).map(ToOwned::to_owned)
}

/// Lines always go somewhere.
fn log_targets(flags: &LogFlags<'_>) -> Vec<String> {
    let file = Some(flags.log_rotate.to_owned()).filter(|path| !path.is_empty());
    let named: Vec<String> = owned_elements(flags.log_target).chain(file).collect();
    if named.is_empty() { vec!["stdout".to_owned()] } else { named }
}

/// As Go reads them. Empty is false.
fn parse_boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "" | "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(format!("{text:?} is neither true nor false")),
    }
}
