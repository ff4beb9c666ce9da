//! The reader. By hand, because serde_json keeps the text of numbers only under a feature that would change every other
//! crate which uses it, or by reading each level of the document once more.

use super::{Json, JsonMembers};

/// Why a text is not read as JSON.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {what}")]
pub struct JsonError {
    /// The line, from 1.
    pub line: usize,
    /// The character of the line, from 1.
    pub column: usize,
    what: String,
    too_deep: bool,
}

impl JsonError {
    /// Creates an error that says what is wrong at an offset.
    pub(super) fn at_offset(text: &[u8], offset: usize, what: impl Into<String>) -> Self {
        let before = text.get(..offset).unwrap_or(text);
        let line = before.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
        JsonError {
            line: 1 + before.iter().filter(|byte| **byte == b'\n').count(),
            column: 1 + String::from_utf8_lossy(line).chars().count(),
            what: what.into(),
            too_deep: false,
        }
    }

    /// Whether the text is nested deeper than [`Json::MAX_DEPTH`], which need not keep others from reading it.
    #[must_use]
    pub const fn is_too_deep(&self) -> bool {
        self.too_deep
    }
}

/// Reads a text that is one value.
pub(super) fn document(text: &str) -> Result<Json, JsonError> {
    let mut reader = JsonReader { text, at: 0, depth: 0 };
    if text.starts_with('\u{feff}') {
        return Err(reader.error_here("the text starts with a byte order mark, which JSON does not allow"));
    }
    let value = reader.read_value()?;
    reader.skip_blanks();
    if reader.at < text.len() {
        return Err(reader.expected_error("the end of the text"));
    }
    Ok(value)
}

/// A place in the text. `at` always is at the start of a character.
struct JsonReader<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

