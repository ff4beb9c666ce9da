//! `istio-iptables`: applies the redirection, then proves it.

use std::{env, ffi::OsString, fs, io::Write, process::ExitCode};

use anyhow::{Context as _, Result, ensure};
use flags::FlagValues;
use model::Family;
use netns::Netns;
use redirect::RedirectReport;
use rules::{ChainSet, sidecar};

use crate::{
    EXIT_VALIDATION, arguments, clean, dry_run,
    settings::{FLAGS, IptablesSettings, LOOPBACK, SettingSources, tproxy_mark},
    validation,
};

const USAGE: &str =
    "istio-iptables redirects the TCP traffic of this network namespace to the Istio sidecar proxy.
Repeating it changes nothing. istio-clean-iptables removes everything that it made.

Usage: istio-iptables [flags]

Environment: also ENVOY_USER, ISTIO_OUTBOUND_OWNER_GROUPS, ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE,
  ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR, DRY_RUN_FILE_PATH
Exit status: 0 done; 1 usage error, or not done; 126 the validation found no redirection";

/// Runs the tool with these arguments; messages are written to `out`.
///
/// # Errors
/// Invalid flags, or a step failed: exit status 1.
pub fn run(arguments: impl IntoIterator<Item = OsString>, out: &mut impl Write) -> Result<ExitCode> {
    let Some(values) = arguments::read_flags(USAGE, FLAGS, arguments, out)? else {
        return Ok(ExitCode::SUCCESS);
    };
    let settings = read_settings(&values)?;
    for warning in &settings.warnings {
        writeln!(out, "warning: {warning}")?;
    }
    if settings.cleanup_only {
        clean::remove_redirection(tproxy_mark(&values)?, &settings.options, settings.dry_run, out)?;
        return Ok(ExitCode::SUCCESS);
    }
    if settings.dry_run {
        print_only(&settings, out)?;
    } else if !settings.skip_apply {
        print_report(&apply_settings(&settings, out)?, out)?;
    }
    let Some((port, timeout)) = settings.validation else { return Ok(ExitCode::SUCCESS) };
    match validation::prove_redirection(&settings.config, port, timeout) {
        Ok(()) => {
            writeln!(out, "validation passed: a connection to port {port} arrived at the proxy's port")?;
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => {
            writeln!(out, "validation failed: {error}\n{}", validation::HINT)?;
            Ok(ExitCode::from(EXIT_VALIDATION))
        }
    }
}

fn env_variable(name: &str) -> Option<String> {
    env::var(name).ok()
}

fn read_settings(values: &FlagValues) -> Result<IptablesSettings> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let (passwd, group) = (read("/etc/passwd"), read("/etc/group"));
    let resolv_conf = fs::read_to_string("/etc/resolv.conf").ok();
    let envoy_user = env_variable("ENVOY_USER");
    let owner_groups = env_variable("ISTIO_OUTBOUND_OWNER_GROUPS");
    let owner_groups_exclude = env_variable("ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE");
    let loopback = env_variable(LOOPBACK);
    let sources = SettingSources {
        passwd: &passwd,
        group: &group,
        resolv_conf: resolv_conf.as_deref(),
        envoy_user: envoy_user.as_deref(),
        owner_groups: owner_groups.as_deref(),
        owner_groups_exclude: owner_groups_exclude.as_deref(),
        loopback: loopback.as_deref(),
    };
    Ok(IptablesSettings::new(values, &sources)?)
}

fn print_only(settings: &IptablesSettings, out: &mut impl Write) -> Result<()> {
    let families = redirect::redirected_families(settings.families)?;
    write!(out, "{}", dry_run::shell_commands(settings, &families))?;
    if let Some(path) = env::var_os("DRY_RUN_FILE_PATH").filter(|path| !path.is_empty()) {
        let text: String =
            families.iter().map(|family| sidecar::restore_text(&settings.config, *family)).collect();
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn apply_settings(settings: &IptablesSettings, out: &mut impl Write) -> Result<RedirectReport> {
    let act = |options: &firewall::FirewallOptions| {
        let report = redirect::apply(&settings.config, settings.families, options)?;
        // If there are too many chains to be listed, the rules are in place nevertheless.
        let inactive = firewall::inactive_rules(ChainSet::SIDECAR).unwrap_or_default();
        ensure!(inactive.is_empty(), "the rules are there, but {}", inactive.join("; "));
        Ok(report)
    };
    if !settings.cni_mode {
        return act(&settings.options);
    }
    let (report, warning) = firewall::run_inside(&Netns::current()?, &settings.options, act)?;
    if let Some(warning) = warning {
        writeln!(out, "warning: {warning}")?;
    }
    Ok(report)
}

fn print_report(report: &RedirectReport, out: &mut impl Write) -> Result<()> {
    let families: Vec<String> = report.families.iter().map(Family::to_string).collect();
    let families = families.join(" and ");
    if report.is_unchanged() {
        writeln!(out, "{families}: everything is in place ({} backend)", report.backend)?;
    } else {
        writeln!(out, "{families}: redirected ({} backend)", report.backend)?;
        for difference in &report.differences {
            writeln!(out, "  repaired: {difference}")?;
        }
    }
    Ok(())
}
