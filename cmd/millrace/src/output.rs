//! How the commands print.

use console::Printer;

use crate::arguments::Options;

/// Exit status when the answer could not be determined, as clap's for usage errors.
pub(crate) const CANNOT: u8 = 2;

/// Returns how to print, as the flags have it.
pub(crate) fn new_printer(options: &Options) -> Printer {
    Printer::new(options.output, options.no_color)
}

/// A message for people, beside the answer.
pub(crate) fn print_message(message: &str) {
    message.lines().for_each(|line| console::print_message("millrace", &report::sanitize_text(line)));
}
