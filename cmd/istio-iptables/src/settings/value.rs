//! Error about the value of a flag.

use std::str::FromStr;

use flags::{Flag, FlagValues};
use model::parse_go_bool;

/// An invalid value of a flag.
#[derive(Debug, thiserror::Error)]
#[error("{}{flag} has the value {value:?}: {why}", flag_dashes(.flag))]
pub struct InvalidValue {
    /// Flag (or variable).
    pub flag: String,
    /// Value of the flag.
    pub value: String,
    /// Reason why the value is invalid.
    pub why: String,
}

/// Returns the dashes of a flag; a variable without a flag has none.
fn flag_dashes(name: &str) -> &'static str {
    if name.starts_with(|first: char| first.is_ascii_uppercase()) { "" } else { "--" }
}

pub(super) fn invalid_value(flag: impl Into<String>, value: &str, why: impl Into<String>) -> InvalidValue {
    InvalidValue { flag: flag.into(), value: value.to_owned(), why: why.into() }
}

pub(super) fn parse_value<T: FromStr<Err: ToString>>(
    values: &FlagValues,
    flag: &Flag,
) -> Result<T, InvalidValue> {
    let text = values.flag_text(flag);
    text.parse().map_err(|error: T::Err| invalid_value(flag.long, text, error.to_string()))
}

pub(crate) fn parse_boolean(values: &FlagValues, flag: &Flag) -> Result<bool, InvalidValue> {
    let text = values.flag_text(flag);
    parse_go_bool(text).ok_or_else(|| invalid_value(flag.long, text, "allowed: true, false"))
}
