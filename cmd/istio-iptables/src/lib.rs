//! `istio-iptables` and `istio-clean-iptables`: sidecar redirection of the current network namespace, with Istio's flags,
//! environment and exit codes.
//!
//! Flow of a call: `flags` reads the values (flag, then environment, then default), [`settings`] validates them, [`program`] and
//! [`clean`] act through `redirect`, [`validation`] proves the redirection with a connection.
//!
//! Each tool is a program of its own, and in the image both are links to `install-cni`, which calls [`tool`] first of all. Init
//! containers run them as any user, without capabilities, on a read-only root: nothing here needs more than that.

mod arguments;
pub mod clean;
pub mod dry_run;
pub mod host;
pub mod program;
pub mod settings;
pub mod tool;
pub mod validation;

/// Exit status if the validation found no redirection; the repair controller checks for it.
pub const EXIT_VALIDATION: u8 = 126;
