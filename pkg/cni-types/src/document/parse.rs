//! JSON parser: serde_json, called once for each level of a document, because only so does it keep the text of numbers, except with
//! a feature that would change every other crate that uses it.

use std::{borrow::Cow, collections::BTreeMap};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::Json;

/// Error of parsing JSON.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {what}")]
pub struct JsonError {
    /// Line, from 1.
    pub line: usize,
    /// Character in the line, from 1.
    pub column: usize,
    what: String,
    too_deep: bool,
}

impl JsonError {
    /// Returns an error at an offset.
    pub(super) fn at_offset(text: &[u8], offset: usize, what: impl Into<String>) -> Self {
        let before = text.get(..offset).unwrap_or(text);
        let line = before.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
        JsonError {
            line: 1 + before.iter().filter(|byte| **byte == b'\n').count(),
            column: 1 + String::from_utf8_lossy(line).chars().count(),
            what: what.into(),
            too_deep: false,
        }
    }

    /// Whether the text is nested deeper than [`Json::MAX_DEPTH`], which other programs may still accept.
    pub const fn is_too_deep(&self) -> bool {
        self.too_deep
    }
}

/// Parses a text with one value.
pub(super) fn document(text: &str) -> Result<Json, JsonError> {
    if text.starts_with('\u{feff}') {
        let what = "the text starts with a byte order mark, which JSON does not allow";
        return Err(JsonError::at_offset(text.as_bytes(), 0, what));
    }
    let text = &*replace_half_pairs(text);
    let reader = JsonReader { text };
    reader.read_value(reader.parse_part(text)?, 0)
}

/// Replaces unpaired surrogates by U+FFFD, as Go does and serde_json does not. Lines and columns are preserved.
fn replace_half_pairs(text: &str) -> Cow<'_, str> {
    if !text.contains("\\ud") && !text.contains("\\uD") {
        return Cow::Borrowed(text);
    }
    let (mut replaced, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find('\\') {
        let (plain, escape) = rest.split_at(at);
        let (length, is_half) = match (code_unit(escape), escape.get(6..).and_then(code_unit)) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => (12, false),
            (Some(0xd800..=0xdfff), _) => (6, true),
            _ => (escape.chars().take(2).map(char::len_utf8).sum(), false),
        };
        let (escape, after) = escape.split_at(length);
        replaced.extend([plain, if is_half { "\\ufffd" } else { escape }]);
        rest = after;
    }
    replaced.push_str(rest);
    Cow::Owned(replaced)
}

/// Returns the code unit of the escape with which a text begins.
fn code_unit(text: &str) -> Option<u16> {
    u16::from_str_radix(text.strip_prefix("\\u")?.get(..4)?, 16).ok()
}

struct JsonReader<'a> {
    text: &'a str,
}

impl<'a> JsonReader<'a> {
    fn read_value(&self, value: &'a RawValue, depth: usize) -> Result<Json, JsonError> {
        let part = value.get();
        match part.as_bytes().first() {
            Some(b'{' | b'[') if depth == Json::MAX_DEPTH => {
                let what = format!("the text is nested deeper than {depth} levels");
                Err(JsonError { too_deep: true, ..self.error_in(part, 0, what) })
            }
            Some(b'{') => {
                let members: BTreeMap<String, &RawValue> = self.parse_part(part)?;
                let read = |(key, value)| Ok((key, self.read_value(value, depth + 1)?));
                members.into_iter().map(read).collect::<Result<_, _>>().map(Json::Object)
            }
            Some(b'[') => {
                let list: Vec<&RawValue> = self.parse_part(part)?;
                let read = list.into_iter().map(|value| self.read_value(value, depth + 1));
                read.collect::<Result<_, _>>().map(Json::List)
            }
            Some(b'"') => self.parse_part(part).map(Json::String),
            Some(b't' | b'f') => self.parse_part(part).map(Json::Bool),
            Some(b'n') => Ok(Json::Null),
            _ => Ok(Json::Number(part.to_owned())),
        }
    }

    fn parse_part<T: Deserialize<'a>>(&self, part: &'a str) -> Result<T, JsonError> {
        serde_json::from_str(part).map_err(|error| {
            let lines = part.split_inclusive('\n').take(error.line().saturating_sub(1));
            let offset = lines.map(str::len).sum::<usize>() + error.column().saturating_sub(1);
            let what = error.to_string();
            let what = what.rsplit_once(" at line ").map_or(what.as_str(), |(what, _)| what);
            self.error_in(part, offset, what)
        })
    }

    /// Returns an error at an offset in a part of the text.
    fn error_in(&self, part: &str, offset: usize, what: impl Into<String>) -> JsonError {
        let start = part.as_ptr().addr().saturating_sub(self.text.as_ptr().addr());
        JsonError::at_offset(self.text.as_bytes(), start + offset, what)
    }
}
