//! The flags of `istio-iptables`, and their values checked and typed.

use std::{net::IpAddr, str::FromStr, time::Duration};

use flags::{Flag, Values, flag, switch};
use model::{IfName, Mark, Port, TableId, parse_go_bool};
use netfilter::{Backend, Options};
use redirect::Families;
use rules::sidecar::{Config, Dns, InboundMode, Networks, OwnerGroups, Ports};

use crate::host;

/// All flags of `istio-iptables`.
pub const FLAGS: &[Flag] = &[
    flag("envoy-port", Some('p'), &[], "15001", "port of the proxy's outbound listener"),
    flag(
        "inbound-capture-port",
        Some('z'),
        &["INBOUND_CAPTURE_PORT"],
        "15006",
        "port of the proxy's inbound listener",
    ),
    flag("inbound-tunnel-port", Some('e'), &["INBOUND_TUNNEL_PORT"], "15008", "HBONE port, never redirected"),
    flag(
        "proxy-uid",
        Some('u'),
        &["PROXY_UID"],
        "",
        "comma-separated users whose traffic is the proxy's own; empty: user $ENVOY_USER, else 1337",
    ),
    flag(
        "proxy-gid",
        Some('g'),
        &["PROXY_GID"],
        "",
        "comma-separated groups whose traffic is the proxy's own; empty: as --proxy-uid",
    ),
    flag(
        "istio-inbound-interception-mode",
        Some('m'),
        &["ISTIO_INBOUND_INTERCEPTION_MODE"],
        "",
        "REDIRECT or TPROXY",
    ),
    flag("istio-inbound-ports", Some('b'), &["ISTIO_INBOUND_PORTS"], "", "inbound ports to capture, or *"),
    flag(
        "istio-local-exclude-ports",
        Some('d'),
        &["ISTIO_LOCAL_EXCLUDE_PORTS"],
        "",
        "inbound ports to leave alone; only with *",
    ),
    flag(
        "istio-exclude-interfaces",
        Some('c'),
        &["ISTIO_EXCLUDE_INTERFACES"],
        "",
        "interfaces to leave alone",
    ),
    flag("istio-service-cidr", Some('i'), &["ISTIO_SERVICE_CIDR"], "", "outbound networks to capture, or *"),
    flag(
        "istio-service-exclude-cidr",
        Some('x'),
        &["ISTIO_SERVICE_EXCLUDE_CIDR"],
        "",
        "outbound networks to leave alone",
    ),
    flag(
        "istio-outbound-ports",
        Some('q'),
        &["ISTIO_OUTBOUND_PORTS"],
        "",
        "outbound ports to capture whatever the network",
    ),
    flag(
        "istio-local-outbound-ports-exclude",
        Some('o'),
        &["ISTIO_LOCAL_OUTBOUND_PORTS_EXCLUDE"],
        "",
        "outbound ports to leave alone",
    ),
    flag(
        "kube-virt-interfaces",
        Some('k'),
        &["KUBE_VIRT_INTERFACES"],
        "",
        "interfaces of virtual machines, whose traffic is outbound",
    ),
    flag(
        "istio-inbound-tproxy-mark",
        Some('t'),
        &["ISTIO_INBOUND_TPROXY_MARK"],
        "1337",
        "mark of TPROXY connections",
    ),
    flag(
        "istio-inbound-tproxy-route-table",
        Some('r'),
        &["ISTIO_INBOUND_TPROXY_ROUTE_TABLE"],
        "133",
        "routing table of TPROXY",
    ),
    switch("dry-run", Some('n'), &["DRY_RUN"], "false", "only print what would be done"),
    switch(
        "iptables-trace-logging",
        None,
        &["IPTABLES_TRACE_LOGGING"],
        "false",
        "add NFLOG rules (group 1337)",
    ),
    switch(
        "restore-format",
        Some('f'),
        &["RESTORE_FORMAT"],
        "true",
        "one iptables-restore instead of one command per rule",
    ),
    flag("iptables-probe-port", None, &["IPTABLES_PROBE_PORT"], "15002", "port that the validation calls"),
    flag("probe-timeout", None, &["PROBE_TIMEOUT"], "5s", "how long the validation tries"),
    switch("skip-rule-apply", None, &["SKIP_RULE_APPLY"], "false", "change nothing"),
    switch(
        "run-validation",
        None,
        &["RUN_VALIDATION"],
        "false",
        "prove the redirection with a connection; exit status 126 when it is not there",
    ),
    switch("redirect-dns", None, &["REDIRECT_DNS", "ISTIO_META_DNS_CAPTURE"], "false", "capture DNS"),
    switch(
        "drop-invalid",
        None,
        &["DROP_INVALID", "INVALID_DROP"],
        "false",
        "discard packets that belong to no connection",
    ),
    switch(
        "dual-stack",
        None,
        &["DUAL_STACK", "ISTIO_DUAL_STACK"],
        "false",
        "redirect both address families",
    ),
    switch(
        "capture-all-dns",
        None,
        &["CAPTURE_ALL_DNS"],
        "false",
        "capture DNS to any server, not only those of /etc/resolv.conf",
    ),
    flag(
        "network-namespace",
        None,
        &["NETWORK_NAMESPACE"],
        "",
        "accepted for compatibility: with --cni-mode the file of this namespace is the lock",
    ),
    switch(
        "cni-mode",
        None,
        &["CNI_MODE"],
        "false",
        "work in the pod's namespace without the host's lock and name services",
    ),
    flag(
        "iptables-version",
        None,
        &["IPTABLES_VERSION"],
        "",
        "accepted for compatibility: iptables' version text; 'nf_tables' in it selects that backend",
    ),
    flag(
        "iptables-backend",
        None,
        &["IPTABLES_BACKEND"],
        "",
        "nft or legacy; empty: as the namespace and the host use",
    ),
    // Of Istio 1.24 and newer.
    flag(
        "force-iptables-binary",
        None,
        &["FORCE_IPTABLES_BINARY"],
        "",
        "the same, with the names that Istio has: iptables-nft or iptables-legacy, nft or legacy",
    ),
    switch(
        "cleanup-only",
        None,
        &["CLEANUP_ONLY"],
        "false",
        "remove everything, as istio-clean-iptables does, and make nothing",
    ),
    switch(
        "reconcile",
        None,
        &["RECONCILE"],
        "false",
        "accepted for compatibility; rules that differ are always repaired",
    ),
    switch(
        "force-apply",
        None,
        &["FORCE_APPLY"],
        "false",
        "accepted for compatibility; each rule is always compared with the kernel's",
    ),
    switch(
        "native-nftables",
        None,
        &["NATIVE_NFTABLES"],
        "false",
        "accepted for compatibility, with a warning; rules always go through the iptables tools",
    ),
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
pub struct Sources<'a> {
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
pub struct Settings {
    /// The rule set.
    pub config: Config,
    /// Which families.
    pub families: Families,
    /// How to work with the tools.
    pub options: Options,
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

impl Settings {
    /// Checks and types every value.
    ///
    /// # Errors
    /// The first value that cannot be used, with its flag.
    pub fn new(values: &Values, sources: &Sources<'_>) -> Result<Settings, InvalidValue> {
        Ok(Settings {
            config: config(values, sources)?,
            families: if boolean(values, "dual-stack")? { Families::Dual } else { Families::First },
            options: Options { forced: backend(values)?, ..Options::default() },
            cni_mode: boolean(values, "cni-mode")?,
            dry_run: boolean(values, "dry-run")?,
            restore_format: boolean(values, "restore-format")?,
            skip_apply: boolean(values, "skip-rule-apply")?,
            cleanup_only: boolean(values, "cleanup-only")?,
            warnings: warnings(values)?,
            validation: validation(values)?,
        })
    }
}

fn warnings(values: &Values) -> Result<Vec<String>, InvalidValue> {
    boolean(values, "reconcile")?;
    let mut warnings = Vec::new();
    if boolean(values, "force-apply")? {
        let what = "--force-apply has no effect: each rule is compared with the kernel's, and what differs is repaired";
        warnings.push(what.to_owned());
    }
    if boolean(values, "native-nftables")? {
        let what = "--native-nftables is not supported yet: rules go through the iptables tools";
        warnings.push(what.to_owned());
    }
    Ok(warnings)
}

fn invalid(flag: &str, value: &str, why: impl Into<String>) -> InvalidValue {
    InvalidValue { flag: flag.to_owned(), value: value.to_owned(), why: why.into() }
}

pub(crate) fn parsed<T: FromStr<Err: ToString>>(values: &Values, flag: &str) -> Result<T, InvalidValue> {
    let text = values.text(flag);
    text.parse().map_err(|error: T::Err| invalid(flag, text, error.to_string()))
}

pub(crate) fn boolean(values: &Values, flag: &str) -> Result<bool, InvalidValue> {
    let text = values.text(flag);
    parse_go_bool(text).ok_or_else(|| invalid(flag, text, "allowed: true, false"))
}

fn config(values: &Values, sources: &Sources<'_>) -> Result<Config, InvalidValue> {
    let (proxy_uids, proxy_gids) = owners(values, sources)?;
    Ok(Config {
        outbound_port: Port(parsed(values, "envoy-port")?),
        inbound_port: Port(parsed(values, "inbound-capture-port")?),
        tunnel_port: Port(parsed(values, "inbound-tunnel-port")?),
        proxy_uids,
        proxy_gids,
        inbound_mode: inbound_mode(values)?,
        include_inbound: parsed(values, "istio-inbound-ports")?,
        exclude_inbound: parsed(values, "istio-local-exclude-ports")?,
        include_networks: parsed(values, "istio-service-cidr")?,
        exclude_networks: exclude_networks(values)?,
        include_outbound: parsed(values, "istio-outbound-ports")?,
        exclude_outbound: parsed::<Ports>(values, "istio-local-outbound-ports-exclude")?,
        owner_groups: owner_groups(sources)?,
        exclude_interfaces: interfaces(values, "istio-exclude-interfaces")?,
        kubevirt_interfaces: interfaces(values, "kube-virt-interfaces")?,
        dns: dns(values, sources)?,
        drop_invalid: boolean(values, "drop-invalid")?,
        trace: boolean(values, "iptables-trace-logging")?,
    })
}

/// Users and groups of the proxy. Names are looked up in the local files.
pub(crate) fn owners(values: &Values, sources: &Sources<'_>) -> Result<(Vec<u32>, Vec<u32>), InvalidValue> {
    let default =
        host::id_of(sources.envoy_user.unwrap_or("istio-proxy"), sources.passwd).unwrap_or(PROXY_ID);
    let uids = match values.text("proxy-uid") {
        "" => vec![default],
        list => ids("proxy-uid", list, sources.passwd)?,
    };
    let gids = match values.text("proxy-gid") {
        "" => uids.clone(),
        list => ids("proxy-gid", list, sources.group)?,
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

fn inbound_mode(values: &Values) -> Result<InboundMode, InvalidValue> {
    match values.text("istio-inbound-interception-mode") {
        "TPROXY" => Ok(InboundMode::Tproxy {
            mark: tproxy_mark(values)?,
            table: TableId(parsed(values, "istio-inbound-tproxy-route-table")?),
        }),
        _ => Ok(InboundMode::Redirect),
    }
}

pub(crate) fn tproxy_mark(values: &Values) -> Result<Mark, InvalidValue> {
    match parsed(values, "istio-inbound-tproxy-mark")? {
        0 => Err(invalid("istio-inbound-tproxy-mark", "0", "unmarked packets have the mark 0")),
        mark => Ok(Mark::exact(mark)),
    }
}

fn exclude_networks(values: &Values) -> Result<Vec<model::IpNet>, InvalidValue> {
    let flag = "istio-service-exclude-cidr";
    match parsed(values, flag)? {
        Networks::List(list) => Ok(list),
        Networks::All => Err(invalid(flag, "*", "cannot exclude every network")),
    }
}

fn interfaces(values: &Values, flag: &str) -> Result<Vec<IfName>, InvalidValue> {
    let text = values.text(flag);
    let names = text.split(',').map(str::trim).filter(|_| !text.is_empty());
    names.map(|name| IfName::new(name).map_err(|error| invalid(flag, text, error.to_string()))).collect()
}

/// `*` (or nothing) includes every group but the excluded ones; otherwise only the listed ones.
fn owner_groups(sources: &Sources<'_>) -> Result<OwnerGroups, InvalidValue> {
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

fn dns(values: &Values, sources: &Sources<'_>) -> Result<Dns, InvalidValue> {
    if !boolean(values, "redirect-dns")? {
        return Ok(Dns::Off);
    }
    if boolean(values, "capture-all-dns")? {
        return Ok(Dns::All);
    }
    let unreadable =
        || invalid("redirect-dns", "true", "cannot read /etc/resolv.conf, whose servers are to be captured");
    let servers: Vec<IpAddr> = host::name_servers(sources.resolv_conf.ok_or_else(unreadable)?);
    Ok(Dns::Servers(servers))
}

pub(crate) fn backend(values: &Values) -> Result<Option<Backend>, InvalidValue> {
    for flag in ["iptables-backend", "force-iptables-binary"] {
        if !values.text(flag).is_empty() {
            return parsed(values, flag).map(Some);
        }
    }
    Ok(match values.text("iptables-version") {
        "" => None,
        version if version.contains("nf_tables") => Some(Backend::Nft),
        _ => Some(Backend::Legacy),
    })
}

fn validation(values: &Values) -> Result<Option<(Port, Duration)>, InvalidValue> {
    if !boolean(values, "run-validation")? {
        return Ok(None);
    }
    let text = values.text("probe-timeout");
    let timeout =
        duration(text).ok_or_else(|| invalid("probe-timeout", text, "allowed: as 500ms, 5s or 1m"))?;
    Ok(Some((Port(parsed(values, "iptables-probe-port")?), timeout)))
}

/// A duration as Go writes it, of one unit.
fn duration(text: &str) -> Option<Duration> {
    let split = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(split);
    let number: u64 = number.parse().ok()?;
    match unit {
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        "m" => number.checked_mul(60).map(Duration::from_secs),
        _ => None,
    }
}
