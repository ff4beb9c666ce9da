//! Messages on the terminal.

use node_status::error_text;

/// Prints why the program fails.
#[expect(clippy::print_stderr, reason = "there may be no log yet")]
pub(crate) fn print_error(error: &anyhow::Error) {
    eprintln!("install-cni: {}", error_text(error));
}
