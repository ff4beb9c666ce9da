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
    validation::{self, ValidationError},
};

const USAGE: &str =
    "istio-iptables redirects the TCP traffic of this network namespace to the Istio sidecar proxy.
Repeating it changes nothing. istio-clean-iptables removes everything that it created.

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
        // Nothing was tried: with the other status, repair would delete or label the pod.
        Err(error @ ValidationError::Families(_)) => Err(error.into()),
        Err(error) => {
            writeln!(out, "validation failed: {error}\n{}", validation::HINT)?;
            Ok(ExitCode::from(EXIT_VALIDATION))
        }
    }
}

fn read_settings(values: &FlagValues) -> Result<IptablesSettings> {
    let read = |path: &str| fs::read_to_string(path).ok();
    let variable = |name: &str| env::var(name).ok();
    let sources = SettingSources {
        passwd: read("/etc/passwd").unwrap_or_default(),
        group: read("/etc/group").unwrap_or_default(),
        resolv_conf: read("/etc/resolv.conf"),
        envoy_user: variable("ENVOY_USER"),
        owner_groups: variable("ISTIO_OUTBOUND_OWNER_GROUPS"),
        owner_groups_exclude: variable("ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE"),
        loopback: variable(LOOPBACK),
    };
    Ok(IptablesSettings::new(values, &sources)?)
}

fn print_only(settings: &IptablesSettings, out: &mut impl Write) -> Result<()> {
    let families = settings.families.choose_in_netns()?;
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
