//! Parsed invocation of a command.

use console::Printer;
use daemon_settings::DaemonSettings;
use flags::FlagValues;

/// Exit status for "could not be determined", and for usage errors.
pub(super) const CANNOT: u8 = 2;

/// A parsed command line.
pub(super) struct CommandInvocation {
    /// Flags and operands.
    pub(super) values: FlagValues,
    /// The agent's settings, as far as they are known here.
    pub(super) settings: DaemonSettings,
    /// Output format.
    pub(super) output: Printer,
}
