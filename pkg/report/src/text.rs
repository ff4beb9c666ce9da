//! Text for people, assembled from foreign parts.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Characters that are encoded: all but letters, digits and `-._~`, which are unreserved (RFC 3986, section 2.3).
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Percent-encodes a text for a query or for a path segment.
pub fn percent_encode(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

/// Escapes control characters as `\u{1b}`: text from the API or from ztunnel must not control a terminal. Line ends become blanks.
pub fn sanitize_text(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\r' | '\t' => clean.push(' '),
            c if c.is_control()
                || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') =>
            {
                clean.extend(c.escape_unicode());
            }
            c => clean.push(c),
        }
    }
    clean
}

/// Returns the first 200 characters of an agent's response that is no document, sanitised by [`sanitize_text`].
pub fn excerpt(body: &[u8]) -> String {
    sanitize_text(String::from_utf8_lossy(body).trim()).chars().take(200).collect()
}

/// Whether a text can be an object's name, in a path: lower-case letters, digits, `-` and, not at first, `.`; at most 253 bytes.
pub fn is_object_name(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    !text.is_empty() && !text.starts_with('.') && text.len() <= 253 && text.bytes().all(fits)
}

/// Returns how many more there are, as a clause at the end of a list; empty if there are none.
pub(crate) fn more_clause(count: usize) -> String {
    if count > 0 { format!(", and {count} more") } else { String::new() }
}

/// Returns one sentence with a capital letter and a period, on one line.
pub(crate) fn to_sentence(text: &str) -> String {
    let text = sanitize_text(text);
    let text = text.trim();
    let mut letters = text.chars();
    let mut sentence: String = letters.next().into_iter().flat_map(char::to_uppercase).collect();
    sentence.push_str(letters.as_str());
    if !sentence.is_empty() && !sentence.ends_with(['.', '!', '?']) {
        sentence.push('.');
    }
    sentence
}

/// Returns the text as a clause within a sentence: without the period or trailing colon at its end.
pub(crate) fn to_clause(text: &str) -> String {
    sanitize_text(text).trim().trim_end_matches(['.', ':']).to_owned()
}

/// Replaces paths of pages, such as `docs/x.md#y`, by addresses on the site named by `MILLRACE_DOCS` at build time, if set.
pub fn link_docs(text: &str) -> String {
    link_docs_at(option_env!("MILLRACE_DOCS").unwrap_or_default(), text)
}

/// Links to the site, which has the pages at the same paths (`hack/site`).
fn link_docs_at(site: &str, text: &str) -> String {
    match site.trim_end_matches('/') {
        "" => text.to_owned(),
        site => text.replace("docs/", &format!("{site}/docs/")).replace(".md", ".html"),
    }
}

/// Formats a count: `1 pod`, `2 pods`.
pub fn format_count(number: usize, one: &str) -> String {
    if number == 1 { format!("1 {one}") } else { format!("{number} {one}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_would_change_a_path_are_refused() {
        let names = ["istio-cni-taint-configmap", "a.b", "", "..", ".a", "a/b", "a?b", "A", "a b"];
        assert_eq!(names.map(is_object_name), [true, true, false, false, false, false, false, false, false]);
    }

    #[test]
    fn a_selector_is_one_value_of_a_query() {
        assert_eq!(percent_encode("k8s-app=a,b in (c-d)~"), "k8s-app%3Da%2Cb%20in%20%28c-d%29~");
    }

    #[test]
    fn pages_are_addresses_where_the_build_names_a_site() {
        let text = "Set it: docs/a.md#b; docs/c.md has more.";
        let linked =
            "Set it: https://docs.example/x/docs/a.html#b; https://docs.example/x/docs/c.html has more.";
        for (site, expected) in
            [("", text), ("https://docs.example/x", linked), ("https://docs.example/x/", linked)]
        {
            assert_eq!(link_docs_at(site, text), expected);
        }
    }

    #[test]
    fn sentences_begin_and_end_as_sentences_do() {
        for (text, expected) in [
            ("it is there", "It is there."),
            ("Why not?", "Why not?"),
            (" refused: no\nroute. ", "Refused: no route."),
            ("", ""),
            ("état", "État."),
        ] {
            assert_eq!(to_sentence(text), expected);
        }
        assert_eq!(to_clause("It fails."), "It fails");
        assert_eq!(
            (format_count(1, "pod"), format_count(0, "pod")),
            ("1 pod".to_owned(), "0 pods".to_owned())
        );
    }

    #[test]
    fn nothing_steers_a_terminal() {
        assert_eq!(excerpt(b" root\nonly\xff\x1b\n"), "root only\u{fffd}\\u{1b}");
        assert_eq!(excerpt(&[b'a'; 1000]).len(), 200);
        assert_eq!(sanitize_text("a\x1b[31mb\u{9b}1m\u{202e}\tc"), "a\\u{1b}[31mb\\u{9b}1m\\u{202e} c");
    }
}
