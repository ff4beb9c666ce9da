//! The flags of `istio-iptables`, and their values checked and typed.

use std::{net::IpAddr, str::FromStr, time::Duration};

use flags::{Flag, FlagValues};
use model::{IfName, Mark, Port, TableId, parse_go_bool};
use netfilter::{Backend, FirewallOptions, NativeTables, NftAccess};
use redirect::FamilyChoice;
use rules::sidecar::{DnsCapture, InboundMode, NetworkSelection, OwnerGroups, PortSelection, SidecarConfig};

use crate::host;

pub(crate) const ENVOY_PORT: Flag = Flag {
    long: "envoy-port",
    short: Some('p'),
    default: "15001",
    help: "port of the proxy's outbound listener",
    ..Flag::VALUE
};
pub(crate) const INBOUND_CAPTURE_PORT: Flag = Flag {
    long: "inbound-capture-port",
    short: Some('z'),
    env: &["INBOUND_CAPTURE_PORT"],
    default: "15006",
    help: "port of the proxy's inbound listener",
    ..Flag::VALUE
};
pub(crate) const INBOUND_TUNNEL_PORT: Flag = Flag {
    long: "inbound-tunnel-port",
    short: Some('e'),
    env: &["INBOUND_TUNNEL_PORT"],
    default: "15008",
    help: "HBONE port, never redirected",
    ..Flag::VALUE
};
pub(crate) const PROXY_UID: Flag = Flag {
    long: "proxy-uid",
    short: Some('u'),
    env: &["PROXY_UID"],
    help: "comma-separated users whose traffic is the proxy's own; empty: user $ENVOY_USER, else 1337",
    ..Flag::VALUE
};
pub(crate) const PROXY_GID: Flag = Flag {
    long: "proxy-gid",
    short: Some('g'),
    env: &["PROXY_GID"],
    help: "comma-separated groups whose traffic is the proxy's own; empty: as --proxy-uid",
    ..Flag::VALUE
};
pub(crate) const ISTIO_INBOUND_INTERCEPTION_MODE: Flag = Flag {
    long: "istio-inbound-interception-mode",
    short: Some('m'),
    env: &["ISTIO_INBOUND_INTERCEPTION_MODE"],
    help: "REDIRECT or TPROXY",
    ..Flag::VALUE
};
pub(crate) const ISTIO_INBOUND_PORTS: Flag = Flag {
    long: "istio-inbound-ports",
    short: Some('b'),
    env: &["ISTIO_INBOUND_PORTS"],
    help: "inbound ports to capture, or *",
    ..Flag::VALUE
};
pub(crate) const ISTIO_LOCAL_EXCLUDE_PORTS: Flag = Flag {
    long: "istio-local-exclude-ports",
    short: Some('d'),
    env: &["ISTIO_LOCAL_EXCLUDE_PORTS"],
    help: "inbound ports to leave alone; only with *",
    ..Flag::VALUE
};
pub(crate) const ISTIO_EXCLUDE_INTERFACES: Flag = Flag {
    long: "istio-exclude-interfaces",
    short: Some('c'),
    env: &["ISTIO_EXCLUDE_INTERFACES"],
    help: "interfaces to leave alone",
    ..Flag::VALUE
};
pub(crate) const ISTIO_SERVICE_CIDR: Flag = Flag {
    long: "istio-service-cidr",
    short: Some('i'),
    env: &["ISTIO_SERVICE_CIDR"],
    help: "outbound networks to capture, or *",
    ..Flag::VALUE
};
pub(crate) const ISTIO_SERVICE_EXCLUDE_CIDR: Flag = Flag {
    long: "istio-service-exclude-cidr",
    short: Some('x'),
    env: &["ISTIO_SERVICE_EXCLUDE_CIDR"],
    help: "outbound networks to leave alone",
    ..Flag::VALUE
};
pub(crate) const ISTIO_OUTBOUND_PORTS: Flag = Flag {
    long: "istio-outbound-ports",
    short: Some('q'),
    env: &["ISTIO_OUTBOUND_PORTS"],
    help: "outbound ports to capture whatever the network",
    ..Flag::VALUE
};
pub(crate) const ISTIO_LOCAL_OUTBOUND_PORTS_EXCLUDE: Flag = Flag {
    long: "istio-local-outbound-ports-exclude",
    short: Some('o'),
    env: &["ISTIO_LOCAL_OUTBOUND_PORTS_EXCLUDE"],
    help: "outbound ports to leave alone",
    ..Flag::VALUE
};
pub(crate) const KUBE_VIRT_INTERFACES: Flag = Flag {
    long: "kube-virt-interfaces",
    short: Some('k'),
    env: &["KUBE_VIRT_INTERFACES"],
    help: "interfaces of virtual machines, whose traffic is outbound",
    ..Flag::VALUE
};
pub(crate) const ISTIO_INBOUND_TPROXY_MARK: Flag = Flag {
    long: "istio-inbound-tproxy-mark",
    short: Some('t'),
    env: &["ISTIO_INBOUND_TPROXY_MARK"],
    default: "1337",
    help: "mark of TPROXY connections",
    ..Flag::VALUE
};
pub(crate) const ISTIO_INBOUND_TPROXY_ROUTE_TABLE: Flag = Flag {
    long: "istio-inbound-tproxy-route-table",
    short: Some('r'),
    env: &["ISTIO_INBOUND_TPROXY_ROUTE_TABLE"],
    default: "133",
    help: "routing table of TPROXY",
    ..Flag::VALUE
};
pub(crate) const DRY_RUN: Flag = Flag {
    long: "dry-run",
    short: Some('n'),
    env: &["DRY_RUN"],
    help: "only print what would be done",
    ..Flag::SWITCH
};
pub(crate) const IPTABLES_TRACE_LOGGING: Flag = Flag {
    long: "iptables-trace-logging",
    env: &["IPTABLES_TRACE_LOGGING"],
    help: "add NFLOG rules (group 1337)",
    ..Flag::SWITCH
};
pub(crate) const RESTORE_FORMAT: Flag = Flag {
    long: "restore-format",
    short: Some('f'),
    env: &["RESTORE_FORMAT"],
    default: "true",
    help: "one iptables-restore instead of one command per rule",
    ..Flag::SWITCH
};
pub(crate) const IPTABLES_PROBE_PORT: Flag = Flag {
    long: "iptables-probe-port",
    env: &["IPTABLES_PROBE_PORT"],
    default: "15002",
    help: "port that the validation calls",
    ..Flag::VALUE
};
pub(crate) const PROBE_TIMEOUT: Flag = Flag {
    long: "probe-timeout",
    env: &["PROBE_TIMEOUT"],
    default: "5s",
    help: "how long the validation tries",
    ..Flag::VALUE
};
pub(crate) const SKIP_RULE_APPLY: Flag =
    Flag { long: "skip-rule-apply", env: &["SKIP_RULE_APPLY"], help: "change nothing", ..Flag::SWITCH };
