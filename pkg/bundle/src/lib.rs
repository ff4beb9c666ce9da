//! Archives for bug reports: plain files in a compressed tar, and text without credentials.
//!
//! Pure: an archive is created in memory. Used by the command `bundle` of the agent and of `millrace`.

pub mod redact;
mod tar;

pub use tar::Archive;
