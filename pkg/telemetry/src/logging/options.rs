//! Istio's logging flags, parsed.

use std::collections::BTreeSet;

use flags::{
    Flag, FlagValues, LOG_AS_JSON, LOG_CALLER, LOG_OUTPUT_LEVEL, LOG_ROTATE, LOG_STACKTRACE_LEVEL, LOG_TARGET,
};
use model::parse_switch;

use super::level::{ALL_SCOPES, DEFAULT_SCOPE, ScopeLevels};

/// Log options: the validated flags.
#[derive(Debug)]
pub struct LogOptions {
    /// Outputs: `stdout`, `stderr` or paths.
    pub(super) targets: Vec<String>,
    pub(super) json: bool,
    pub(super) levels: ScopeLevels,
    pub(super) callers: CallerScopes,
    /// Levels that cannot be parsed, each with the name of its flag. They are ignored, as in Istio.
    pub warnings: Vec<String>,
}

/// Scopes of `--log_caller`.
#[derive(Debug, Default)]
pub(super) struct CallerScopes(BTreeSet<String>);

impl CallerScopes {
    pub(super) fn contains(&self, scope: &str) -> bool {
        let scope = if scope.is_empty() { DEFAULT_SCOPE } else { scope };
        self.0.contains(scope) || self.0.contains(ALL_SCOPES)
    }
}

impl LogOptions {
    /// Parses Istio's logging flags ([`flags::LOGGING`]). Files are appended to and never rotated, which is left to the container
    /// runtime or logrotate. Levels of stack traces are validated, and without effect: there are none.
    ///
    /// # Errors
    /// A boolean flag is neither true nor false.
    pub fn parse(values: &FlagValues) -> Result<LogOptions, String> {
        let mut warnings = Vec::new();
        let levels = parse_levels(values, &LOG_OUTPUT_LEVEL, &mut warnings);
        parse_levels(values, &LOG_STACKTRACE_LEVEL, &mut warnings);
        let is_json = parse_switch(values.flag_text(&LOG_AS_JSON));
        Ok(LogOptions {
            targets: log_targets(values),
            json: is_json.map_err(|mistake| format!("--{LOG_AS_JSON}: {mistake}"))?,
            levels,
            callers: CallerScopes(owned_elements(values.flag_text(&LOG_CALLER)).collect()),
            warnings,
        })
    }

    /// Returns the level of a scope: its own, else that of `default`.
    pub fn scope_level(&self, scope: &str) -> super::OutputLevel {
        self.levels.scope_level(scope)
    }
}

fn parse_levels(values: &FlagValues, flag: &Flag, warnings: &mut Vec<String>) -> ScopeLevels {
    let (levels, mistakes) = ScopeLevels::parse(values.flag_text(flag));
    warnings.extend(mistakes.into_iter().map(|mistake| format!("--{flag}: {mistake}")));
    levels
}

fn owned_elements(text: &str) -> impl Iterator<Item = String> {
    model::list_elements(text).map(ToOwned::to_owned)
}

/// Returns the outputs, at least one.
fn log_targets(values: &FlagValues) -> Vec<String> {
    let file = Some(values.flag_text(&LOG_ROTATE).to_owned()).filter(|path| !path.is_empty());
    let named: Vec<String> = owned_elements(values.flag_text(&LOG_TARGET)).chain(file).collect();
    if named.is_empty() { vec!["stdout".to_owned()] } else { named }
}
