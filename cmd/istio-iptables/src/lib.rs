//! `istio-iptables` and `istio-clean-iptables`: sidecar redirection of the network namespace they run in, with
//! Istio's flags, environment and exit codes.
//!
//! The way of a call: `flags` reads what was given (flag, then environment, then default), [`settings`] checks
//! it and turns it into types, [`program`] and [`clean`] act through `redirect`, [`validation`] proves it with a
//! connection.
//!
//! Each tool is a program by itself, and in the image both are links to `install-cni`, which calls [`tool`] first of all.
//! Init containers run them as any user, without capabilities, on a read-only root: nothing here needs more than that.

mod arguments;
pub mod clean;
pub mod dry_run;
pub mod host;
pub mod program;
pub mod settings;
pub mod tool;
pub mod validation;

/// Exit status when the validation found no redirection; the repair controller looks for it.
pub const EXIT_VALIDATION: u8 = 126;