pub(crate) const RUN_VALIDATION: Flag = Flag {
    long: "run-validation",
    env: &["RUN_VALIDATION"],
    help: "prove the redirection with a connection; exit status 126 when it is not there",
    ..Flag::SWITCH
};
pub(crate) const REDIRECT_DNS: Flag = Flag {
    long: "redirect-dns",
    env: &["REDIRECT_DNS", "ISTIO_META_DNS_CAPTURE"],
    help: "capture DNS",
    ..Flag::SWITCH
};
pub(crate) const DROP_INVALID: Flag = Flag {
    long: "drop-invalid",
    env: &["DROP_INVALID", "INVALID_DROP"],
    help: "discard packets that belong to no connection",
    ..Flag::SWITCH
};
pub(crate) const DUAL_STACK: Flag = Flag {
    long: "dual-stack",
    env: &["DUAL_STACK", "ISTIO_DUAL_STACK"],
    help: "redirect both address families",
    ..Flag::SWITCH
};
pub(crate) const CAPTURE_ALL_DNS: Flag = Flag {
    long: "capture-all-dns",
    env: &["CAPTURE_ALL_DNS"],
    help: "capture DNS to any server, not only those of /etc/resolv.conf",
    ..Flag::SWITCH
};
pub(crate) const NETWORK_NAMESPACE: Flag = Flag {
    long: "network-namespace",
    env: &["NETWORK_NAMESPACE"],
    help: "accepted for compatibility: with --cni-mode the file of this namespace is the lock",
    ..Flag::VALUE
};
pub(crate) const CNI_MODE: Flag = Flag {
    long: "cni-mode",
    env: &["CNI_MODE"],
    help: "work in the pod's namespace without the host's lock and name services",
    ..Flag::SWITCH
};
pub(crate) const IPTABLES_VERSION: Flag = Flag {
    long: "iptables-version",
    env: &["IPTABLES_VERSION"],
    help: "accepted for compatibility: iptables' version text; 'nf_tables' in it selects that backend",
    ..Flag::VALUE
};
pub(crate) const IPTABLES_BACKEND: Flag = Flag {
    long: "iptables-backend",
    env: &["IPTABLES_BACKEND"],
    help: "nft or legacy; empty: as the namespace and the host use",
    ..Flag::VALUE
};
// Of Istio 1.24 and newer.
pub(crate) const FORCE_IPTABLES_BINARY: Flag = Flag {
    long: "force-iptables-binary",
    env: &["FORCE_IPTABLES_BINARY"],
    help: "the same, with the names that Istio has: iptables-nft or iptables-legacy, nft or legacy",
    ..Flag::VALUE
};
pub(crate) const CLEANUP_ONLY: Flag = Flag {
    long: "cleanup-only",
    env: &["CLEANUP_ONLY"],
    help: "remove everything, as istio-clean-iptables does, and make nothing",
    ..Flag::SWITCH
};
pub(crate) const RECONCILE: Flag = Flag {
    long: "reconcile",
    env: &["RECONCILE"],
    help: "accepted for compatibility; rules that differ are always repaired",
    ..Flag::SWITCH
};
pub(crate) const FORCE_APPLY: Flag = Flag {
    long: "force-apply",
    env: &["FORCE_APPLY"],
    help: "accepted for compatibility; each rule is always compared with the kernel's",
    ..Flag::SWITCH
};
pub(crate) const NATIVE_NFTABLES: Flag = Flag {
    long: "native-nftables",
    env: &["NATIVE_NFTABLES"],
    help: "make the rules as tables of family inet, where no other tables have rules of Istio's",
    ..Flag::SWITCH
};

