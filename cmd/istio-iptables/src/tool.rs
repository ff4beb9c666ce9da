//! Selection of the two programs by the names under which they are started.

use std::{
    ffi::{OsStr, OsString},
    io::{self, Write as _},
    path::Path,
    process::ExitCode,
};

use crate::{clean, program};

model::word_enum! {
    /// One of the two programs.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum IptablesTool {
        /// `istio-iptables`.
        Redirect = "istio-iptables",
        /// `istio-clean-iptables`.
        Clean = "istio-clean-iptables",
    }
}

impl IptablesTool {
    /// Returns the program that was started under this name, with or without a directory; `None`: another one.
    pub fn from_program(program: &OsStr) -> Option<Self> {
        Self::from_name(Path::new(program).file_name()?.to_str()?)
    }

    /// Runs the tool as the whole process: messages go to standard output, errors to standard error.
    pub fn main(self, arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
        let ended = match self {
            Self::Redirect => program::run(arguments, &mut io::stdout()),
            Self::Clean => clean::run(arguments, &mut io::stdout()),
        };
        ended.unwrap_or_else(|error| {
            let _ = writeln!(io::stderr(), "{self}: {}", model::describe_error(&*error));
            ExitCode::FAILURE
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_is_known_by_its_name_wherever_it_lies() {
        for (program, expected) in [
            ("istio-iptables", Some(IptablesTool::Redirect)),
            ("/usr/local/bin/istio-iptables", Some(IptablesTool::Redirect)),
            ("./istio-clean-iptables", Some(IptablesTool::Clean)),
            ("install-cni", None),
            ("istio-cni-taint", None),
            ("/istio-iptables/install-cni", None),
            ("", None),
        ] {
            assert_eq!(IptablesTool::from_program(program.as_ref()), expected, "{program}");
        }
    }
}
