//! Scopes as people see and change them while the program runs.

use std::collections::BTreeMap;

use wire::{LogLevel, LogRecord};

use super::level::{ALL_SCOPES, DEFAULT_SCOPE, LIBRARY_SCOPE, scope_names};
use super::{Logger, OutputLevel};

/// Scopes that lines are printed under, and the names that newer versions of Istio have for them, each with its description.
const SCOPES: [(&str, &str); 9] = [
    ("ambient", "pods of ambient mode: who is captured, and how"),
    ("cni", "what the plugin tells"),
    ("cni-agent", "Istio's name for install, ambient, repair and zds together"),
    ("cni-plugin", "Istio's name for cni"),
    (DEFAULT_SCOPE, "every scope that has no level of its own"),
    ("install", "files on the node, and the daemon itself"),
    (LIBRARY_SCOPE, "what libraries say: the API server's client, HTTP, TLS"),
    ("repair", "pods that lost the race, and what is done for them"),
    ("zds", "what is said between the agent and ztunnel"),
];

/// A scope, as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogScope {
    /// Name of the scope.
    pub name: String,
    /// Description of its lines; empty for a scope that a flag names and nobody prints under.
    pub description: &'static str,
    /// How much of it is printed. Of several that a name stands for, the most.
    pub level: OutputLevel,
    /// Whether its lines show where in the source they come from.
    pub callers: bool,
}

/// Why a level was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LevelError {
    /// There is no such scope.
    #[error("unknown scope name: {name} (there are {known})")]
    UnknownScope {
        /// Name that was asked for.
        name: String,
        /// Names of the scopes that exist.
        known: String,
    },
    /// There is no such level.
    #[error("{name:?} is not a level (they are {known})")]
    UnknownLevel {
        /// Name that was asked for.
        name: String,
        /// Names of the levels that exist.
        known: String,
    },
}

impl Logger {
    /// All scopes, by name.
    pub fn scopes(&self) -> Vec<LogScope> {
        let mut names = self.scope_levels();
        names.extend(SCOPES.map(|(name, _)| (name.to_owned(), OutputLevel::None)));
        names.into_keys().map(|name| self.describe_scope(name)).collect()
    }

    /// One scope.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn find_scope(&self, name: &str) -> Result<LogScope, LevelError> {
        let known = self.scopes();
        known.iter().find(|scope| scope.name == name).cloned().ok_or_else(|| {
            let known: Vec<&str> = known.iter().map(|scope| scope.name.as_str()).collect();
            LevelError::UnknownScope { name: name.to_owned(), known: known.join(", ") }
        })
    }

    /// As [`Logger::set_level`], for names that somebody typed. `all` is every scope. A line tells of the change before it
    /// takes effect, whatever the levels are, so that nobody can silence the log unseen.
    ///
    /// # Errors
    /// There is no such scope, or no such level. Nothing is changed then.
    pub fn change_level(&self, scope: &str, level: &str) -> Result<OutputLevel, LevelError> {
        if scope != ALL_SCOPES {
            self.find_scope(scope)?;
        }
        let level = OutputLevel::from_name(level).ok_or_else(|| LevelError::UnknownLevel {
            name: level.to_owned(),
            known: OutputLevel::ALL.map(OutputLevel::as_str).join(", "),
        })?;
        self.emit_unfiltered(&LogRecord {
            level: LogLevel::Warn,
            time: String::new(),
            scope: "install".to_owned(),
            msg: format!("log level of {scope}: {level}, on request"),
            labels: BTreeMap::new(),
        });
        self.set_level(scope, level);
        Ok(level)
    }

    fn describe_scope(&self, name: String) -> LogScope {
        let described = SCOPES.into_iter().find(|(known, _)| *known == name);
        let text = name.as_str();
        let stands_for = scope_names(&text);
        let level = stands_for.iter().map(|scope| self.level_of(scope)).max().unwrap_or(OutputLevel::None);
        let callers = stands_for.iter().any(|scope| self.0.callers.contains(scope));
        LogScope { description: described.map_or("", |(_, text)| text), level, callers, name }
    }
}
