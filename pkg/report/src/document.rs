//! Reads the document of another program, which may be older or newer than this one.

use serde::{Deserialize, Deserializer, de::DeserializeOwned};

use crate::state::{SCHEMA, StateReport};

/// Why a document cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    /// The document is of a form that this program does not know.
    #[error("the document is {found:?}, and this program knows {SCHEMA}: use the version of the agent")]
    Schema {
        /// Schema of the document.
        found: String,
    },
    /// The text is no such document, or is damaged.
    #[error("the document of the node's state cannot be read: {0}")]
    Content(#[from] serde_json::Error),
}

/// The part of a document that is read first, because its meaning is the same in every version.
#[derive(Deserialize)]
struct Head {
    schema: String,
}

impl StateReport {
    /// Reads a document of [`SCHEMA`] that an older or a newer program made: members that are missing have their defaults, and
    /// those that are unknown are ignored. A value that is unknown counts as the one that claims least.
    ///
    /// # Errors
    /// It is none, or of another schema.
    pub fn parse(text: &[u8]) -> Result<StateReport, DocumentError> {
        let Head { schema } = serde_json::from_slice(text)?;
        if schema != SCHEMA {
            return Err(DocumentError::Schema { found: crate::text::sanitize_text(&schema) });
        }
        Ok(serde_json::from_slice(text)?)
    }
}

/// Reads a value that may be one of a later version: that counts as none.
pub(crate) fn known_value<'de, D, T>(from: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    let value = serde_json::Value::deserialize(from)?;
    Ok(serde_json::from_value(value).ok())
}

/// Reads a value that may be one of a later version: that counts as the default.
pub(crate) fn known_or_default<'de, D, T>(from: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned + Default,
{
    known_value(from).map(Option::unwrap_or_default)
}
