//! `istio-clean-iptables`: take everything away again.

use std::{ffi::OsString, io::Write, process::ExitCode};

use anyhow::Result;
use netfilter::{Backend, Options};

use crate::{
    flags::{self, Flag},
    settings::{boolean, parsed, tproxy_mark},
};

/// All flags of `istio-clean-iptables`. What a run made is found by looking, so that those which described it to
/// Istio's tool change nothing here.
pub const FLAGS: &[Flag] = &[
    Flag {
        long: "dry-run",
        short: Some('n'),
        env: &["DRY_RUN"],
        default: "false",
        switch: true,
        help: "only print what would be removed",
    },
    Flag {
        long: "istio-inbound-tproxy-mark",
        short: Some('t'),
        env: &["ISTIO_INBOUND_TPROXY_MARK", "INBOUND_TPROXY_MARK"],
        default: "1337",
        switch: false,
        help: "mark of the policy rules to remove",
    },
    Flag {
        long: "iptables-backend",
        short: None,
        env: &["IPTABLES_BACKEND", "FORCE_IPTABLES_BINARY"],
        default: "",
        switch: false,
        help: "nft or legacy; empty: both",
    },
    Flag {
        long: "proxy-uid",
        short: Some('u'),
        env: &["PROXY_UID"],
        default: "",
        switch: false,
        help: "accepted for compatibility, without effect",
    },
    Flag {
        long: "proxy-gid",
        short: Some('g'),
        env: &["PROXY_GID"],
        default: "",
        switch: false,
        help: "accepted for compatibility, without effect",
    },
    Flag {
        long: "redirect-dns",
        short: None,
        env: &["REDIRECT_DNS", "ISTIO_META_DNS_CAPTURE"],
        default: "false",
        switch: true,
        help: "accepted for compatibility, without effect",
    },
    Flag {
        long: "istio-inbound-interception-mode",
        short: Some('m'),
        env: &["ISTIO_INBOUND_INTERCEPTION_MODE", "INBOUND_INTERCEPTION_MODE"],
        default: "",
        switch: false,
        help: "accepted for compatibility, without effect",
    },
];

const USAGE: &str = "istio-clean-iptables removes from this network namespace everything that istio-iptables made, with whatever
flags it ran: rules of both backends, policy rules and routes of TPROXY, the address ::6 on lo.

Usage: istio-clean-iptables [flags]

Exit status: 0 nothing of ours is left; 1 wrong flags, or something could not be removed";

/// Runs the tool with these arguments; messages go to `out`.
///
/// # Errors
/// Wrong flags, or something that could not be removed: exit status 1.
pub fn run(arguments: impl IntoIterator<Item = OsString>, out: &mut impl Write) -> Result<ExitCode> {
    let Some(values) = flags::read(USAGE, FLAGS, arguments, out)? else { return Ok(ExitCode::SUCCESS) };
    let forced = match values.text("iptables-backend") {
        "" => None,
        _ => Some(parsed::<Backend>(&values, "iptables-backend")?),
    };
    let options = Options { forced, ..Options::default() };
    let mark = tproxy_mark(&values)?;
    let (verb, found) = if boolean(&values, "dry-run")? {
        ("would remove", redirect::leftovers(mark, &options)?)
    } else {
        ("removed", redirect::remove(mark, &options)?)
    };
    if found.is_empty() {
        writeln!(out, "nothing of ours is here")?;
    }
    for thing in found {
        writeln!(out, "{verb}: {thing}")?;
    }
    Ok(ExitCode::SUCCESS)
}
