//! JSON parsing with Go's rules, keeping every value as its original text.
//!
//! Runtimes and the previous plugins are Go programs, whose decoder matches keys case-insensitively. Values stay raw, so that
//! numbers keep their precision, and a result can be passed on.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::{CniError, ErrorCode};

/// An invalid member of a document.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {what}")]
pub(crate) struct InvalidMember {
    pub(crate) path: String,
    pub(crate) what: String,
}

impl From<InvalidMember> for CniError {
    fn from(wrong: InvalidMember) -> Self {
        CniError::new(ErrorCode::Decode, format!("cannot decode {wrong}"))
    }
}

/// Members of an object in their order, duplicates included, and the object's path in the document.
#[derive(Debug, Default)]
pub(crate) struct ObjectFields<'a> {
    path: String,
    members: Vec<(String, &'a RawValue)>,
}

impl<'a> ObjectFields<'a> {
    /// Parses the text of an object.
    pub(crate) fn parse(path: &str, text: &'a str) -> Result<Self, InvalidMember> {
        let RawMembers(members) = decode_text(path, text)?;
        Ok(ObjectFields { path: path.to_owned(), members })
    }

    /// Returns the value of a key: of the exact key if present, else of one that differs only in ASCII case; of several the last.
    /// `null` counts as absent, as in Go (encoding/json, "Unmarshal").
    pub(crate) fn get(&self, key: &str) -> Option<&'a RawValue> {
        let last = |same: fn(&str, &str) -> bool| self.members.iter().rfind(|(name, _)| same(name, key));
        let (_, value) = last(|a, b| a == b).or_else(|| last(str::eq_ignore_ascii_case))?;
        (value.get() != "null").then_some(*value)
    }

    /// Whether the key is present, even with `null`.
    pub(crate) fn has_key(&self, key: &str) -> bool {
        self.members.iter().any(|(name, _)| name.eq_ignore_ascii_case(key))
    }

    /// Returns the path of a member, for messages.
    pub(crate) fn member_path(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// Returns the decoded value of a key.
    pub(crate) fn decode_member<T: Deserialize<'a>>(&self, key: &str) -> Result<Option<T>, InvalidMember> {
        self.get(key).map(|raw| decode_text(&self.member_path(key), raw.get())).transpose()
    }

    /// Returns a string; `None` if it is absent or empty.
    pub(crate) fn text_member(&self, key: &str) -> Result<Option<String>, InvalidMember> {
        Ok(self.decode_member::<String>(key)?.filter(|text| !text.is_empty()))
    }

    /// Returns a list of strings, empty if absent.
    pub(crate) fn text_list(&self, key: &str) -> Result<Vec<String>, InvalidMember> {
        let list: Vec<Option<String>> = self.decode_member(key)?.unwrap_or_default();
        Ok(list.into_iter().map(Option::unwrap_or_default).collect())
    }

    /// Returns an object.
    pub(crate) fn object_member(&self, key: &str) -> Result<Option<ObjectFields<'a>>, InvalidMember> {
        self.get(key).map(|raw| ObjectFields::parse(&self.member_path(key), raw.get())).transpose()
    }

    /// Returns a list of objects, empty if absent. An element that is `null` is an empty object, as in Go.
    pub(crate) fn object_list(&self, key: &str) -> Result<Vec<ObjectFields<'a>>, InvalidMember> {
        let list: Vec<&'a RawValue> = self.decode_member(key)?.unwrap_or_default();
        let elements = list.into_iter().enumerate().map(|(at, raw)| {
            let path = format!("{}[{at}]", self.member_path(key));
            ObjectFields::parse(&path, if raw.get() == "null" { "{}" } else { raw.get() })
        });
        elements.collect()
    }

    /// Returns an error about the value of a key.
    pub(crate) fn member_error(&self, key: &str, what: impl fmt::Display) -> InvalidMember {
        InvalidMember { path: self.member_path(key), what: what.to_string() }
    }
}

/// Decodes a text; an error has its path.
fn decode_text<'a, T: Deserialize<'a>>(path: &str, text: &'a str) -> Result<T, InvalidMember> {
    serde_json::from_str(text).map_err(|error| InvalidMember {
        path: if path.is_empty() { "the document".to_owned() } else { path.to_owned() },
        what: error.to_string(),
    })
}

struct RawMembers<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for RawMembers<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = RawMembers<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(RawMembers(members))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_match_like_those_of_go() {
        for (text, value) in [
            (r#"{"cniVersion":1}"#, Some("1")),
            (r#"{"cniversion":1}"#, Some("1")),
            (r#"{"CNIVERSION":1,"cniVersion":2}"#, Some("2")),
            (r#"{"cniVersion":2,"CNIVERSION":1}"#, Some("2")),
            (r#"{"cniversion":1,"CNIVERSION":2}"#, Some("2")),
            (r#"{"cniVersion":1,"cniVersion":2}"#, Some("2")),
            (r#"{"cni\u0056ersion":3}"#, Some("3")),
            (r#"{"cniVersion":null}"#, None),
            (r#"{"other":1}"#, None),
        ] {
            let fields = ObjectFields::parse("", text).unwrap();
            assert_eq!(fields.get("cniVersion").map(RawValue::get), value, "{text}");
        }
    }

    #[test]
    fn a_wrong_value_is_named_by_its_path() {
        let fields = ObjectFields::parse("", r#"{"a":{"list":[{"x":"1"},{"x":5}]}}"#).unwrap();
        let list = fields.object_member("a").unwrap().unwrap().object_list("list").unwrap();
        assert_eq!(list[0].text_member("x").unwrap().as_deref(), Some("1"));
        let wrong = list[1].text_member("x").unwrap_err().to_string();
        assert!(wrong.starts_with("a.list[1].x: invalid type: integer `5`, expected a string"), "{wrong}");
    }
}
