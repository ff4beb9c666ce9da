//! A flag: its names, its default and its help.

use std::fmt::{self, Write as _};

/// One flag.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// Its long name, which is its key too.
    pub long: &'static str,
    /// Its short name.
    pub short: Option<char>,
    /// Environment variables that set it, the first that is there wins.
    pub env: &'static [&'static str],
    /// Its value when nobody says anything.
    pub default: &'static str,
    /// True for a switch.
    pub switch: bool,
    /// One line for `--help`.
    pub help: &'static str,
}

impl Flag {
    /// What a flag with a value has unless its literal says otherwise: no default.
    pub const VALUE: Flag = Flag { long: "", short: None, env: &[], default: "", switch: false, help: "" };
    /// What a flag without a value, or with an optional one, has unless its literal says otherwise: it is off.
    pub const SWITCH: Flag = Flag { default: "false", switch: true, ..Flag::VALUE };
}

/// Its long name, without dashes.
impl fmt::Display for Flag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.long)
    }
}

/// The text of `--help`.
#[must_use]
pub fn help(usage: &str, table: &[Flag]) -> String {
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
