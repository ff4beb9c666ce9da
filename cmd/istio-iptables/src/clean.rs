//! `istio-clean-iptables`: take everything away again.

use std::{ffi::OsString, io::Write, process::ExitCode};

use anyhow::Result;
use flags::{Flag, flag, switch};
use model::Mark;
use netfilter::Options;

use crate::{
    arguments,
    settings::{backend, boolean, tproxy_mark},
};

/// All flags of `istio-clean-iptables`. What a run made is found by looking, so that those which described it to
/// Istio's tool change nothing here.
pub const FLAGS: &[Flag] = &[
    switch("dry-run", Some('n'), &["DRY_RUN"], "false", "only print what would be removed"),
    flag(
        "istio-inbound-tproxy-mark",
        Some('t'),
        &["ISTIO_INBOUND_TPROXY_MARK", "INBOUND_TPROXY_MARK"],
        "1337",
        "mark of the policy rules to remove",
    ),
    flag(
        "iptables-backend",
        None,
        &["IPTABLES_BACKEND", "FORCE_IPTABLES_BINARY"],
        "",
        "nft or legacy; empty: both",
    ),
    flag("proxy-uid", Some('u'), &["PROXY_UID"], "", NO_EFFECT),
    flag("proxy-gid", Some('g'), &["PROXY_GID"], "", NO_EFFECT),
    switch("redirect-dns", None, &["REDIRECT_DNS", "ISTIO_META_DNS_CAPTURE"], "false", NO_EFFECT),
    flag(
        "istio-inbound-interception-mode",
        Some('m'),
        &["ISTIO_INBOUND_INTERCEPTION_MODE", "INBOUND_INTERCEPTION_MODE"],
        "",
        NO_EFFECT,
    ),
];

const NO_EFFECT: &str = "accepted for compatibility, without effect";

const USAGE: &str = "istio-clean-iptables removes from this network namespace everything that istio-iptables made, with whatever
flags it ran: rules of both backends, policy rules and routes of TPROXY, the address ::6 on lo.

Usage: istio-clean-iptables [flags]

Exit status: 0 nothing of ours is left; 1 wrong flags, or something could not be removed";

/// Runs the tool with these arguments; messages go to `out`.
///
/// # Errors
/// Wrong flags, or something that could not be removed: exit status 1.
pub fn run(arguments: impl IntoIterator<Item = OsString>, out: &mut impl Write) -> Result<ExitCode> {
    let Some(values) = arguments::read(USAGE, FLAGS, arguments, out)? else { return Ok(ExitCode::SUCCESS) };
    let options = Options { forced: backend(&values)?, ..Options::default() };
    clean(tproxy_mark(&values)?, &options, boolean(&values, "dry-run")?, out)?;
    Ok(ExitCode::SUCCESS)
}

/// Removes everything, or only prints what it would remove.
pub(crate) fn clean(mark: Mark, options: &Options, dry_run: bool, out: &mut impl Write) -> Result<()> {
    let (verb, found) = if dry_run {
        ("would remove", redirect::leftovers(mark, options)?)
    } else {
        ("removed", redirect::remove(mark, options)?)
    };
    if found.is_empty() {
        writeln!(out, "nothing of ours is here")?;
    }
    for thing in found {
        writeln!(out, "{verb}: {thing}")?;
    }
    Ok(())
}
