//! Istio's logging flags: from text to values.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use super::level::{ALL_SCOPES, DEFAULT_SCOPE, Levels};
use super::rotation::Rotation;

/// The values of Istio's logging flags, as text. The default values are Istio's.
#[derive(Clone, Copy, Debug)]
pub struct LogFlags<'a> {
    /// `--log_target`: comma-separated `stdout`, `stderr`, or paths of files, which are appended to.
    pub log_target: &'a str,
    /// `--log_rotate`: path of a file that is rotated, beside the targets; empty for none.
    pub log_rotate: &'a str,
    /// `--log_rotate_max_age`: days after which a rotated file is removed, 0 for never.
    pub log_rotate_max_age: &'a str,
    /// `--log_rotate_max_size`: mebibytes at which the file is rotated, 0 for 100.
    pub log_rotate_max_size: &'a str,
    /// `--log_rotate_max_backups`: how many rotated files are kept, 0 for all.
    pub log_rotate_max_backups: &'a str,
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
            log_rotate_max_age: "30",
            log_rotate_max_size: "104857600",
            log_rotate_max_backups: "1000",
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
    pub(super) rotation: Option<Rotation>,
    pub(super) json: bool,
    pub(super) levels: Levels,
    pub(super) callers: Callers,
}

/// The scopes of `--log_caller`.
#[derive(Debug, Default)]
pub(super) struct Callers(BTreeSet<String>);

impl Callers {
    pub(super) fn of(&self, scope: &str) -> bool {
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
        let mut mistakes = Mistakes::default();
        let rotation = rotation(flags, &mut mistakes);
        let options = LogOptions {
            targets: targets(flags.log_target, rotation.is_some()),
            rotation,
            json: mistakes.one("log_as_json", boolean(flags.log_as_json)),
            levels: mistakes.many("log_output_level", Levels::parse(flags.log_output_level)),
            callers: Callers(list(flags.log_caller).collect()),
        };
        mistakes.many("log_stacktrace_level", Levels::parse(flags.log_stacktrace_level));
        if mistakes.0.is_empty() { Ok(options) } else { Err(mistakes.0) }
    }

    /// The level of a scope: its own, else that of `default`.
    #[must_use]
    pub fn level(&self, scope: &str) -> super::OutputLevel {
        self.levels.of(scope)
    }
}

#[derive(Default)]
struct Mistakes(Vec<String>);

impl Mistakes {
    fn one<T: Default>(&mut self, flag: &str, value: Result<T, String>) -> T {
        self.many(flag, value.map_err(|mistake| vec![mistake]))
    }

    fn many<T: Default>(&mut self, flag: &str, value: Result<T, Vec<String>>) -> T {
        value.unwrap_or_else(|mistakes| {
            self.0.extend(mistakes.into_iter().map(|mistake| format!("--{flag}: {mistake}")));
            T::default()
        })
    }
}

fn list(text: &str) -> impl Iterator<Item = String> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(ToOwned::to_owned)
}

/// Lines always go somewhere.
fn targets(text: &str, rotated: bool) -> Vec<String> {
    let named: Vec<String> = list(text).collect();
    if named.is_empty() && !rotated { vec!["stdout".to_owned()] } else { named }
}

fn rotation(flags: &LogFlags<'_>, mistakes: &mut Mistakes) -> Option<Rotation> {
    const MEBIBYTE: u64 = 1024 * 1024;
    const DAY: Duration = Duration::from_secs(24 * 60 * 60);
    let mebibytes: u64 = mistakes.one("log_rotate_max_size", number(flags.log_rotate_max_size));
    let days: u32 = mistakes.one("log_rotate_max_age", number(flags.log_rotate_max_age));
    let backups: usize = mistakes.one("log_rotate_max_backups", number(flags.log_rotate_max_backups));
    (!flags.log_rotate.is_empty()).then(|| Rotation {
        path: PathBuf::from(flags.log_rotate),
        max_bytes: if mebibytes == 0 { 100 } else { mebibytes }.saturating_mul(MEBIBYTE),
        max_age: (days > 0).then(|| DAY.saturating_mul(days)),
        max_backups: (backups > 0).then_some(backups),
    })
}

fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.trim().parse().map_err(|_| format!("{text:?} is no whole number from 0 on, or too large"))
}

/// As Go reads them. Empty is false.
fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "" | "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(format!("{text:?} is neither true nor false")),
    }
}
