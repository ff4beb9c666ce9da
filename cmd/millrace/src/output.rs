//! Output of the commands.

use console::Printer;

use crate::arguments::Options;

/// Exit status if the answer could not be determined, as clap's for usage errors.
pub(crate) const CANNOT: u8 = 2;

/// Returns the printer that the flags select.
pub(crate) fn new_printer(options: &Options) -> Printer {
    Printer::new(options.output, options.no_color)
}

/// Prints a message for people, apart from the answer.
pub(crate) fn print_message(message: &str) {
    message.lines().for_each(|line| console::print_message("millrace", &report::sanitize_text(line)));
}