/// All flags of `istio-iptables`.
pub const FLAGS: &[Flag] = &[
    ENVOY_PORT,
    INBOUND_CAPTURE_PORT,
    INBOUND_TUNNEL_PORT,
    PROXY_UID,
    PROXY_GID,
    ISTIO_INBOUND_INTERCEPTION_MODE,
    ISTIO_INBOUND_PORTS,
    ISTIO_LOCAL_EXCLUDE_PORTS,
    ISTIO_EXCLUDE_INTERFACES,
    ISTIO_SERVICE_CIDR,
    ISTIO_SERVICE_EXCLUDE_CIDR,
    ISTIO_OUTBOUND_PORTS,
    ISTIO_LOCAL_OUTBOUND_PORTS_EXCLUDE,
    KUBE_VIRT_INTERFACES,
    ISTIO_INBOUND_TPROXY_MARK,
    ISTIO_INBOUND_TPROXY_ROUTE_TABLE,
    DRY_RUN,
    IPTABLES_TRACE_LOGGING,
    RESTORE_FORMAT,
    IPTABLES_PROBE_PORT,
    PROBE_TIMEOUT,
    SKIP_RULE_APPLY,
    RUN_VALIDATION,
    REDIRECT_DNS,
    DROP_INVALID,
    DUAL_STACK,
    CAPTURE_ALL_DNS,
    NETWORK_NAMESPACE,
    CNI_MODE,
    IPTABLES_VERSION,
    IPTABLES_BACKEND,
    // Of Istio 1.24 and newer.
    FORCE_IPTABLES_BINARY,
    CLEANUP_ONLY,
    RECONCILE,
    FORCE_APPLY,
    NATIVE_NFTABLES,
];

