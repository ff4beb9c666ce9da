//! A flag: its names, its default and its help.

use std::fmt::{self, Write as _};

/// One flag.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// The long name, which is the flag's key too.
    pub long: &'static str,
    /// The short name.
    pub short: Option<char>,
    /// Environment variables that set it, the first that is there wins.
    pub env: &'static [&'static str],
    /// The value if nothing sets the flag.
    pub default: &'static str,
    /// True for a switch.
    pub switch: bool,
    /// One line for `--help`.
    pub help: &'static str,
}

impl Flag {
    /// Base for a flag with a value: it has no default unless its literal sets one.
    pub const VALUE: Flag = Flag { long: "", short: None, env: &[], default: "", switch: false, help: "" };
    /// Base for a flag without a value, or with an optional one: it is off unless its literal says otherwise.
    pub const SWITCH: Flag = Flag { default: "false", switch: true, ..Flag::VALUE };
}

/// Prints the long name, without dashes.
impl fmt::Display for Flag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.long)
    }
}

/// The text of `--help`.
#[must_use]
pub fn help_text(usage: &str, table: &[Flag]) -> String {
    let mut text = format!("{usage}\n\nFlags:\n");
    for flag in table {
        let short = flag.short.map_or_else(|| "    ".to_owned(), |short| format!("-{short}, "));
        let value = if flag.switch { "" } else { " string" };
        let default =
            if flag.default.is_empty() { String::new() } else { format!(" (default {})", flag.default) };
        let env = if flag.env.is_empty() { String::new() } else { format!(" [{}]", flag.env.join(", ")) };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {short}--{}{value}\n        {}{default}{env}", flag.long, flag.help);
    }
    text.push_str("  -h, --help\n        this text\n");
    text
}
