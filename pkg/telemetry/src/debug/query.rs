//! Query parameters of a URI.

use axum::http::Uri;

/// Returns the first value of that name; `None` if absent. Invalid percent-encoding is kept as is.
pub(super) fn query_parameter(uri: &Uri, name: &str) -> Option<String> {
    let mut pairs = form_urlencoded::parse(uri.query()?.as_bytes());
    pairs.find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
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