/// Most groups that may be captured (as in Istio).
const MAX_GROUPS: usize = 64;
/// Istio's proxy user.
const PROXY_ID: u32 = 1337;

/// A flag's value cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("--{flag} has the value {value:?}: {why}")]
pub struct InvalidValue {
    /// The flag (or variable).
    pub flag: String,
    /// Its value.
    pub value: String,
    /// What is wrong.
    pub why: String,
}

/// What the flags say, and the host's files that give some of them a meaning.
#[derive(Clone, Copy, Debug)]
pub struct SettingSources<'a> {
    /// `/etc/passwd`
    pub passwd: &'a str,
    /// `/etc/group`
    pub group: &'a str,
    /// `/etc/resolv.conf`; none when unreadable.
    pub resolv_conf: Option<&'a str>,
    /// `$ENVOY_USER`
    pub envoy_user: Option<&'a str>,
    /// `$ISTIO_OUTBOUND_OWNER_GROUPS`
    pub owner_groups: Option<&'a str>,
    /// `$ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE`
    pub owner_groups_exclude: Option<&'a str>,
}

/// What to do.
#[derive(Clone, Debug)]
pub struct IptablesSettings {
    /// The rule set.
    pub config: SidecarConfig,
    /// Which families.
    pub families: FamilyChoice,
    /// How to work with the tools.
    pub options: FirewallOptions,
    /// Work as for a pod.
    pub cni_mode: bool,
    /// Only print.
    pub dry_run: bool,
    /// One restore, or single commands.
    pub restore_format: bool,
    /// Change nothing.
    pub skip_apply: bool,
    /// Remove everything, and make nothing.
    pub cleanup_only: bool,
    /// What flags ask for that is not done.
    pub warnings: Vec<String>,
    /// The validation, when wanted: the port that is called and the time allowed.
    pub validation: Option<(Port, Duration)>,
}

impl IptablesSettings {
    /// Checks and types every value.
    ///
    /// # Errors
    /// The first value that cannot be used, with its flag.
    pub fn new(values: &FlagValues, sources: &SettingSources<'_>) -> Result<IptablesSettings, InvalidValue> {
        let restore_format = boolean(values, &RESTORE_FORMAT)?;
        // One command for each rule is what only the tools have.
        let nft = if restore_format { NftAccess::Engine } else { NftAccess::Tools };
        let native = NativeTables::by_setting(boolean(values, &NATIVE_NFTABLES)?);
        Ok(IptablesSettings {
            config: config(values, sources)?,
            families: if boolean(values, &DUAL_STACK)? { FamilyChoice::Dual } else { FamilyChoice::First },
            options: FirewallOptions { nft, native, forced: backend(values)?, ..FirewallOptions::default() },
            cni_mode: boolean(values, &CNI_MODE)?,
            dry_run: boolean(values, &DRY_RUN)?,
            restore_format,
            skip_apply: boolean(values, &SKIP_RULE_APPLY)?,
            cleanup_only: boolean(values, &CLEANUP_ONLY)?,
            warnings: warnings(values)?,
            validation: validation(values)?,
        })
    }
}

fn warnings(values: &FlagValues) -> Result<Vec<String>, InvalidValue> {
    boolean(values, &RECONCILE)?;
    let mut warnings = Vec::new();
    if boolean(values, &FORCE_APPLY)? {
        let what = "--force-apply has no effect: each rule is compared with the kernel's, and what differs is repaired";
        warnings.push(what.to_owned());
    }
    Ok(warnings)
}

