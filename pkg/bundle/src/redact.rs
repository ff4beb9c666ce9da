//! Redaction of credentials. There should be none: this is for foreign log lines that quote one.

use std::ops::Range;

use serde::Serialize;
use serde_json::Value;

const REMOVED: &str = "[removed]";
/// Names whose values are always redacted.
const NAMES: [&str; 6] = ["token", "password", "passwd", "secret", "client-key-data", "authorization"];
/// Schemes of the header `Authorization` whose credentials are one word.
const SCHEMES: [&str; 3] = ["Basic", "Bearer", "Negotiate"];

/// Returns the text without credentials.
pub fn text(text: &str) -> String {
    let text = without_keys(text);
    text.split_inclusive('\n').map(|line| redact_secrets(&redact_named_values(&redact_urls(line)))).collect()
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

/// Redacts `name: value` and `name=value`, quoted or not, or in brackets, as Go prints headers.
fn redact_named_values(line: &str) -> String {
    NAMES.iter().fold(line.to_owned(), |line, name| redact_values(&line, name))
}

fn redact_values(line: &str, name: &str) -> String {
    let (mut text, mut done) = (String::with_capacity(line.len()), 0);
    // ASCII lower case keeps the length of the text.
    for (at, _) in line.to_ascii_lowercase().match_indices(name) {
        let rest = line.get(at + name.len()..).filter(|_| at >= done);
        let Some(secret) = rest.and_then(find_secret) else { continue };
        let range = secret.start + at + name.len()..secret.end + at + name.len();
        text.push_str(line.get(done..range.start).unwrap_or_default());
        text.push_str(REMOVED);
        done = range.end;
    }
    text.push_str(line.get(done..).unwrap_or_default());
    text
}

/// Returns the position of the value in the text after a name; `None`: there is none, or it has been removed.
fn find_secret(rest: &str) -> Option<Range<usize>> {
    const QUOTES: [char; 3] = ['"', '\'', '\\'];
    let behind = rest.trim_start_matches(QUOTES).trim_start_matches(' ');
    let value = behind.strip_prefix([':', '='])?.trim_start_matches(' ').trim_start_matches(QUOTES);
    let inner = value.strip_prefix('[').filter(|_| !value.starts_with(REMOVED));
    let inner = inner.map(|inner| inner.trim_start_matches(QUOTES));
    let is_end = |c: char| c.is_whitespace() || "\"',;}\\".contains(c) || inner.is_some() && c == ']';
    let value = without_scheme(inner.unwrap_or(value));
    let length = value.find(is_end).unwrap_or(value.len());
    let start = rest.len() - value.len();
    (length > 0 && !value.starts_with(REMOVED)).then_some(start..start + length)
}

/// Returns the credentials of an `Authorization` header; any other text unchanged.
fn without_scheme(value: &str) -> &str {
    let is_scheme = |word: &&str| SCHEMES.iter().any(|scheme| word.eq_ignore_ascii_case(scheme));
    let split = value.split_once(' ').filter(|(word, _)| is_scheme(word));
    split.map_or(value, |(_, credentials)| credentials.trim_start_matches(' '))
}

/// Redacts what precedes the host of a URL.
fn redact_urls(line: &str) -> String {
    let mut parts = line.split("://");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| c.is_whitespace() || "/?#\"'\\".contains(c)).unwrap_or(part.len());
        let at = part.get(..end).and_then(|authority| authority.rfind('@'));
        text.push_str("://");
        text.push_str(if at.is_some() { REMOVED } else { "" });
        text.push_str(part.get(at.unwrap_or(0)..).unwrap_or_default());
    }
    text
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
            ("Authorization: Basic dXNlcjpwYXNz x".into(), "Authorization: Basic [removed] x".into()),
            (
                "map[Authorization:[basic dXNlcjpwYXNz] A:[b]]".into(),
                "map[Authorization:[basic [removed]] A:[b]]".into(),
            ),
            (r#"{"token": ["abc"]}"#.into(), r#"{"token": ["[removed]"]}"#.into()),
            ("token: [abc] d".into(), "token: [[removed]] d".into()),
            ("get https://user:pa@ss@host/a: no".into(), "get https://[removed]@host/a: no".into()),
            ("\"http://user:pass@host\" a@b".into(), "\"http://[removed]@host\" a@b".into()),
            ("http://host/a@b and ://".into(), "http://host/a@b and ://".into()),
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

    #[test]
    #[expect(clippy::disallowed_types, reason = "the duration is what is tested")]
    fn a_long_line_of_names_takes_no_long_time() {
        let began = std::time::Instant::now();
        let names = "token=".repeat(100_000);
        assert_eq!(text(&names), "token=[removed]");
        assert_eq!(text(&"token= ".repeat(100_000)), "token= [removed] ".repeat(50_000));
        assert!(began.elapsed() < std::time::Duration::from_secs(10), "{:?}", began.elapsed());
    }
}
