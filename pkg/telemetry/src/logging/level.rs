//! Output levels of scopes.

use std::collections::BTreeMap;

use agent_protocol::LogLevel;
use serde::Serialize;

/// Default scope, whose level applies to the others, and whose name is not printed.
pub(super) const DEFAULT_SCOPE: &str = "default";
/// Stands for every scope in a list of levels.
pub(crate) const ALL_SCOPES: &str = "all";
/// Scope of lines from libraries (clients, TLS), silent by default: their callers log what matters, once, as a message.
pub(super) const LIBRARY_SCOPE: &str = "kube";

model::word_enum! {
    /// Output level of a scope: lines of this severity and above are printed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum OutputLevel {
        /// Nothing.
        None = "none",
        /// Errors that end the program. We log none, so it prints nothing either.
        Fatal = "fatal",
        /// [`LogLevel::Error`].
        Error = "error",
        /// [`LogLevel::Warn`] and above.
        Warn = "warn",
        /// [`LogLevel::Info`] and above.
        Info = "info",
        /// Everything.
        Debug = "debug",
    }
}

impl OutputLevel {
    /// Whether a line of that level is printed.
    pub fn passes(self, level: LogLevel) -> bool {
        self >= match level {
            LogLevel::Error => OutputLevel::Error,
            LogLevel::Warn => OutputLevel::Warn,
            LogLevel::Info => OutputLevel::Info,
            LogLevel::Debug => OutputLevel::Debug,
        }
    }
}

/// Levels of all scopes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ScopeLevels {
    default: OutputLevel,
    own: BTreeMap<String, OutputLevel>,
}

impl Default for ScopeLevels {
    fn default() -> Self {
        let own = [(LIBRARY_SCOPE.to_owned(), OutputLevel::None)];
        ScopeLevels { default: OutputLevel::Info, own: own.into() }
    }
}

impl ScopeLevels {
    /// Parses `scope:level,…`. A level without a scope is that of `default`; of two for one scope the last takes effect, and `all`
    /// overrides all others (Istio 1.20). Returns one message for each part that is invalid and ignored.
    pub(super) fn parse(text: &str) -> (ScopeLevels, Vec<String>) {
        let mut levels = ScopeLevels::default();
        let (mut overall, mut mistakes) = (None, Vec::new());
        for part in model::list_elements(text) {
            match scope_and_level(part) {
                Ok((ALL_SCOPES, level)) => overall = Some(level),
                Ok((scope, level)) => levels.set_level(scope, level),
                Err(mistake) => mistakes.push(mistake),
            }
        }
        if let Some(level) = overall {
            levels.set_level(ALL_SCOPES, level);
        }
        (levels, mistakes)
    }

    pub(super) fn scope_level(&self, scope: &str) -> OutputLevel {
        self.own.get(scope).copied().unwrap_or(self.default)
    }

    pub(super) fn set_level(&mut self, scope: &str, level: OutputLevel) {
        match scope {
            "" | DEFAULT_SCOPE => self.default = level,
            ALL_SCOPES => *self = ScopeLevels { default: level, own: BTreeMap::new() },
            scope => {
                for scope in scope_names(&scope) {
                    self.own.insert((*scope).to_owned(), level);
                }
            }
        }
    }

    pub(super) fn all_levels(&self) -> BTreeMap<String, OutputLevel> {
        let mut all = self.own.clone();
        all.insert(DEFAULT_SCOPE.to_owned(), self.default);
        all
    }

    pub(super) fn max_level(&self) -> OutputLevel {
        self.own.values().copied().fold(self.default, OutputLevel::max)
    }
}

/// Returns our scopes that correspond to one of newer versions of Istio.
pub(super) fn scope_names<'a>(scope: &'a &'a str) -> &'a [&'a str] {
    match *scope {
        "cni-plugin" => &["cni"],
        "cni-agent" => &["install", "ambient", "repair", "zds"],
        _ => std::slice::from_ref(scope),
    }
}

fn scope_and_level(part: &str) -> Result<(&str, OutputLevel), String> {
    let (scope, name) = part.split_once(':').unwrap_or((DEFAULT_SCOPE, part));
    let level = OutputLevel::from_name(name).ok_or_else(|| {
        let names = OutputLevel::ALL.map(OutputLevel::as_str).join(", ");
        format!("{name:?} in {part:?} is not a level (known: {names})")
    })?;
    if scope.is_empty() { Err(format!("{part:?} names no scope")) } else { Ok((scope, level)) }
}
