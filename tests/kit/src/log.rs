//! Lines of the agent's log, parsed into columns.

/// One line of the log in text format. Other lines, such as a panic message, do not parse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// Level, such as `warn`.
    pub level: String,
    /// Scope, such as `cni`; empty for the default one.
    pub scope: String,
    /// The message, without its fields.
    pub message: String,
    /// Names and values in the order of the line.
    pub fields: Vec<(String, String)>,
}

impl LogLine {
    /// Reads `time level scope message key=value key="a value"`, with tabs between the columns.
    fn parse(line: &str) -> Option<Self> {
        let mut columns: Vec<&str> = line.split('\t').collect();
        let fields = columns.last().and_then(|last| parse_fields(last));
        if fields.is_some() {
            columns.pop();
        }
        let (level, scope, message) = match columns[..] {
            [_, level, scope, message] => (level, scope, message),
            [_, level, message] => (level, "", message),
            _ => return None,
        };
        let [level, scope, message] = [level, scope, message].map(str::to_owned);
        Some(Self { level, scope, message, fields: fields.unwrap_or_default() })
    }

    /// The value of a field.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    /// Whether the line has this message and these fields, each compared as a whole.
    #[must_use]
    pub fn is(&self, message: &str, fields: &[(&str, &str)]) -> bool {
        self.message == message && fields.iter().all(|(name, value)| self.field(name) == Some(value))
    }
}

/// All fields of a column `key=value key="a value"`, or `None` if it is another column.
fn parse_fields(column: &str) -> Option<Vec<(String, String)>> {
    let (mut fields, mut rest) = (Vec::new(), column);
    while !rest.is_empty() {
        let (name, value) = rest.split_once('=')?;
        if name.is_empty() || name.contains(char::is_whitespace) {
            return None;
        }
        let mut values = serde_json::Deserializer::from_str(value).into_iter::<String>();
        let (value, end) = match values.next() {
            Some(Ok(text)) if value.starts_with('"') => (text, values.byte_offset()),
            _ => {
                let end = value.find(' ').unwrap_or(value.len());
                (value[..end].to_owned(), end)
            }
        };
        fields.push((name.to_owned(), value));
        let behind = &rest[name.len() + 1 + end..];
        rest = behind.strip_prefix(' ').unwrap_or(behind);
    }
    (!fields.is_empty()).then_some(fields)
}

/// The lines of a log that parse.
#[must_use]
pub fn log_lines(log: &str) -> Vec<LogLine> {
    log.lines().filter_map(LogLine::parse).collect()
}

/// Whether a log has a line with this message and these fields, each compared as a whole.
#[must_use]
pub fn has_logged(log: &str, message: &str, fields: &[(&str, &str)]) -> bool {
    log_lines(log).iter().any(|line| line.is(message, fields))
}

/// Whether a text contains this whole line.
#[must_use]
pub fn has_line(text: &str, line: &str) -> bool {
    text.lines().any(|one| one == line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_by_its_columns() {
        let log = "T\tinfo\tcni\tpod captured\tnamespace=shop why=\"a \\\"b\\\"\\tc=d\" pod=web\n\
                   T\twarn\ta message\nT\terror\tinstall\twithout fields\ninstall-cni: no line\n";
        let lines = log_lines(log);
        let shown: Vec<_> = lines.iter().map(|line| (&*line.level, &*line.scope, &*line.message)).collect();
        assert_eq!(
            shown,
            [
                ("info", "cni", "pod captured"),
                ("warn", "", "a message"),
                ("error", "install", "without fields")
            ]
        );
        let fields = [("namespace", "shop"), ("why", "a \"b\"\tc=d"), ("pod", "web")];
        assert!(lines[0].is("pod captured", &fields) && lines[0].fields.len() == 3, "{:?}", lines[0]);
        assert!(!has_logged(log, "pod captured", &[("pod", "we")]) && !has_logged(log, "captured", &[]));
        assert!(has_line(log, "install-cni: no line") && !has_line(log, "no line"));
    }
}
