//! `istio-iptables` as a user runs it: flags, environment, exit codes, and the resulting kernel state. Other tests prove the effect
//! of a configuration; these, that each flag results in its configuration.

mod dry_run;
mod flags;
mod names;
mod refusals;
pub(crate) mod tool;
mod validation;
