//! Values that are never printed.

use std::fmt;

/// Bytes of a token, key or password. Neither `Debug` nor anything else prints them.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// Wraps the bytes.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Secret(bytes.into())
    }

    /// Returns the bytes, for sending.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the bytes as a line that is valid in an HTTP header: printable ASCII without blanks, with surrounding white space
    /// removed (files end in a newline; Istio's token is written untrimmed).
    pub(crate) fn header_text(&self) -> Option<&str> {
        let text = str::from_utf8(&self.0).ok()?.trim();
        (!text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic())).then_some(text)
    }

    /// Returns the credential of an `Authorization` value, without its scheme.
    pub(crate) fn header_word(&self) -> Option<&str> {
        str::from_utf8(&self.0).ok()?.split_once(' ').map(|(_, word)| word)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[hidden]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_shown_and_only_one_line_goes_into_a_header() {
        assert_eq!(format!("{:?}", Secret::new("abc")), "[hidden]");
        assert_eq!(Secret::new("abc.d-e\n").header_text(), Some("abc.d-e"));
        for bad in ["", " \n", "a b", "a\r\nHost: x", "ä"] {
            assert_eq!(Secret::new(bad).header_text(), None);
        }
    }
}
