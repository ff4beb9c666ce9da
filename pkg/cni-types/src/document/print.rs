//! JSON printer: Go 1.21's encoding/json with two blanks of indentation.

use super::Json;

/// Formats a document, with a line feed at its end.
pub(super) fn document(json: &Json) -> String {
    let mut out = String::new();
    write_value(&mut out, json, 0);
    out.push('\n');
    out
}

fn write_value(out: &mut String, json: &Json, level: usize) {
    match json {
        Json::Null => out.push_str("null"),
        Json::Bool(true) => out.push_str("true"),
        Json::Bool(false) => out.push_str("false"),
        Json::Number(text) => out.push_str(text),
        Json::String(text) => write_string(out, text),
        Json::List(list) => {
            write_bracketed(out, "[]", level, list, |out, item| write_value(out, item, level + 1));
        }
        Json::Object(members) => write_bracketed(out, "{}", level, members, |out, (key, member)| {
            write_string(out, key);
            out.push_str(": ");
            write_value(out, member, level + 1);
        }),
    }
}

/// Writes items between two brackets, each on a line of its own; nothing between the brackets if there are none.
fn write_bracketed<T>(
    out: &mut String,
    brackets: &str,
    level: usize,
    items: impl IntoIterator<Item = T>,
    print: impl Fn(&mut String, T),
) {
    let (open, close) = brackets.split_at(1);
    out.push_str(open);
    let mut separator = None;
    for item in items {
        out.push_str(separator.unwrap_or_default());
        start_line(out, level + 1);
        print(out, item);
        separator = Some(",");
    }
    if separator.is_some() {
        start_line(out, level);
    }
    out.push_str(close);
}

fn start_line(out: &mut String, level: usize) {
    out.push('\n');
    out.extend(std::iter::repeat_n("  ", level));
}

/// Writes a string with Go's escapes. Backspace and form feed have no short form before Go 1.22; `<`, `>` and `&` are escaped for
/// HTML, U+2028 and U+2029 for JavaScript.
fn write_string(out: &mut String, text: &str) {
    out.push('"');
    let mut rest = text;
    while let Some((at, special)) = rest.char_indices().find(|(_, char)| is_escaped(*char)) {
        out.push_str(rest.get(..at).unwrap_or_default());
        match special {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            other => out.push_str(&format!("\\u{:04x}", u32::from(other))),
        }
        rest = rest.get(at + special.len_utf8()..).unwrap_or_default();
    }
    out.push_str(rest);
    out.push('"');
}

fn is_escaped(char: char) -> bool {
    matches!(char, '\0'..='\u{1f}' | '"' | '\\' | '<' | '>' | '&' | '\u{2028}' | '\u{2029}')
}