fn invalid(flag: impl Into<String>, value: &str, why: impl Into<String>) -> InvalidValue {
    InvalidValue { flag: flag.into(), value: value.to_owned(), why: why.into() }
}

pub(crate) fn parsed<T: FromStr<Err: ToString>>(values: &FlagValues, flag: &Flag) -> Result<T, InvalidValue> {
    let text = values.text(flag);
    text.parse().map_err(|error: T::Err| invalid(flag.long, text, error.to_string()))
}

pub(crate) fn boolean(values: &FlagValues, flag: &Flag) -> Result<bool, InvalidValue> {
    let text = values.text(flag);
    parse_go_bool(text).ok_or_else(|| invalid(flag.long, text, "allowed: true, false"))
}

fn config(values: &FlagValues, sources: &SettingSources<'_>) -> Result<SidecarConfig, InvalidValue> {
    let (proxy_uids, proxy_gids) = owners(values, sources)?;
    Ok(SidecarConfig {
        outbound_port: Port(parsed(values, &ENVOY_PORT)?),
        inbound_port: Port(parsed(values, &INBOUND_CAPTURE_PORT)?),
        tunnel_port: Port(parsed(values, &INBOUND_TUNNEL_PORT)?),
        proxy_uids,
        proxy_gids,
        inbound_mode: inbound_mode(values)?,
        include_inbound: parsed(values, &ISTIO_INBOUND_PORTS)?,
        exclude_inbound: parsed(values, &ISTIO_LOCAL_EXCLUDE_PORTS)?,
        include_networks: parsed(values, &ISTIO_SERVICE_CIDR)?,
        exclude_networks: exclude_networks(values)?,
        include_outbound: parsed(values, &ISTIO_OUTBOUND_PORTS)?,
        exclude_outbound: parsed::<PortSelection>(values, &ISTIO_LOCAL_OUTBOUND_PORTS_EXCLUDE)?,
        owner_groups: owner_groups(sources)?,
        exclude_interfaces: interfaces(values, &ISTIO_EXCLUDE_INTERFACES)?,
        kubevirt_interfaces: interfaces(values, &KUBE_VIRT_INTERFACES)?,
        dns: dns(values, sources)?,
        drop_invalid: boolean(values, &DROP_INVALID)?,
        trace: boolean(values, &IPTABLES_TRACE_LOGGING)?,
    })
}

/// Users and groups of the proxy. Names are looked up in the local files.
pub(crate) fn owners(
    values: &FlagValues,
    sources: &SettingSources<'_>,
) -> Result<(Vec<u32>, Vec<u32>), InvalidValue> {
    let default =
        host::id_of(sources.envoy_user.unwrap_or("istio-proxy"), sources.passwd).unwrap_or(PROXY_ID);
    let uids = match values.text(&PROXY_UID) {
        "" => vec![default],
        list => ids(PROXY_UID.long, list, sources.passwd)?,
    };
    let gids = match values.text(&PROXY_GID) {
        "" => uids.clone(),
        list => ids(PROXY_GID.long, list, sources.group)?,
    };
    Ok((uids, gids))
}

fn ids(flag: &str, list: &str, file: &str) -> Result<Vec<u32>, InvalidValue> {
    let id = |name: &str| name.parse().ok().or_else(|| host::id_of(name, file));
    let find = |name: &str| {
        id(name.trim()).ok_or_else(|| invalid(flag, list, format!("{name:?} is no number and no local name")))
    };
    list.split(',').map(find).collect()
}

fn inbound_mode(values: &FlagValues) -> Result<InboundMode, InvalidValue> {
    match values.text(&ISTIO_INBOUND_INTERCEPTION_MODE) {
        "TPROXY" => Ok(InboundMode::Tproxy {
            mark: tproxy_mark(values)?,
            table: TableId(parsed(values, &ISTIO_INBOUND_TPROXY_ROUTE_TABLE)?),
        }),
        _ => Ok(InboundMode::Redirect),
    }
}

