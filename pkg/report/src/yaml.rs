//! YAML output of JSON values.

use serde_json::Value;

/// Returns a YAML document in block style. Strings that a parser could take for another type are quoted.
pub fn to_yaml(value: &Value) -> String {
    serde_saphyr::to_string(value).unwrap_or_default() // JSON values have string keys only
}

#[cfg(test)]
mod tests;