impl<'a> JsonReader<'a> {
    fn remaining_text(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn peek_byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn error_here(&self, what: impl Into<String>) -> JsonError {
        JsonError::at_offset(self.text.as_bytes(), self.at, what)
    }

    fn expected_error(&self, what: &str) -> JsonError {
        match self.remaining_text().chars().next() {
            Some(found) => self.error_here(format!("{what} is expected, not {found:?}")),
            None => self.error_here(format!("{what} is expected, but the text ends")),
        }
    }

    fn skip_blanks(&mut self) {
        while matches!(self.peek_byte(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// Goes past this byte, if it is next.
    fn skip_byte(&mut self, byte: u8) -> bool {
        let found = self.peek_byte() == Some(byte);
        self.at += usize::from(found);
        found
    }

    /// Skips blanks, then goes past this byte, if it is next.
    fn skip_mark(&mut self, byte: u8) -> bool {
        self.skip_blanks();
        self.skip_byte(byte)
    }

    fn read_value(&mut self) -> Result<Json, JsonError> {
        self.skip_blanks();
        match self.peek_byte() {
            Some(b'{') => self.read_nested(Self::read_object),
            Some(b'[') => self.read_nested(Self::read_list),
            Some(b'"') => self.read_string().map(Json::String),
            Some(b'-' | b'0'..=b'9') => self.read_number(),
            _ => self.read_literal(),
        }
    }

    fn read_nested(&mut self, read: fn(&mut Self) -> Result<Json, JsonError>) -> Result<Json, JsonError> {
        if self.depth == Json::MAX_DEPTH {
            let levels = Json::MAX_DEPTH;
            let error = self.error_here(format!("the text is nested deeper than {levels} levels"));
            return Err(JsonError { too_deep: true, ..error });
        }
        self.depth += 1;
        self.at += 1;
        let value = read(self)?;
        self.depth -= 1;
        Ok(value)
    }

    fn read_object(&mut self) -> Result<Json, JsonError> {
        let mut members = JsonMembers::new();
        if self.skip_mark(b'}') {
            return Ok(Json::Object(members));
        }
        loop {
            self.skip_blanks();
            if self.peek_byte() != Some(b'"') {
                return Err(self.expected_error("a key in double quotes"));
            }
            let key = self.read_string()?;
            if !self.skip_mark(b':') {
                return Err(self.expected_error("a colon"));
            }
            let value = self.read_value()?;
            members.insert(key, value);
            if self.skip_mark(b'}') {
                return Ok(Json::Object(members));
            }
            if !self.skip_byte(b',') {
                return Err(self.expected_error("a comma or a closing brace"));
            }
        }
    }

    fn read_list(&mut self) -> Result<Json, JsonError> {
        let mut list = Vec::new();
        if self.skip_mark(b']') {
            return Ok(Json::List(list));
        }
        loop {
            list.push(self.read_value()?);
            if self.skip_mark(b']') {
                return Ok(Json::List(list));
            }
            if !self.skip_byte(b',') {
                return Err(self.expected_error("a comma or a closing bracket"));
            }
        }
    }

    fn read_literal(&mut self) -> Result<Json, JsonError> {
        let literals = [("null", Json::Null), ("true", Json::Bool(true)), ("false", Json::Bool(false))];
        let found = literals.into_iter().find(|(word, _)| self.remaining_text().starts_with(word));
        let (word, value) = found.ok_or_else(|| self.expected_error("a value"))?;
        self.at += word.len();
        Ok(value)
    }

    fn read_number(&mut self) -> Result<Json, JsonError> {
        let start = self.at;
        self.skip_byte(b'-');
        if !self.skip_byte(b'0') {
            self.skip_digits()?;
        }
        if self.skip_byte(b'.') {
            self.skip_digits()?;
        }
        if self.skip_byte(b'e') || self.skip_byte(b'E') {
            let _sign = self.skip_byte(b'+') || self.skip_byte(b'-');
            self.skip_digits()?;
        }
        Ok(Json::Number(self.text.get(start..self.at).unwrap_or_default().to_owned()))
    }

    /// Goes past one digit or more.
    fn skip_digits(&mut self) -> Result<(), JsonError> {
        let start = self.at;
        while matches!(self.peek_byte(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if self.at == start { Err(self.expected_error("a digit")) } else { Ok(()) }
    }

    /// Decodes the string whose opening quote is next.
    fn read_string(&mut self) -> Result<String, JsonError> {
        self.at += 1;
        let mut decoded = String::new();
        loop {
            let rest = self.remaining_text();
            let plain = rest.bytes().position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1f));
            let plain = plain.unwrap_or(rest.len());
            decoded.push_str(rest.get(..plain).unwrap_or_default());
            self.at += plain;
            match self.peek_byte() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(decoded);
                }
                Some(b'\\') => decoded.push(self.read_escape()?),
                Some(_) => return Err(self.error_here("a control character in a string must be escaped")),
                None => return Err(self.error_here("the text ends within a string")),
            }
        }
    }

    /// Decodes the escape whose backslash is next.
    fn read_escape(&mut self) -> Result<char, JsonError> {
        let decoded = match self.text.as_bytes().get(self.at + 1) {
            Some(byte @ (b'"' | b'\\' | b'/')) => char::from(*byte),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => return self.code_point(),
            _ => return Err(self.error_here("a backslash is followed by one of \" \\ / b f n r t u")),
        };
        self.at += 2;
        Ok(decoded)
    }

    fn code_point(&mut self) -> Result<char, JsonError> {
        let first = self
            .peek_code_unit()
            .ok_or_else(|| self.error_here("\\u is followed by four hexadecimal digits"))?;
        self.at += 6;
        let pair = self.peek_code_unit().and_then(|second| {
            let mut decoded = char::decode_utf16([first, second]);
            decoded.next().and_then(Result::ok).filter(|_| decoded.next().is_none())
        });
        if let Some(decoded) = pair {
            self.at += 6;
            return Ok(decoded);
        }
        Ok(char::from_u32(u32::from(first)).unwrap_or(char::REPLACEMENT_CHARACTER))
    }

    /// The number of the `\u` escape that is next.
    fn peek_code_unit(&self) -> Option<u16> {
        let digits = self.remaining_text().strip_prefix("\\u")?.get(..4)?;
        // Rust's integers may have a sign too.
        let plain = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        u16::from_str_radix(digits, 16).ok().filter(|_| plain)
    }
}
