//! What stands behind the question mark.

use axum::http::Uri;

/// The first value of that name; `None`: it is not there. What is no percent-encoding stays as it is.
pub(super) fn query_parameter(uri: &Uri, name: &str) -> Option<String> {
    let pairs = uri.query()?.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pairs
        .map(|(key, value)| (percent_decode(key), value))
        .find(|(key, _)| key == name)
        .map(|(_, value)| percent_decode(value))
}

fn percent_decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, behind)) = rest.split_first() {
        let escaped = match (first, behind) {
            (b'%', [high, low, behind @ ..]) => {
                hex_digit(*high).zip(hex_digit(*low)).map(|digits| (digits, behind))
            }
            _ => None,
        };
        let (byte, next) = match (escaped, first) {
            (Some(((high, low), behind)), _) => (high << 4 | low, behind),
            (None, b'+') => (b' ', behind),
            (None, byte) => (byte, behind),
        };
        bytes.push(byte);
        rest = next;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn hex_digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_and_decoded() {
        let ask = |query: &str, name| query_parameter(&format!("/x?{query}").parse().unwrap(), name);
        for (query, expected) in [
            ("pod=shop/web", Some("shop/web")),
            ("pod=shop%2Fweb", Some("shop/web")),
            ("a=b&%70od=shop%2fweb&pod=second", Some("shop/web")),
            ("pod=a+b%20c", Some("a b c")),
            ("pod=%", Some("%")),
            ("pod=%2", Some("%2")),
            ("pod=%zz%41", Some("%zzA")),
            ("pod=%+1", Some("% 1")),
            ("pod=%ff", Some("\u{fffd}")),
            ("pod", Some("")),
            ("pod=a=b", Some("a=b")),
            ("pods=x", None),
            ("", None),
        ] {
            assert_eq!(ask(query, "pod").as_deref(), expected, "{query}");
        }
        assert_eq!(query_parameter(&"/x".parse().unwrap(), "pod"), None);
    }
}
