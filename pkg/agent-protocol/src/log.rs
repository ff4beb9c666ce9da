//! Log records: one JSON object per line, and a POST with a list of such lines as exchanged by Istio's plugin and agent.

use std::collections::BTreeMap;

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Map, Value};

model::word_enum! {
    /// Severity of a record, lowest first.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum LogLevel {
        /// Details for troubleshooting.
        Debug = "debug",
        /// Normal operation.
        Info = "info",
        /// An anomaly that was handled.
        Warn = "warn",
        /// A failed operation.
        Error = "error",
    }
}

impl LogLevel {
    /// Returns the level of a `log_level` setting: an unknown level means info (Istio 1.20).
    pub fn from_setting(text: &str) -> Self {
        Self::from_name(text).unwrap_or(LogLevel::Info)
    }
}

/// A log line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRecord {
    /// `level`.
    pub level: LogLevel,
    /// `time`: RFC 3339, UTC, microseconds ([`crate::rfc3339_micros`]), set by the caller. May be empty in a received record.
    pub time: String,
    /// `scope`: part of the program; empty for the default scope, which is not written.
    pub scope: String,
    /// `msg`.
    pub msg: String,
    /// Further members of the line: `pod`, `if`, and so on. One with the name of a member above is written with the prefix
    /// `label_`, so that it cannot replace it.
    pub labels: BTreeMap<String, String>,
}

/// Error of parsing a log line, or a POST body of log lines.
#[derive(Debug, thiserror::Error)]
pub enum LogLineError {
    /// The text is not JSON of the expected form.
    #[error("cannot read the log line: {0}")]
    Json(#[from] serde_json::Error),
    /// `level` is missing or names none of the four levels.
    #[error("cannot read the log line: {0:?} is not a level")]
    Level(String),
    /// `msg` is missing or not a string.
    #[error("cannot read the log line: it has no msg")]
    Message,
}

/// Members that are not labels, in the order of writing.
const OWN: [&str; 4] = ["level", "time", "scope", "msg"];

impl LogRecord {
    /// Returns the line, with a newline at its end. Newlines inside values are escaped by JSON.
    pub fn to_line(&self) -> String {
        // A map of strings always serialises.
        let mut line = serde_json::to_string(self).unwrap_or_default();
        line.push('\n');
        line
    }

    /// Parses a line, with or without newline. Members that are not strings become labels with their JSON text.
    ///
    /// # Errors
    /// The line is not a JSON object, or has no known `level` or no `msg`.
    pub fn parse(line: &str) -> Result<Self, LogLineError> {
        let mut members: Map<String, Value> = serde_json::from_str(line)?;
        let mut own =
            |name: &str| members.remove(name).as_ref().and_then(Value::as_str).map(ToOwned::to_owned);
        let level = own("level").unwrap_or_default();
        let (time, scope, msg) = (own("time"), own("scope"), own("msg"));
        Ok(LogRecord {
            level: LogLevel::from_name(&level).ok_or(LogLineError::Level(level))?,
            time: time.unwrap_or_default(),
            scope: scope.unwrap_or_default(),
            msg: msg.ok_or(LogLineError::Message)?,
            labels: members.into_iter().map(|(name, value)| (name, label_text(value))).collect(),
        })
    }
}

impl Serialize for LogRecord {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("level", self.level.as_str())?;
        map.serialize_entry("time", &self.time)?;
        if !self.scope.is_empty() {
            map.serialize_entry("scope", &self.scope)?;
        }
        map.serialize_entry("msg", &self.msg)?;
        for (name, value) in &self.labels {
            if OWN.contains(&name.as_str()) {
                map.serialize_entry(&format!("label_{name}"), value)?;
            } else {
                map.serialize_entry(name, value)?;
            }
        }
        map.end()
    }
}

/// Returns the body of `POST /log`: a JSON array of strings, each of them one line (Istio 1.20).
pub fn post_body(records: &[LogRecord]) -> String {
    let lines: Vec<String> = records.iter().map(LogRecord::to_line).collect();
    serde_json::to_string(&lines).unwrap_or_default()
}

/// Returns the lines of a POST body, each to be parsed by [`LogRecord::parse`], so that an invalid one does not affect the others.
///
/// # Errors
/// The body is not a JSON array of strings.
pub fn parse_post_body(body: &[u8]) -> Result<Vec<String>, LogLineError> {
    Ok(serde_json::from_slice(body)?)
}

fn label_text(value: Value) -> String {
    match value {
        Value::String(text) => text,
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record() -> LogRecord {
        LogRecord {
            level: LogLevel::Warn,
            time: "2026-11-21T09:32:06.536815Z".to_owned(),
            scope: "cni".to_owned(),
            msg: "a \"b\"\nc".to_owned(),
            labels: [("pod", "ns/x"), ("if", "eth0")].map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
        }
    }

    #[test]
    fn a_record_is_one_line_of_flat_json() {
        let line = "{\"level\":\"warn\",\"time\":\"2026-11-21T09:32:06.536815Z\",\"scope\":\"cni\",\
                    \"msg\":\"a \\\"b\\\"\\nc\",\"if\":\"eth0\",\"pod\":\"ns/x\"}\n";
        assert_eq!(record().to_line(), line);
        assert_eq!(LogRecord::parse(line).unwrap(), record());
    }

    #[test]
    fn the_default_scope_is_not_written_and_a_label_replaces_nothing() {
        let mut record = record();
        record.scope.clear();
        record.labels = [("msg".to_owned(), "x".to_owned())].into();
        let line = "{\"level\":\"warn\",\"time\":\"2026-11-21T09:32:06.536815Z\",\"msg\":\"a \\\"b\\\"\\nc\",\"label_msg\":\"x\"}\n";
        assert_eq!(record.to_line(), line);
    }

    #[test]
    fn a_body_is_a_list_of_lines() {
        let body = post_body(&[record(), record()]);
        let lines = parse_post_body(body.as_bytes()).unwrap();
        assert_eq!(lines, [record().to_line(), record().to_line()]);
        assert_eq!(post_body(&[]), "[]");
        assert!(parse_post_body(b"{}").is_err());
    }

    #[test]
    fn what_is_no_log_line_is_refused() {
        for line in [
            "",
            "[]",
            "{}",
            r#"{"level":"info"}"#,
            r#"{"level":"fatal","msg":"x"}"#,
            r#"{"level":"info","msg":1}"#,
        ] {
            assert!(LogRecord::parse(line).is_err(), "{line}");
        }
        let record = LogRecord::parse(r#"{"level":"info","msg":"m","n":5}"#).unwrap();
        assert_eq!((record.labels["n"].as_str(), record.time.as_str()), ("5", ""));
    }

    #[test]
    fn a_setting_that_names_no_level_means_info() {
        for (text, level) in [
            ("debug", LogLevel::Debug),
            ("error", LogLevel::Error),
            ("", LogLevel::Info),
            ("DEBUG", LogLevel::Info),
        ] {
            assert_eq!(LogLevel::from_setting(text), level);
        }
    }

    proptest! {
        #[test]
        fn any_message_comes_back(msg in any::<String>(), value in any::<String>()) {
            let record = LogRecord { msg, labels: [("pod".to_owned(), value)].into(), ..record() };
            let line = record.to_line();
            prop_assert_eq!(line.matches('\n').count(), 1);
            prop_assert_eq!(LogRecord::parse(&line).unwrap(), record);
        }
    }
}
