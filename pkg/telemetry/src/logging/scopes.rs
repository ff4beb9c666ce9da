//! Log scopes, as shown and changed at run time.

use std::collections::BTreeMap;

use agent_protocol::{LogLevel, LogRecord};
use serde::Serialize;

use super::level::{ALL_SCOPES, DEFAULT_SCOPE, LIBRARY_SCOPE, scope_names};
use super::{Logger, OutputLevel};

/// Scopes of our lines, and their names in newer versions of Istio, each with its description.
const SCOPES: [(&str, &str); 9] = [
    ("ambient", "pods of ambient mode: who is captured, and how"),
    ("cni", "log lines of the plugin"),
    ("cni-agent", "Istio's name for install, ambient, repair and zds together"),
    ("cni-plugin", "Istio's name for cni"),
    (DEFAULT_SCOPE, "every scope that has no level of its own"),
    ("install", "files on the node, and the daemon itself"),
    (LIBRARY_SCOPE, "libraries: the API server's client, HTTP, TLS"),
    ("repair", "repair of pods"),
    ("zds", "messages between the agent and ztunnel"),
];

/// Current state of a scope.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LogScope {
    /// Name of the scope.
    #[serde(rename = "scope")]
    pub name: String,
    /// Output level; for a name that stands for several scopes, the most verbose.
    pub level: OutputLevel,
    /// Description of its lines; empty for a scope that a flag names but no line uses.
    pub description: &'static str,
    /// Whether its lines show the source location of the caller.
    #[serde(skip)]
    pub callers: bool,
}

impl Logger {
    /// Returns all scopes, by name.
    pub fn scopes(&self) -> Vec<LogScope> {
        let mut names = self.scope_levels();
        names.extend(SCOPES.map(|(name, _)| (name.to_owned(), OutputLevel::None)));
        names.into_keys().map(|name| self.describe_scope(name)).collect()
    }

    /// Returns one scope.
    ///
    /// # Errors
    /// No scope has this name; the error as a message.
    pub fn find_scope(&self, name: &str) -> Result<LogScope, String> {
        let known = self.scopes();
        known.iter().find(|scope| scope.name == name).cloned().ok_or_else(|| {
            let known: Vec<&str> = known.iter().map(|scope| scope.name.as_str()).collect();
            format!("unknown scope name: {name} (known: {})", known.join(", "))
        })
    }

    /// Sets a level as [`Logger::set_level`] does, for names entered by a person. `all` is every scope. A line reports the change
    /// before it takes effect, regardless of the levels, so that the log cannot be silenced unnoticed.
    ///
    /// # Errors
    /// The scope or the level does not exist; the error as a message. Nothing is changed then.
    pub fn change_level(&self, scope: &str, level: &str) -> Result<(), String> {
        if scope != ALL_SCOPES {
            self.find_scope(scope)?;
        }
        let level = OutputLevel::from_name(level).ok_or_else(|| {
            let known = OutputLevel::ALL.map(OutputLevel::as_str).join(", ");
            format!("{level:?} is not a level (known: {known})")
        })?;
        let record = LogRecord {
            level: LogLevel::Warn,
            time: String::new(),
            scope: "install".to_owned(),
            msg: format!("log level of {scope}: {level}, on request"),
            labels: BTreeMap::new(),
        };
        self.write_record(&mut self.lock_targets(), &record);
        self.set_level(scope, level);
        Ok(())
    }

    fn describe_scope(&self, name: String) -> LogScope {
        let described = SCOPES.into_iter().find(|(known, _)| *known == name);
        let text = name.as_str();
        let stands_for = scope_names(&text);
        let level = stands_for.iter().map(|scope| self.scope_level(scope)).max().unwrap_or(OutputLevel::None);
        let callers = stands_for.iter().any(|scope| self.0.callers.contains(scope));
        LogScope { description: described.map_or("", |(_, text)| text), level, callers, name }
    }
}
