//! `istio-iptables` as a user runs it: flags, environment, exit codes, and what then stands in the kernel. What a
//! configuration means is proved elsewhere; here, that each flag leads to the configuration that it names.

mod dry_run;
mod flags;
mod names;
mod refusals;
pub(crate) mod tool;
mod validation;
