//! Splitter of a list response into its objects as it arrives, so that memory never holds all of them with all content that their
//! authors control.
//!
//! Pure.

/// Larger than any object that the API server stores, in bytes.
pub(crate) const MAX_OBJECT: usize = 8 * 1024 * 1024;
/// Larger than the rest of a list without its objects, in bytes.
const MAX_REST: usize = 1024 * 1024;

/// Splits the JSON text of a list.
#[derive(Debug, Default)]
pub(crate) struct ListSplitter {
    depth: usize,
    in_string: bool,
    escaped: bool,
    in_items: bool,
    /// The object being received.
    object: Vec<u8>,
    /// The list without its objects: JSON, too, once it is complete.
    rest: Vec<u8>,
}

impl ListSplitter {
    /// Adds received bytes; returns the objects completed by them.
    ///
    /// # Errors
    /// The list, or an object of it, is too large, as text.
    pub(crate) fn push_bytes(
        &mut self,
        bytes: &[u8],
        mut each: impl FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(), String> {
        for byte in bytes {
            if self.in_items {
                self.in_items(*byte, &mut each)?;
            } else {
                self.rest.push(*byte);
                self.track_byte(*byte);
                self.in_items =
                    *byte == b'[' && !self.in_string && self.depth == 2 && names_items(&self.rest);
                if self.rest.len() > MAX_REST {
                    return Err("the response is not a list".to_owned());
                }
            }
        }
        Ok(())
    }

    fn in_items(
        &mut self,
        byte: u8,
        each: &mut impl FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(), String> {
        let before = self.depth;
        self.track_byte(byte);
        if before > 2 || self.depth > 2 {
            self.object.push(byte);
            if self.depth == 2 {
                each(&self.object)?;
                self.object.clear();
                self.object.shrink_to(64 * 1024);
            } else if self.object.len() > MAX_OBJECT {
                return Err(format!("an object has more than {MAX_OBJECT} bytes"));
            }
        } else if self.depth < 2 {
            self.in_items = false;
            self.rest.push(byte);
        }
        Ok(())
    }

    fn track_byte(&mut self, byte: u8) {
        if self.in_string {
            let escaped = std::mem::take(&mut self.escaped);
            match byte {
                _ if escaped => {}
                b'\\' => self.escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return;
        }
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
    }

    /// Returns the list without its objects, once it is complete.
    ///
    /// # Errors
    /// The list is incomplete, as text.
    pub(crate) fn finish(self) -> Result<Vec<u8>, String> {
        if self.depth == 0 && !self.rest.is_empty() {
            Ok(self.rest)
        } else {
            Err("the list is cut off".to_owned())
        }
    }
}

/// Whether the array that begins here is the list's `items`.
fn names_items(rest: &[u8]) -> bool {
    let text: Vec<u8> =
        rest.iter().rev().filter(|byte| !byte.is_ascii_whitespace()).take(9).copied().collect();
    text.iter().rev().eq(b"\"items\":[")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(text: &str, size: usize) -> Result<(Vec<String>, String), String> {
        let (mut pieces, mut objects) = (ListSplitter::default(), Vec::new());
        for part in text.as_bytes().chunks(size) {
            pieces.push_bytes(part, |object| {
                objects.push(String::from_utf8_lossy(object).into_owned());
                Ok(())
            })?;
        }
        Ok((objects, String::from_utf8_lossy(&pieces.finish()?).into_owned()))
    }

    #[test]
    fn a_list_is_cut_into_its_objects_however_it_comes() {
        let hard = r#"{"a":"}],\"\\","items":[{"x":[1,{"y":"{["}]}]}"#;
        let text = format!(
            "{{\"kind\":\"PodList\",\"metadata\":{{\"resourceVersion\":\"5\"}},\n \"items\" : [\n{hard} , {{}}] }}"
        );
        for size in [1, 2, 3, 7, 1000] {
            let (objects, rest) = cut(&text, size).unwrap();
            assert_eq!(objects, [hard, "{}"], "{size}");
            let rest: serde_json::Value = serde_json::from_str(&rest).unwrap();
            assert_eq!(rest["metadata"]["resourceVersion"], "5");
            assert_eq!(rest["items"], serde_json::json!([]));
        }
        assert_eq!(cut(r#"{"items":[]}"#, 4).unwrap().0, Vec::<String>::new());
        assert_eq!(cut(r#"{"items":null,"x":[{}]}"#, 4).unwrap().0, Vec::<String>::new());
    }

    #[test]
    fn what_is_no_whole_list_is_an_error() {
        for text in ["", r#"{"items":[{"a":1}"#, r#"{"items":[{"a":"#] {
            assert!(cut(text, 5).is_err(), "{text}");
        }
        let endless = format!(r#"{{"items":[{{"a":"{}"#, "x".repeat(MAX_OBJECT + 1));
        let why = cut(&endless, 65536).unwrap_err();
        assert_eq!(why, format!("an object has more than {MAX_OBJECT} bytes"));
        assert!(cut(&"x".repeat(MAX_REST + 1), 65536).is_err());
    }
}
