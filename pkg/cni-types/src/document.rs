//! JSON documents that are parsed, edited in a few places, and written again for other programs.
//!
//! They are files of the container runtime, so everything that we do not understand must be preserved. A number therefore keeps its
//! text: as a floating-point number, 12345678901234567890 would be changed.

use std::collections::BTreeMap;

mod parse;
mod print;

pub use parse::JsonError;

/// Members of an object, by their keys.
pub(crate) type JsonMembers = BTreeMap<String, Json>;

/// A JSON value. Equality ignores blanks and the order of keys; numbers are compared by their text, so 1 and 1.0 differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Json {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number, as its text; [`Json::parse`] yields only valid ones.
    Number(String),
    /// A string, decoded.
    String(String),
    /// An array.
    List(Vec<Json>),
    /// An object. Keys are sorted bytewise, in Go's output order.
    Object(BTreeMap<String, Json>),
}

impl Json {
    /// Maximum nesting depth: the limit of serde_json, which the plugin uses. Go allows 10000, but a network configuration nested
    /// that deep is an attempt to exhaust a stack.
    pub const MAX_DEPTH: usize = 128;

    /// Parses a whole document like Go's encoding/json: of duplicate keys the last is used, and an unpaired surrogate becomes
    /// U+FFFD.
    ///
    /// # Errors
    /// The text is not UTF-8 (Go would replace it by U+FFFD and so change foreign content), starts with a byte order mark, is no
    /// JSON, continues after the value, or is nested deeper than [`Json::MAX_DEPTH`].
    pub fn parse(bytes: &[u8]) -> Result<Json, JsonError> {
        match str::from_utf8(bytes) {
            Ok(text) => parse::document(text),
            Err(error) => Err(JsonError::at_offset(bytes, error.valid_up_to(), "these bytes are not UTF-8")),
        }
    }

    /// Parses a document as a runtime in Go does, which reads invalid UTF-8 as U+FFFD: for determining the runtime's view, not for
    /// editing.
    pub(crate) fn as_runtimes_read(bytes: &[u8]) -> Result<Json, JsonError> {
        parse::document(&String::from_utf8_lossy(bytes))
    }

    /// Formats the value like `MarshalIndent(value, "", "  ")` of Go 1.21's encoding/json, with a line feed at the end as in
    /// Istio's files: keys sorted, two blanks per level, `<`, `>`, `&`, U+2028 and U+2029 escaped.
    pub fn to_go_text(&self) -> String {
        print::document(self)
    }

    /// Returns the member of an object with exactly this key; `None` if it is missing or this is no object.
    pub fn get(&self, key: &str) -> Option<&Json> {
        self.as_object().and_then(|members| members.get(key))
    }

    /// Returns the decoded string, if this is one.
    pub fn as_str(&self) -> Option<&str> {
        if let Json::String(text) = self { Some(text) } else { None }
    }

    /// Returns the elements, if this is a list.
    pub fn as_list(&self) -> Option<&[Json]> {
        if let Json::List(list) = self { Some(list) } else { None }
    }

    /// Returns the members, if this is an object.
    pub fn as_object(&self) -> Option<&BTreeMap<String, Json>> {
        if let Json::Object(members) = self { Some(members) } else { None }
    }

    /// Returns the maximum nesting depth.
    pub(crate) fn nesting_depth(&self) -> usize {
        match self {
            Json::List(list) => 1 + list.iter().map(Json::nesting_depth).max().unwrap_or(0),
            Json::Object(members) => 1 + members.values().map(Json::nesting_depth).max().unwrap_or(0),
            Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => 0,
        }
    }
}

/// Returns the members that Go's decoder assigns to a struct field: those whose key differs only in ASCII case, the exact one
/// first.
pub(crate) fn matching_fields<'a>(members: &'a JsonMembers, key: &'a str) -> impl Iterator<Item = &'a Json> {
    let alike = move |name: &str| name != key && name.eq_ignore_ascii_case(key);
    let others = members.iter().filter(move |(name, _)| alike(name)).map(|(_, value)| value);
    members.get(key).into_iter().chain(others)
}

/// Returns the text of such a field; `None` if it is missing, empty or no string.
pub(crate) fn field_text<'a>(members: &'a JsonMembers, key: &'a str) -> Option<&'a str> {
    matching_fields(members, key).find_map(Json::as_str).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests;
