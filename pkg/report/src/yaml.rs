//! JSON values as YAML, for people and scripts that prefer it.

use serde_json::Value;

/// A YAML document in block style. Every text that a reader could take for something else is quoted.
pub fn to_yaml(value: &Value) -> String {
    serde_saphyr::to_string(value).unwrap_or_default() // values of JSON have no key that is no text
}

#[cfg(test)]
mod tests;
