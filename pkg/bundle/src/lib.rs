//! Archives for bug reports: plain files in a tar, and text without credentials.
//!
//! Pure: it writes into what the caller gives it. Used by the command `bundle` of the agent and of `millrace`.

pub mod redact;
mod tar;

pub use tar::TarWriter;
