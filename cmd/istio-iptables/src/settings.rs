//! Flags of `istio-iptables`, and their validated values.

mod options;
mod sidecar_config;
mod value;

use std::time::Duration;

use firewall::{Backend, FirewallOptions, NativeTables};
use flags::FlagValues;
use model::Port;
use redirect::FamilyChoice;
use rules::sidecar::SidecarConfig;

use sidecar_config::read_config;
use value::{invalid_value, parse_value};

pub use options::FLAGS;
pub(crate) use sidecar_config::tproxy_mark;
pub use value::InvalidValue;
pub(crate) use value::parse_boolean;

/// Variable without a flag that defines the pod's own loopback network.
pub(crate) const LOOPBACK: &str = "ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR";

/// Sources other than flags: environment variables, and host files that some flags refer to.
#[derive(Clone, Debug)]
pub struct SettingSources {
    /// `/etc/passwd`
    pub passwd: String,
    /// `/etc/group`
    pub group: String,
    /// `/etc/resolv.conf`; `None` if unreadable.
    pub resolv_conf: Option<String>,
    /// `$ENVOY_USER`
    pub envoy_user: Option<String>,
    /// `$ISTIO_OUTBOUND_OWNER_GROUPS`
    pub owner_groups: Option<String>,
    /// `$ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE`
    pub owner_groups_exclude: Option<String>,
    /// `$ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR`
    pub loopback: Option<String>,
}

/// Settings of one run.
#[derive(Clone, Debug)]
pub struct IptablesSettings {
    /// Parameters of the rule set.
    pub config: SidecarConfig,
    /// Selected IP families.
    pub families: FamilyChoice,
    /// Options of the firewall tools.
    pub options: FirewallOptions,
    /// Whether to work as for a pod.
    pub cni_mode: bool,
    /// Whether to print only.
    pub dry_run: bool,
    /// Whether to print one restore instead of single commands.
    pub restore_format: bool,
    /// Whether to change nothing.
    pub skip_apply: bool,
    /// Whether to remove everything, and make nothing.
    pub cleanup_only: bool,
    /// Warnings about flags without effect.
    pub warnings: Vec<String>,
    /// Validation, if requested: the probe port and the time limit.
    pub validation: Option<(Port, Duration)>,
}

impl IptablesSettings {
    /// Validates all values.
    ///
    /// # Errors
    /// The first invalid value, with its flag.
    pub fn new(values: &FlagValues, sources: &SettingSources) -> Result<IptablesSettings, InvalidValue> {
        let native = NativeTables::by_setting(parse_boolean(values, &options::NATIVE_NFTABLES)?);
        let mut warnings = flag_warnings(values)?;
        Ok(IptablesSettings {
            config: read_config(values, sources, &mut warnings)?,
            families: FamilyChoice::by_setting(parse_boolean(values, &options::DUAL_STACK)?),
            options: FirewallOptions {
                native,
                forced: forced_backend(values)?,
                ..FirewallOptions::default()
            },
            cni_mode: parse_boolean(values, &options::CNI_MODE)?,
            dry_run: parse_boolean(values, &options::DRY_RUN)?,
            restore_format: parse_boolean(values, &options::RESTORE_FORMAT)?,
            skip_apply: parse_boolean(values, &options::SKIP_RULE_APPLY)?,
            cleanup_only: parse_boolean(values, &options::CLEANUP_ONLY)?,
            warnings,
            validation: validation_settings(values)?,
        })
    }
}

fn flag_warnings(values: &FlagValues) -> Result<Vec<String>, InvalidValue> {
    parse_boolean(values, &options::RECONCILE)?;
    let mut warnings = Vec::new();
    if parse_boolean(values, &options::FORCE_APPLY)? {
        let what = "--force-apply has no effect: each rule is compared with the kernel's, and what differs is repaired";
        warnings.push(what.to_owned());
    }
    Ok(warnings)
}

pub(crate) fn forced_backend(values: &FlagValues) -> Result<Option<Backend>, InvalidValue> {
    for flag in [&options::IPTABLES_BACKEND, &options::FORCE_IPTABLES_BINARY] {
        if !values.flag_text(flag).is_empty() {
            return parse_value(values, flag).map(Some);
        }
    }
    Ok(match values.flag_text(&options::IPTABLES_VERSION) {
        "" => None,
        version if version.contains("nf_tables") => Some(Backend::Nft),
        _ => Some(Backend::Legacy),
    })
}

fn validation_settings(values: &FlagValues) -> Result<Option<(Port, Duration)>, InvalidValue> {
    if !parse_boolean(values, &options::RUN_VALIDATION)? {
        return Ok(None);
    }
    let text = values.flag_text(&options::PROBE_TIMEOUT);
    let timeout = flags::parse_duration(text)
        .ok_or_else(|| invalid_value(options::PROBE_TIMEOUT.long, text, "allowed: as 500ms, 5s or 1m30s"))?;
    Ok(Some((Port(parse_value(values, &options::IPTABLES_PROBE_PORT)?), timeout)))
}
