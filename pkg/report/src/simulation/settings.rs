//! Change of the agent's settings.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde::{Deserialize, Serialize};

use super::ChangeError;
use crate::text::{percent_encode, sanitize_text};

/// Maximum size of the settings in a request, in bytes: with its other parts, a request must have less than 16 KiB.
pub const MAX_SETTINGS: usize = 12 * 1024;

/// Settings that an agent would be started with, in the form of its DaemonSet's container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SettingsChange {
    /// Environment variables and their values.
    pub variables: BTreeMap<String, String>,
    /// Environment variables that keep their current value, such as the node's name.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub inherited: BTreeSet<String>,
    /// Command line, without the program.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub arguments: Vec<String>,
    /// Whether these are all settings, so that any other has its default. Otherwise the others stay unchanged.
    pub complete: bool,
}

impl SettingsChange {
    /// Parses variables of the form `NAME=VALUE`; all others would stay unchanged.
    ///
    /// # Errors
    /// A variable has another form, there is none, or they are too long.
    pub fn parse<'a>(variables: impl IntoIterator<Item = &'a str>) -> Result<SettingsChange, ChangeError> {
        let mut change = SettingsChange::default();
        for text in variables {
            let variable = text.split_once('=').filter(|(name, _)| is_variable(name));
            let (name, value) = variable.ok_or_else(|| ChangeError::Variable(sanitize_text(text)))?;
            change.variables.insert(name.to_owned(), value.to_owned());
        }
        change.check()
    }

    /// Parses the output of [`SettingsChange::to_json`].
    ///
    /// # Errors
    /// The text has another form, or is too long.
    pub fn from_text(text: &str) -> Result<SettingsChange, ChangeError> {
        if text.len() > MAX_SETTINGS {
            return Err(ChangeError::Length(text.len()));
        }
        let read: SettingsChange =
            serde_json::from_str(text).map_err(|error| ChangeError::Form(error.to_string()))?;
        read.check()
    }

    /// Returns the change if it is valid.
    ///
    /// # Errors
    /// The change is empty, a name of a variable is invalid, or all are too long for a request.
    pub fn check(self) -> Result<SettingsChange, ChangeError> {
        if !self.complete && self.variables.is_empty() && self.arguments.is_empty() {
            return Err(ChangeError::Nothing);
        }
        let names = self.variables.keys().chain(&self.inherited);
        if let Some(wrong) = names.into_iter().find(|name| !is_variable(name)) {
            return Err(ChangeError::Variable(sanitize_text(wrong)));
        }
        match percent_encode(&self.to_json()).len() {
            length if length > MAX_SETTINGS => Err(ChangeError::Length(length)),
            _ => Ok(self),
        }
    }

    /// Returns the settings as one word, for the command line of `install-cni simulate`.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default() // strings, lists and maps of strings always serialise
    }
}

/// Formats names only: values can be long.
impl fmt::Display for SettingsChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.complete {
            return f.write_str("agents with these settings, and the defaults of all others");
        }
        let names: Vec<&str> = self.variables.keys().map(String::as_str).collect();
        write!(f, "agents with other settings: {}", names.join(", "))
    }
}

fn is_variable(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_as_they_are_written() {
        let change = SettingsChange::parse(["EXCLUDE_NAMESPACES=a,b", "AMBIENT_ENABLED=", "X=a=b"]).unwrap();
        assert_eq!(change.variables["X"], "a=b");
        assert_eq!(SettingsChange::from_text(&change.to_json()).unwrap(), change);
        assert_eq!(change.to_string(), "agents with other settings: AMBIENT_ENABLED, EXCLUDE_NAMESPACES, X");
        let path = crate::SimulatedChange::Settings(change).debug_path();
        let is_query = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~%/?=".contains(&byte);
        assert!(path.starts_with("/debug/simulate?settings=%7B") && path.bytes().all(is_query), "{path}");
    }

    #[test]
    fn what_is_no_setting_or_too_long_is_refused() {
        for text in ["", "=x", "NAME", "A B=x", "É=x"] {
            let parsed = SettingsChange::parse([text]);
            assert_eq!(parsed, Err(ChangeError::Variable(text.to_owned())));
        }
        assert_eq!(SettingsChange::parse([]), Err(ChangeError::Nothing));
        let long = format!("A={}", "x".repeat(MAX_SETTINGS));
        assert!(matches!(SettingsChange::parse([long.as_str()]), Err(ChangeError::Length(_))));
        for text in ["", "[", "[]", "{}", r#"{"variables":{"A B":"x"}}"#, r#"{"variables":[]}"#] {
            assert!(SettingsChange::from_text(text).is_err(), "{text}");
        }
        let spaces = " ".repeat(MAX_SETTINGS + 1);
        assert_eq!(SettingsChange::from_text(&spaces), Err(ChangeError::Length(MAX_SETTINGS + 1)));
    }
}
