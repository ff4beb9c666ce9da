//! Error object that a plugin prints to stdout.

use serde::{Serialize, Serializer};

use crate::CniVersion;

/// The well-known error codes (CNI spec 1.1.0, section 5, "Error") that we answer, and ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ErrorCode {
    /// The configuration asks for a CNI version that we do not speak.
    IncompatibleVersion = 1,
    /// A `CNI_*` variable is missing or invalid.
    InvalidEnvironment = 4,
    /// Input or output failed.
    Io = 5,
    /// Something could not be decoded.
    Decode = 6,
    /// The network configuration is invalid.
    InvalidConfig = 7,
    /// A passing condition; the runtime should try again later.
    TryAgainLater = 11,
    /// The plugin cannot serve `ADD` (`STATUS` only).
    NotAvailable = 50,
    /// Any other error, as the skeleton of the reference plugins numbers it. The specification leaves 100 and above
    /// to plugins; we use no other of them.
    Other = 999,
}

impl ErrorCode {
    /// Returns the number of the code.
    pub const fn number(self) -> u32 {
        self as u32
    }
}

impl Serialize for ErrorCode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(self.number())
    }
}

/// An error in the runtime's format (CNI spec 1.1.0, section 5, "Error").
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{msg}{}{details} (CNI code {})", if details.is_empty() { "" } else { "; " }, code.number())]
pub struct CniError {
    /// Version of the configuration, if known.
    #[serde(rename = "cniVersion", serialize_with = "as_text")]
    pub cni_version: CniVersion,
    /// Kind of error.
    pub code: ErrorCode,
    /// One short sentence.
    pub msg: String,
    /// Details for a person; omitted if empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub details: String,
}

impl CniError {
    /// Returns an error of the newest version without details.
    pub fn new(code: ErrorCode, msg: impl Into<String>) -> Self {
        CniError { cni_version: CniVersion::LATEST, code, msg: msg.into(), details: String::new() }
    }

    /// Returns the error with these details.
    #[must_use]
    pub fn with_details(mut self, details: impl Into<String>) -> Self {
        self.details = details.into();
        self
    }

    /// Returns the error for a configuration of this version.
    #[must_use]
    pub fn with_version(mut self, version: CniVersion) -> Self {
        self.cni_version = version;
        self
    }

    /// Returns the JSON for stdout, indented by four blanks as in the reference plugins, without a newline at the end.
    pub fn to_json(&self) -> String {
        let mut text = Vec::new();
        let formatter = serde_json::ser::PrettyFormatter::with_indent(b"    ");
        // Strings and numbers always serialise, and writing to memory cannot fail.
        let _ = self.serialize(&mut serde_json::Serializer::with_formatter(&mut text, formatter));
        String::from_utf8(text).unwrap_or_default()
    }
}

fn as_text<S: Serializer>(version: &CniVersion, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(version.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_prints_with_four_blanks() {
        let error =
            CniError::new(ErrorCode::TryAgainLater, "the \"agent\" is away").with_version(CniVersion::V1_0_0);
        let json = "{\n    \"cniVersion\": \"1.0.0\",\n    \"code\": 11,\n    \"msg\": \"the \\\"agent\\\" is away\"\n}";
        assert_eq!(error.to_json(), json);
        let error = error.with_details("start it");
        let json = json.replace("\n}", ",\n    \"details\": \"start it\"\n}");
        assert_eq!(error.to_json(), json);
        assert_eq!(error.to_string(), "the \"agent\" is away; start it (CNI code 11)");
    }
}
