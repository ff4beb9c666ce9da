//! Parser of documents made by other versions of the program, older or newer.

use serde::{Deserialize, Deserializer, de::DeserializeOwned};

use crate::{
    findings::Severity,
    state::{SCHEMA, StateReport},
};

/// Error of parsing a document.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    /// The schema is unknown to this version.
    #[error("the document is {found:?}, and this program knows {SCHEMA}: use the version of the agent")]
    Schema {
        /// Schema of the document.
        found: String,
    },
    /// The text is no such document, or is damaged.
    #[error("the document of the node's state cannot be read: {0}")]
    Content(#[from] serde_json::Error),
}

/// Part of a document that is parsed first, because its meaning is the same in every version.
#[derive(Deserialize)]
struct Head {
    schema: String,
}

impl StateReport {
    /// Parses a document of [`SCHEMA`] made by an older or a newer version: missing members have their defaults, and unknown ones
    /// are ignored. An unknown value is read as the one that claims least.
    ///
    /// # Errors
    /// The text is no document, or one of another schema.
    pub fn parse(text: &[u8]) -> Result<StateReport, DocumentError> {
        let Head { schema } = serde_json::from_slice(text)?;
        if schema != SCHEMA {
            return Err(DocumentError::Schema { found: crate::text::sanitize_text(&schema) });
        }
        Ok(serde_json::from_slice(text)?)
    }
}

/// Deserialises a value; one of a later version is `None`.
pub(crate) fn known_value<'de, D, T>(from: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    let value = serde_json::Value::deserialize(from)?;
    Ok(serde_json::from_value(value).ok())
}

/// Deserialises a severity; one of a later version is [`Severity::Unknown`], so that no finding counts as none.
pub(crate) fn known_severity<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Severity>, D::Error> {
    let value = serde_json::Value::deserialize(from)?;
    Ok((!value.is_null()).then(|| serde_json::from_value(value).unwrap_or(Severity::Unknown)))
}

/// Deserialises a value; one of a later version is the default.
pub(crate) fn known_or_default<'de, D, T>(from: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned + Default,
{
    known_value(from).map(Option::unwrap_or_default)
}
