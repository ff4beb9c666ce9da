//! JSON documents that are read, changed in a place or two, and written again for others to read.
//!
//! They are files of the container runtime, so everything that we do not understand must come out as it went in. A
//! number therefore keeps its text: as a floating-point number, 12345678901234567890 would come out as another one.

use std::collections::BTreeMap;

mod parse;
mod print;

pub use parse::JsonError;

/// The members of an object, by their keys.
pub(crate) type JsonMembers = BTreeMap<String, Json>;

/// A JSON value. Two of them are equal when they say the same, whatever the blanks and the order of keys; numbers are
/// compared by their text, so 1 and 1.0 differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Json {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number, as its text; [`Json::parse`] puts only valid ones here.
    Number(String),
    /// A string, decoded.
    String(String),
    /// An array.
    List(Vec<Json>),
    /// An object. Keys are in the order of their bytes, in which Go prints them too.
    Object(BTreeMap<String, Json>),
}

impl Json {
    /// The deepest nesting that is read: the limit of serde_json, with which the plugin reads. Go allows 10000, but who
    /// nests a network configuration that deep wants to exhaust somebody's stack.
    pub const MAX_DEPTH: usize = 128;

    /// Reads a whole document as Go's encoding/json does: of several members with one key the last counts, and half of
    /// a surrogate pair becomes U+FFFD.
    ///
    /// # Errors
    /// When the text is not UTF-8 (Go would put U+FFFD there and so change what is not ours), starts with a byte order
    /// mark, is no JSON, goes on after the value, or is nested deeper than [`Json::MAX_DEPTH`].
    pub fn parse(bytes: &[u8]) -> Result<Json, JsonError> {
        match str::from_utf8(bytes) {
            Ok(text) => parse::document(text),
            Err(error) => Err(JsonError::at_offset(bytes, error.valid_up_to(), "these bytes are not UTF-8")),
        }
    }

    /// Reads a document as a runtime in Go does, to whom bytes that are no UTF-8 are U+FFFD: for questions about what
    /// the runtime sees, not for changing anything.
    pub(crate) fn as_runtimes_read(bytes: &[u8]) -> Result<Json, JsonError> {
        parse::document(&String::from_utf8_lossy(bytes))
    }

    /// The text that `MarshalIndent(value, "", "  ")` of Go 1.21's encoding/json gives, and one line feed: keys sorted,
    /// two blanks per level, `<`, `>`, `&`, U+2028 and U+2029 escaped. It ends the file as Istio's files end.
    pub fn to_go_text(&self) -> String {
        print::document(self)
    }

    /// The member of an object with exactly this key; none when there is none or this is no object.
    pub fn get(&self, key: &str) -> Option<&Json> {
        self.as_object().and_then(|members| members.get(key))
    }

    /// The decoded string, when this is one.
    pub fn as_str(&self) -> Option<&str> {
        if let Json::String(text) = self { Some(text) } else { None }
    }

    /// The values, when this is a list.
    pub fn as_list(&self) -> Option<&[Json]> {
        if let Json::List(list) = self { Some(list) } else { None }
    }

    /// The members, when this is an object.
    pub fn as_object(&self) -> Option<&BTreeMap<String, Json>> {
        if let Json::Object(members) = self { Some(members) } else { None }
    }

    /// How many brackets are open at the deepest place.
    pub(crate) fn nesting_depth(&self) -> usize {
        match self {
            Json::List(list) => 1 + list.iter().map(Json::nesting_depth).max().unwrap_or(0),
            Json::Object(members) => 1 + members.values().map(Json::nesting_depth).max().unwrap_or(0),
            Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => 0,
        }
    }
}

/// The members that Go's decoder takes for a field of a struct: those whose key differs only in ASCII case, the exact
/// one first.
pub(crate) fn matching_fields<'a>(members: &'a JsonMembers, key: &'a str) -> impl Iterator<Item = &'a Json> {
    let alike = move |name: &str| name != key && name.eq_ignore_ascii_case(key);
    let others = members.iter().filter(move |(name, _)| alike(name)).map(|(_, value)| value);
    members.get(key).into_iter().chain(others)
}

/// The text that such a field gets; none when it is missing, empty or no string.
pub(crate) fn field_text<'a>(members: &'a JsonMembers, key: &'a str) -> Option<&'a str> {
    matching_fields(members, key).find_map(Json::as_str).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests;
