//! `istio-clean-iptables`: removes the redirection.

use std::{ffi::OsString, io::Write, process::ExitCode};

use anyhow::Result;
use firewall::FirewallOptions;
use flags::Flag;
use model::Mark;

use crate::{
    arguments,
    settings::{forced_backend, parse_boolean, tproxy_mark},
};

const NO_EFFECT: &str = "accepted for compatibility, without effect";

// All flags of `istio-clean-iptables`. Existing rules are observed, so the flags that described them to Istio's tool have no effect
// here.
flags::flag_table!(
    FLAGS,
    DRY_RUN = Flag::new_switch("only print what would be removed").short('n'),
    ISTIO_INBOUND_TPROXY_MARK = Flag::with_value("1337", "mark of the policy rules to remove")
        .short('t')
        .env(&["ISTIO_INBOUND_TPROXY_MARK", "INBOUND_TPROXY_MARK"]),
    IPTABLES_BACKEND = Flag::with_value("", "nft or legacy; empty: both")
        .env(&["IPTABLES_BACKEND", "FORCE_IPTABLES_BINARY"]),
    PROXY_UID = Flag::with_value("", NO_EFFECT).short('u'),
    PROXY_GID = Flag::with_value("", NO_EFFECT).short('g'),
    REDIRECT_DNS = Flag::new_switch(NO_EFFECT).env(&["ISTIO_META_DNS_CAPTURE", "REDIRECT_DNS"]),
    CAPTURE_ALL_DNS = Flag::new_switch(NO_EFFECT),
    ISTIO_INBOUND_INTERCEPTION_MODE = Flag::with_value("", NO_EFFECT)
        .short('m')
        .env(&["ISTIO_INBOUND_INTERCEPTION_MODE", "INBOUND_INTERCEPTION_MODE"]),
);

const USAGE: &str = "istio-clean-iptables removes from this network namespace everything that istio-iptables created, whatever
its flags were: rules of both backends, policy rules with the mark of TPROXY and their routes, the address ::6 on lo.

Usage: istio-clean-iptables [flags]

Exit status: 0 no rule of istio-iptables remains, and no policy rule with the mark; 1 usage error, or something could not be removed";

/// Runs the tool with these arguments; messages are written to `out`.
///
/// # Errors
/// Invalid flags, or an object could not be removed: exit status 1.
pub fn run(arguments: impl IntoIterator<Item = OsString>, out: &mut impl Write) -> Result<ExitCode> {
    let Some(values) = arguments::read_flags(USAGE, FLAGS, arguments, out)? else {
        return Ok(ExitCode::SUCCESS);
    };
    let options = FirewallOptions { forced: forced_backend(&values)?, ..FirewallOptions::default() };
    remove_redirection(tproxy_mark(&values)?, &options, parse_boolean(&values, &DRY_RUN)?, out)?;
    Ok(ExitCode::SUCCESS)
}

/// Removes everything, or only prints what it would remove.
pub(crate) fn remove_redirection(
    mark: Mark,
    options: &FirewallOptions,
    dry_run: bool,
    out: &mut impl Write,
) -> Result<()> {
    let found = redirect::remove_all(mark, options, dry_run)?;
    let verb = if dry_run { "would remove" } else { "removed" };
    if found.is_empty() {
        writeln!(out, "nothing to remove")?;
    }
    for thing in found {
        writeln!(out, "{verb}: {thing}")?;
    }
    Ok(())
}
