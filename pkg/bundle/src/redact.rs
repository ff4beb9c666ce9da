//! Redaction of credentials. There should be none: this is for foreign log lines that quote one.

use serde::Serialize;
use serde_json::Value;

const REMOVED: &str = "[removed]";
/// Names whose values are always redacted.
const NAMES: [&str; 6] = ["token", "password", "passwd", "secret", "client-key-data", "authorization"];

/// Returns the text without credentials.
pub fn text(text: &str) -> String {
    let text = without_keys(text);
    text.split_inclusive('\n').map(|line| redact_secrets(&redact_named_values(line))).collect()
}

/// Redacts each string of a value.
fn value(value: &mut Value) {
    match value {
        Value::String(content) => *content = text(content),
        Value::Array(list) => list.iter_mut().for_each(self::value),
        Value::Object(map) => map.values_mut().for_each(self::value),
        _ => {}
    }
}

/// Serialises a value to JSON, redacted string by string, so that it stays valid.
pub fn json(document: &impl Serialize) -> String {
    let mut document = match serde_json::to_value(document) {
        Ok(document) => document,
        Err(error) => return format!("{{\"error\": \"cannot be written: {error}\"}}\n"),
    };
    value(&mut document);
    format!("{document:#}\n")
}

/// Removes PEM private keys.
fn without_keys(mut rest: &str) -> String {
    const BEGIN: &str = "-----BEGIN ";
    const KEY: &str = "PRIVATE KEY-----";
    let mut text = String::with_capacity(rest.len());
    while let Some((before, from)) = rest.split_once(BEGIN) {
        text.push_str(before);
        let head = from.split(['\n', '\\']).next().unwrap_or_default();
        if !head.contains(KEY) {
            text.push_str(BEGIN);
            rest = from;
            continue;
        }
        text.push_str(REMOVED);
        let end = from.split_once("-----END ").and_then(|(_, after)| after.split_once(KEY));
        rest = end.map_or("", |(_, after)| after);
    }
    text.push_str(rest);
    text
}

/// Redacts `name: value` and `name=value`, quoted or not.
fn redact_named_values(line: &str) -> String {
    let mut line = line.to_owned();
    for name in NAMES {
        let mut from = 0;
        // ASCII lower case keeps the length of the text.
        while let Some(at) = line.to_ascii_lowercase().get(from..).and_then(|rest| rest.find(name)) {
            from += at + name.len();
            let Some(rest) = line.get(from..) else { break };
            let behind = rest.trim_start_matches(['"', '\'', '\\']).trim_start_matches(' ');
            let Some(value) = behind.strip_prefix([':', '=']) else { continue };
            let value = value.trim_start_matches([' ', '"', '\'', '\\']);
            let value = value.strip_prefix("Bearer ").unwrap_or(value);
            let length =
                value.find(|c: char| c.is_whitespace() || "\"',;}\\".contains(c)).unwrap_or(value.len());
            let begin = line.len() - value.len();
            if length > 0 {
                line.replace_range(begin..begin + length, REMOVED);
            }
            from = begin;
        }
    }
    line
}

/// Redacts words that are tokens by their form, or follow `Bearer`.
fn redact_secrets(line: &str) -> String {
    let is_inner = |c: char| c.is_ascii_alphanumeric() || "-_.+/=~".contains(c);
    let mut text = String::with_capacity(line.len());
    let mut rest = line;
    while !rest.is_empty() {
        let length = rest.find(|c| !is_inner(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(length);
        let is_bearer = text.ends_with("Bearer ") && !word.is_empty();
        let is_token = word.contains("eyJ") && word.len() > 30;
        text.push_str(if is_bearer || is_token { REMOVED } else { word });
        let mut letters = after.chars();
        text.extend(letters.next());
        rest = letters.as_str();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_taken_out_and_the_rest_stays() {
        const JWT: &str = "eyJhbGciOiJSUzI1NiIsImtpZCI6IjEifQ.eyJzdWIiOiJ4In0.c2lnbmF0dXJl";
        for (from, to) in [
            (format!("a {JWT} b\nc"), "a [removed] b\nc".to_owned()),
            ("Authorization: Bearer abc.def x".into(), "Authorization: Bearer [removed] x".into()),
            ("sent Bearer abcdef, refused".into(), "sent Bearer [removed], refused".into()),
            ("token: abc".into(), "token: [removed]".into()),
            (r#"{"token":"abc","a":1}"#.into(), r#"{"token":"[removed]","a":1}"#.into()),
            (r#"{\"password\": \"abc\"}"#.into(), r#"{\"password\": \"[removed]\"}"#.into()),
            ("PASSWORD=a token=b\n".into(), "PASSWORD=[removed] token=[removed]\n".into()),
            (
                "x\n-----BEGIN EC PRIVATE KEY-----\nMHc\n-----END EC PRIVATE KEY-----\ny".into(),
                "x\n[removed]\ny".into(),
            ),
            ("-----BEGIN RSA PRIVATE KEY-----\nMHc".into(), "[removed]".into()),
            ("-----BEGIN CERTIFICATE-----\nMHc\n".into(), "-----BEGIN CERTIFICATE-----\nMHc\n".into()),
            (
                "the token of é is expired; tokens are 1".into(),
                "the token of é is expired; tokens are 1".into(),
            ),
        ] {
            assert_eq!(text(&from), to);
            assert_eq!(text(&to), to, "once is enough");
        }
    }
}
