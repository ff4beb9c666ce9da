//! Syntax of label selectors, as far as it must be checked before a request to the API server: a watch with an invalid selector
//! would fail permanently.

/// Longest selector, in bytes.
const MAX_LENGTH: usize = 2048;
/// Longest part of a label's key or value, in bytes: a DNS subdomain and a slash before a name.
const MAX_WORD: usize = 317;

/// Splits a selector at its commas, as Istio does, except within parentheses. Each part is a separate selector; the error is a
/// message.
pub(crate) fn split_selector(text: &str) -> Result<Vec<String>, String> {
    check_selector(text)?;
    let parts = split_parts(text);
    if parts.is_empty() { Err("the selector is empty".to_owned()) } else { Ok(parts) }
}

/// Checks a label selector whose parts must all match, such as one of nodes; an empty selector matches everything.
///
/// # Errors
/// It is too long, or a part of it is not a valid requirement; the error as a message.
pub fn check_selector(text: &str) -> Result<(), String> {
    if text.len() > MAX_LENGTH {
        return Err(format!("the selector has more than {MAX_LENGTH} bytes"));
    }
    match split_parts(text).into_iter().find(|part| !is_requirement(part)) {
        None => Ok(()),
        Some(part) => Err(format!(
            "{part:?} is not a label requirement, such as app=web, tier!=db, app in (a,b), app or !app"
        )),
    }
}

fn split_parts(text: &str) -> Vec<String> {
    let mut depth = 0_i32;
    let parts = text.split(|character| {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        character == ',' && depth == 0
    });
    parts.map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

fn is_requirement(part: &str) -> bool {
    if let Some(list) = part.strip_suffix(')') {
        return is_set_requirement(list);
    }
    match ["!=", "==", "="].into_iter().find_map(|operator| part.split_once(operator)) {
        Some((key, value)) => is_key(key.trim()) && is_value(value.trim()),
        None => is_key(part.strip_prefix('!').unwrap_or(part).trim()),
    }
}

/// Whether the text, without its closing parenthesis, is a set requirement, such as `app in (a,b`.
fn is_set_requirement(text: &str) -> bool {
    let Some((head, values)) = text.split_once('(') else { return false };
    let words: Vec<&str> = head.split_whitespace().collect();
    matches!(words.as_slice(), [key, "in" | "notin"] if is_key(key))
        && values.split(',').all(|value| is_value(value.trim()))
}

fn is_key(key: &str) -> bool {
    let (prefix, name) = key.rsplit_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    is_name(name, 63) && prefix.is_none_or(is_subdomain) && key.len() <= MAX_WORD
}

/// Whether the text is a DNS subdomain (RFC 1123) in lower case.
fn is_subdomain(text: &str) -> bool {
    let is_lower = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    text.len() <= 253 && text.split('.').all(|label| is_name(label, 253) && label.bytes().all(is_lower))
}

fn is_value(value: &str) -> bool {
    value.is_empty() || is_name(value, 63)
}

/// Whether the text consists of letters, digits, `-`, `_` and `.`, and begins and ends with a letter or digit.
fn is_name(name: &str, most: usize) -> bool {
    let is_end = |character: char| character.is_ascii_alphanumeric();
    name.len() <= most
        && name.starts_with(is_end)
        && name.ends_with(is_end)
        && name.chars().all(|character| is_end(character) || "-_.".contains(character))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selector_is_split_at_its_commas_into_selectors_of_their_own() {
        for (text, expected) in [
            ("k8s-app=istio-cni-node", &["k8s-app=istio-cni-node"][..]),
            ("app=istio, app in (a,b) ,!c", &["app=istio", "app in (a,b)", "!c"]),
            (",a=b,", &["a=b"]),
            ("a", &["a"]),
            ("example.com/a==b", &["example.com/a==b"]),
            ("a!=", &["a!="]),
            ("a notin ( b , c )", &["a notin ( b , c )"]),
        ] {
            assert_eq!(split_selector(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn what_the_api_server_would_refuse_is_refused() {
        let long = format!("a={}", "b".repeat(64));
        for text in [
            "a=b=c",
            "=b",
            "a b",
            "a in b",
            "a in (b",
            "a like (b)",
            "in (b)",
            "a=-b",
            "ä=b",
            "a/b/c=d",
            "Example.com/a=b",
            "example..com/a",
            "!example-.com/a",
            "exa_mple.com/a in (b)",
            "a=b c",
            "!",
            &long,
        ] {
            assert!(check_selector(text).is_err(), "{text}");
        }
        for text in ["", " ", ",,"] {
            assert!(split_selector(text).is_err() && check_selector(text).is_ok(), "{text:?}");
        }
        assert!(split_selector(&"a,".repeat(2000)).is_err());
        assert_eq!(check_selector("a=b,c!=d"), Ok(()));
        assert!(check_selector("a=(").is_err());
    }
}
