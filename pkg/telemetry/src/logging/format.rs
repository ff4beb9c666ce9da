//! Text form of a line, as Istio prints it: tab-separated columns.

use std::fmt::Write as _;

use agent_protocol::LogRecord;

/// Formats `time level scope message key=value key=value`, with tabs between the columns and blanks between the labels. The default
/// scope is omitted. Characters that would break the line or a column are escaped: the plugin's lines contain foreign text.
pub(super) fn text_line(record: &LogRecord) -> String {
    let mut line = String::with_capacity(64 + record.msg.len());
    for column in [&record.time, record.level.as_str(), &record.scope] {
        if !column.is_empty() {
            push_escaped(&mut line, column, "");
            line.push('\t');
        }
    }
    push_escaped(&mut line, &record.msg, "");
    let mut separator = '\t';
    for (name, value) in &record.labels {
        line.push(separator);
        label_part(&mut line, name);
        line.push('=');
        label_part(&mut line, value);
        separator = ' ';
    }
    line.push('\n');
    line
}

/// Appends a label's name or value, quoted unless it reads as one word.
fn label_part(line: &mut String, text: &str) {
    let plain = |c: char| !c.is_whitespace() && !c.is_control() && c != '"' && c != '=';
    if text.chars().all(plain) {
        line.push_str(text);
    } else {
        line.push('"');
        push_escaped(line, text, "\"\\");
        line.push('"');
    }
}

fn push_escaped(line: &mut String, text: &str, special: &str) {
    for c in text.chars() {
        match c {
            '\n' => line.push_str("\\n"),
            '\r' => line.push_str("\\r"),
            '\t' => line.push_str("\\t"),
            c if c.is_control() => {
                // Writing to a String cannot fail.
                let _ = write!(line, "\\u{:04x}", u32::from(c));
            }
            c => {
                if special.contains(c) {
                    line.push('\\');
                }
                line.push(c);
            }
        }
    }
}
