//! `istio-iptables` as a user runs it: flags, environment, exit codes, and what then stands in the kernel. What a
//! configuration means is proved elsewhere; here, that each flag leads to the configuration that it names.

#[path = "iptables_cli/dry_run.rs"]
mod dry_run;
#[path = "iptables_cli/flags.rs"]
mod flags;
#[path = "iptables_cli/refusals.rs"]
mod refusals;
#[path = "iptables_cli/tool.rs"]
pub(crate) mod tool;
#[path = "iptables_cli/validation.rs"]
mod validation;
