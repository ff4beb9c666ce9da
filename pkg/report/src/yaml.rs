//! JSON values as YAML, for people and scripts that prefer it.

use serde_json::Value;

/// A YAML document in block style. Every text that a reader could take for something else is quoted, so that a reader of YAML
/// 1.1 or 1.2 gets the same scalars. Keys must be shorter than 1000 bytes, which is as far as readers look for a colon.
#[must_use]
pub fn to_yaml(value: &Value) -> String {
    let mut text = String::new();
    match value {
        Value::Array(_) | Value::Object(_) if !is_empty(value) => block(value, 0, &mut text),
        _ => {
            text.push_str(&inline(value));
            text.push('\n');
        }
    }
    text
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

/// Scalars, and empty collections.
fn inline(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => scalar(text),
        Value::Array(_) => "[]".to_owned(),
        Value::Object(_) => "{}".to_owned(),
    }
}

/// Members that are not empty, each on lines of its own. The first line is not indented, because it may follow a dash.
fn block(value: &Value, indent: usize, text: &mut String) {
    let mut is_first = true;
    let mut begin = |text: &mut String, head: &str| {
        if !is_first {
            text.extend(std::iter::repeat_n(' ', indent));
        }
        is_first = false;
        text.push_str(head);
    };
    match value {
        Value::Array(list) => {
            for member in list {
                begin(text, "-");
                after_dash(member, indent, text);
            }
        }
        Value::Object(map) => {
            for (key, member) in map {
                begin(text, &format!("{}:", scalar(key)));
                after_key(member, indent, text);
            }
        }
        _ => text.push_str(&inline(value)),
    }
}

fn after_dash(member: &Value, indent: usize, text: &mut String) {
    text.push(' ');
    if is_block(member) {
        block(member, indent + 2, text);
    } else {
        text.push_str(&inline(member));
        text.push('\n');
    }
}

fn after_key(member: &Value, indent: usize, text: &mut String) {
    if is_block(member) {
        text.push('\n');
        text.extend(std::iter::repeat_n(' ', indent + 2));
        block(member, indent + 2, text);
    } else {
        text.push(' ');
        text.push_str(&inline(member));
        text.push('\n');
    }
}

fn is_block(value: &Value) -> bool {
    matches!(value, Value::Array(_) | Value::Object(_)) && !is_empty(value)
}

/// Words that some reader takes for something else than text.
const TAKEN: [&str; 12] =
    ["null", "true", "false", "yes", "no", "on", "off", "y", "n", "nan", "inf", "undefined"];

fn scalar(text: &str) -> String {
    if is_plain(text) { text.to_owned() } else { quoted(text) }
}

/// Letters first, and nothing that means anything: so it is no number, no date and no structure.
fn is_plain(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || " _-./".contains(c);
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_' || c == '/')
        && text.chars().all(inner)
        && !text.ends_with(' ')
        && !TAKEN.iter().any(|taken| text.eq_ignore_ascii_case(taken))
}

/// In double quotes, on one line.
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            '\r' => quoted.push_str("\\r"),
            c if is_printable(c) => quoted.push(c),
            c if u32::from(c) > 0xffff => quoted.push_str(&format!("\\U{:08x}", u32::from(c))),
            c => quoted.push_str(&format!("\\u{:04x}", u32::from(c))),
        }
    }
    quoted.push('"');
    quoted
}

/// What may stand in a document as it is.
fn is_printable(c: char) -> bool {
    !c.is_control()
        && !matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}')
        && u32::from(c) & 0xfffe != 0xfffe
}

#[cfg(test)]
mod tests;
