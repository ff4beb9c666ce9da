//! A flag: its names, its default and its help.

use std::fmt::{self, Write as _};

/// One flag.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// Long name, which is the flag's key too.
    pub long: &'static str,
    /// Short name.
    pub short: Option<char>,
    /// Environment variables that set it; the first one that is set takes effect.
    pub env: &'static [&'static str],
    /// Default value.
    pub default: &'static str,
    /// Whether it is a switch.
    pub switch: bool,
    /// Line for `--help`.
    pub help: &'static str,
}

impl Flag {
    /// Returns a flag with a value.
    pub const fn with_value(default: &'static str, help: &'static str) -> Flag {
        Flag { long: "", short: None, env: &[], default, switch: false, help }
    }

    /// Returns a flag without a value, or with an optional one, which is off by default.
    pub const fn new_switch(help: &'static str) -> Flag {
        Flag { switch: true, ..Flag::with_value("false", help) }
    }

    /// Returns a switch that is on by default.
    pub const fn new_switch_on(help: &'static str) -> Flag {
        Flag { switch: true, ..Flag::with_value("true", help) }
    }

    /// Sets the long name; in a [`flag_table`](crate::flag_table) derived from the const's.
    #[must_use]
    pub const fn long(self, long: &'static str) -> Flag {
        Flag { long, ..self }
    }

    /// Adds a short name.
    #[must_use]
    pub const fn short(self, short: char) -> Flag {
        Flag { short: Some(short), ..self }
    }

    /// Sets the variables; in a [`flag_table`](crate::flag_table) the default is one with the const's name.
    #[must_use]
    pub const fn env(self, env: &'static [&'static str]) -> Flag {
        Flag { env, ..self }
    }

    /// Sets names derived from the const's; for [`flag_table`](crate::flag_table) alone.
    #[doc(hidden)]
    #[must_use]
    pub const fn named_by_const(self, long: &'static [u8], variable: &'static [&'static str]) -> Flag {
        let long = match std::str::from_utf8(long) {
            Ok(long) => long,
            Err(_) => "",
        };
        Flag { long, env: if self.env.is_empty() { variable } else { self.env }, ..self }
    }
}

/// Returns the long name of a flag whose const is named `constant`: `cni-net-dir` for `CNI_NET_DIR`.
#[doc(hidden)]
#[expect(clippy::indexing_slicing, reason = "an iterator cannot be used in a const")]
pub const fn long_name<const N: usize>(constant: &str) -> [u8; N] {
    let mut long = [0; N];
    let mut at = 0;
    while at < N {
        long[at] = match constant.as_bytes()[at] {
            b'_' => b'-',
            letter => letter.to_ascii_lowercase(),
        };
        at += 1;
    }
    long
}

/// Declares flags as consts, and the table of them.
///
/// A const `CNI_NET_DIR` is the flag `--cni-net-dir`, which the variable `CNI_NET_DIR` sets, too, unless [`env`](Flag::env) names
/// others. A name without a value refers to a flag declared elsewhere.
#[macro_export]
macro_rules! flag_table {
    ($table:ident, $($name:ident $(= $flag:expr)?),+ $(,)?) => {
        $($(
            #[allow(missing_docs, reason = "each flag has its help text")]
            pub const $name: $crate::Flag = {
                const LONG: [u8; stringify!($name).len()] = $crate::long_name(stringify!($name));
                $flag.named_by_const(&LONG, &[stringify!($name)])
            };
        )?)+
        #[allow(missing_docs, reason = "its declaration is its list")]
        pub const $table: &[$crate::Flag] = &[$($name),+];
    };
}

/// Formats the long name, without dashes.
impl fmt::Display for Flag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.long)
    }
}

/// Returns the text of `--help`.
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