pub(crate) fn tproxy_mark(values: &FlagValues) -> Result<Mark, InvalidValue> {
    match parsed(values, &ISTIO_INBOUND_TPROXY_MARK)? {
        0 => Err(invalid(ISTIO_INBOUND_TPROXY_MARK.long, "0", "unmarked packets have the mark 0")),
        mark => Ok(Mark::exact(mark)),
    }
}

fn exclude_networks(values: &FlagValues) -> Result<Vec<model::IpNet>, InvalidValue> {
    let flag = &ISTIO_SERVICE_EXCLUDE_CIDR;
    match parsed(values, flag)? {
        NetworkSelection::List(list) => Ok(list),
        NetworkSelection::All => Err(invalid(flag.long, "*", "cannot exclude every network")),
    }
}

fn interfaces(values: &FlagValues, flag: &Flag) -> Result<Vec<IfName>, InvalidValue> {
    let text = values.text(flag);
    let names = text.split(',').map(str::trim).filter(|_| !text.is_empty());
    names.map(|name| IfName::new(name).map_err(|error| invalid(flag.long, text, error.to_string()))).collect()
}

/// `*` (or nothing) includes every group but the excluded ones; otherwise only the listed ones.
fn owner_groups(sources: &SettingSources<'_>) -> Result<OwnerGroups, InvalidValue> {
    let (include, exclude) = ("ISTIO_OUTBOUND_OWNER_GROUPS", "ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE");
    let groups = |variable: &str, text: Option<&str>| match text.unwrap_or_default() {
        "" => Ok(Vec::new()),
        list => ids(variable, list, sources.group),
    };
    let included = sources.owner_groups.unwrap_or("*");
    if included.split(',').any(|group| group.trim() == "*") {
        return Ok(OwnerGroups::Except(groups(exclude, sources.owner_groups_exclude)?));
    }
    let list = groups(include, Some(included))?;
    if list.len() > MAX_GROUPS {
        return Err(invalid(include, included, format!("{} groups; at most {MAX_GROUPS}", list.len())));
    }
    Ok(OwnerGroups::Only(list))
}

fn dns(values: &FlagValues, sources: &SettingSources<'_>) -> Result<DnsCapture, InvalidValue> {
    if !boolean(values, &REDIRECT_DNS)? {
        return Ok(DnsCapture::Off);
    }
    if boolean(values, &CAPTURE_ALL_DNS)? {
        return Ok(DnsCapture::All);
    }
    let unreadable = || {
        invalid(REDIRECT_DNS.long, "true", "cannot read /etc/resolv.conf, whose servers are to be captured")
    };
    let servers: Vec<IpAddr> = host::name_servers(sources.resolv_conf.ok_or_else(unreadable)?);
    Ok(DnsCapture::Servers(servers))
}

pub(crate) fn backend(values: &FlagValues) -> Result<Option<Backend>, InvalidValue> {
    for flag in [&IPTABLES_BACKEND, &FORCE_IPTABLES_BINARY] {
        if !values.text(flag).is_empty() {
            return parsed(values, flag).map(Some);
        }
    }
    Ok(match values.text(&IPTABLES_VERSION) {
        "" => None,
        version if version.contains("nf_tables") => Some(Backend::Nft),
        _ => Some(Backend::Legacy),
    })
}

fn validation(values: &FlagValues) -> Result<Option<(Port, Duration)>, InvalidValue> {
    if !boolean(values, &RUN_VALIDATION)? {
        return Ok(None);
    }
    let text = values.text(&PROBE_TIMEOUT);
    let timeout = flags::duration(text)
        .ok_or_else(|| invalid(PROBE_TIMEOUT.long, text, "allowed: as 500ms, 5s or 1m30s"))?;
    Ok(Some((Port(parsed(values, &IPTABLES_PROBE_PORT)?), timeout)))
}
