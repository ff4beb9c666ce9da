//! Base64 with the standard alphabet and padding (RFC 4648, section 4): the kubeconfig's `-data` members and basic
//! authentication. Own code, because these forty lines are all we need.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The bytes of a text, white space ignored; none when it is no Base64.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let mut digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    if !digits.len().is_multiple_of(4) {
        return None;
    }
    for _ in 0..2 {
        digits.pop_if(|last| *last == b'=');
    }
    let mut bytes = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    for group in digits.chunks(4) {
        let mut word = 0u32;
        for digit in group {
            word = word << 6 | u32::from(value(*digit)?);
        }
        // A last group of 2 or 3 digits has 1 or 2 bytes and 4 or 2 bits too many, which must be 0.
        let spare = 6 * group.len() % 8;
        if group.len() == 1 || word & ((1 << spare) - 1) != 0 {
            return None;
        }
        let whole = (word >> spare).to_be_bytes();
        bytes.extend(whole.iter().skip(4 - group.len() * 6 / 8));
    }
    Some(bytes)
}

/// The text of bytes, with padding.
pub(crate) fn encode(bytes: &[u8]) -> String {
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let at = |index: usize| u32::from(group.get(index).copied().unwrap_or(0));
        let word = at(0) << 16 | at(1) << 8 | at(2);
        for place in 0..4 {
            let index = word >> (18 - 6 * place) & 63;
            let digit = ALPHABET.get(index as usize).copied().unwrap_or(b'=');
            text.push(if place as usize <= group.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

fn value(digit: u8) -> Option<u8> {
    match digit {
        b'A'..=b'Z' => Some(digit - b'A'),
        b'a'..=b'z' => Some(digit - b'a' + 26),
        b'0'..=b'9' => Some(digit - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_vectors_of_rfc_4648_hold() {
        for (text, base64) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encode(text.as_bytes()), base64);
            assert_eq!(decode(base64).as_deref(), Some(text.as_bytes()));
        }
        for bad in ["Z", "Zg", "Zg=", "Z===", "====", "Zh==", "Zm9=", "Z-8=", "Zg==Zg=="] {
            assert_eq!(decode(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn bytes_come_back(bytes: Vec<u8>) {
            prop_assert_eq!(decode(&encode(&bytes)), Some(bytes));
        }

        #[test]
        fn no_text_panics(text in "[A-Za-z=+/ \\PC]{0,40}") {
            let _ = decode(&text);
        }
    }
}
