//! Rule set defined by the flags, with host files that some of their values refer to.

use flags::{Flag, FlagValues};
use model::{IfName, Mark, Port, TableId, list_elements};
use rules::sidecar::{
    DnsCapture, InboundMode, InvalidSelection, LoopbackNet, NetworkSelection, OwnerGroups, PortSelection,
    SidecarConfig,
};

use super::{
    LOOPBACK, SettingSources, options,
    value::{InvalidValue, invalid_value, parse_boolean, parse_value},
};
use crate::host;

/// Maximum number of groups that may be captured (as in Istio).
const MAX_GROUPS: usize = 64;
/// UID and GID of Istio's proxy.
const PROXY_ID: u32 = 1337;

pub(super) fn read_config(
    values: &FlagValues,
    sources: &SettingSources,
    warnings: &mut Vec<String>,
) -> Result<SidecarConfig, InvalidValue> {
    let (proxy_uids, proxy_gids) = proxy_owners(values, sources)?;
    Ok(SidecarConfig {
        outbound_port: Port(parse_value(values, &options::ENVOY_PORT)?),
        inbound_port: Port(parse_value(values, &options::INBOUND_CAPTURE_PORT)?),
        tunnel_port: Port(parse_value(values, &options::INBOUND_TUNNEL_PORT)?),
        proxy_uids,
        proxy_gids,
        inbound_mode: inbound_mode(values)?,
        include_inbound: parse_ports(values, &options::ISTIO_INBOUND_PORTS)?,
        exclude_inbound: parse_ports(values, &options::ISTIO_LOCAL_EXCLUDE_PORTS)?,
        include_networks: parse_value(values, &options::ISTIO_SERVICE_CIDR)?,
        exclude_networks: exclude_networks(values)?,
        include_outbound: parse_ports(values, &options::ISTIO_OUTBOUND_PORTS)?,
        exclude_outbound: parse_ports(values, &options::ISTIO_LOCAL_OUTBOUND_PORTS_EXCLUDE)?,
        owner_groups: owner_groups(sources)?,
        exclude_interfaces: parse_interfaces(values, &options::ISTIO_EXCLUDE_INTERFACES)?,
        kubevirt_interfaces: parse_interfaces(values, &options::KUBE_VIRT_INTERFACES)?,
        loopback: loopback_net(sources)?,
        dns: dns_capture(values, sources, warnings)?,
        drop_invalid: parse_boolean(values, &options::DROP_INVALID)?,
        trace: parse_boolean(values, &options::IPTABLES_TRACE_LOGGING)?,
    })
}

/// Returns users and groups of the proxy. Names are looked up in the local files.
fn proxy_owners(values: &FlagValues, sources: &SettingSources) -> Result<(Vec<u32>, Vec<u32>), InvalidValue> {
    let default = host::numeric_id(sources.envoy_user.as_deref().unwrap_or("istio-proxy"), &sources.passwd);
    let mut uids =
        parse_ids(options::PROXY_UID.long, values.flag_text(&options::PROXY_UID), &sources.passwd)?;
    if uids.is_empty() {
        uids.push(default.unwrap_or(PROXY_ID));
    }
    let mut gids = parse_ids(options::PROXY_GID.long, values.flag_text(&options::PROXY_GID), &sources.group)?;
    if gids.is_empty() {
        gids.clone_from(&uids);
    }
    Ok((uids, gids))
}

fn parse_ids(flag: &str, list: &str, file: &str) -> Result<Vec<u32>, InvalidValue> {
    let id = |name: &str| name.parse().ok().or_else(|| host::numeric_id(name, file));
    let mistake = |name: &str| format!("{name:?} is neither a number nor a local name");
    let find = |name: &str| id(name).ok_or_else(|| invalid_value(flag, list, mistake(name)));
    list_elements(list).map(find).collect()
}

fn inbound_mode(values: &FlagValues) -> Result<InboundMode, InvalidValue> {
    match values.flag_text(&options::ISTIO_INBOUND_INTERCEPTION_MODE) {
        "TPROXY" => Ok(InboundMode::Tproxy { mark: tproxy_mark(values)?, table: tproxy_table(values)? }),
        _ => Ok(InboundMode::Redirect),
    }
}

pub(crate) fn tproxy_mark(values: &FlagValues) -> Result<Mark, InvalidValue> {
    let flag = &options::ISTIO_INBOUND_TPROXY_MARK;
    match parse_value(values, flag)? {
        // Unmarked packets have the mark 0, and the rules also set the mark that follows this one.
        0 | u32::MAX => Err(invalid_value(flag.long, values.flag_text(flag), "allowed: 1 to 4294967294")),
        mark => Ok(Mark::with_full_mask(mark)),
    }
}

/// Returns the routing table. The kernel has none with the number 0.
fn tproxy_table(values: &FlagValues) -> Result<TableId, InvalidValue> {
    let flag = &options::ISTIO_INBOUND_TPROXY_ROUTE_TABLE;
    match parse_value(values, flag)? {
        0 => Err(invalid_value(flag.long, "0", "allowed: 1 to 4294967295")),
        table => Ok(TableId(table)),
    }
}

fn exclude_networks(values: &FlagValues) -> Result<Vec<model::IpNet>, InvalidValue> {
    let flag = &options::ISTIO_SERVICE_EXCLUDE_CIDR;
    match parse_value(values, flag)? {
        NetworkSelection::List(list) => Ok(list),
        NetworkSelection::All => Err(invalid_value(flag.long, "*", "cannot exclude every network")),
    }
}

/// Parses ports; Istio's tool passes the elements of these lists to iptables unchanged.
fn parse_ports(values: &FlagValues, flag: &Flag) -> Result<PortSelection, InvalidValue> {
    let text = values.flag_text(flag);
    PortSelection::from_ranges(text).map_err(|error| invalid_value(flag.long, text, error.to_string()))
}

fn parse_interfaces(values: &FlagValues, flag: &Flag) -> Result<Vec<IfName>, InvalidValue> {
    let text = values.flag_text(flag);
    let name = |name| IfName::new(name).map_err(|error| invalid_value(flag.long, text, error.to_string()));
    list_elements(text).map(name).collect()
}

/// Returns the groups to capture: `*` (or nothing) includes every group but the excluded ones; otherwise only the listed ones.
fn owner_groups(sources: &SettingSources) -> Result<OwnerGroups, InvalidValue> {
    let (include, exclude) = ("ISTIO_OUTBOUND_OWNER_GROUPS", "ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE");
    let included = sources.owner_groups.as_deref().unwrap_or("*");
    if list_elements(included).any(|group| group == "*") {
        let excluded = sources.owner_groups_exclude.as_deref().unwrap_or_default();
        return Ok(OwnerGroups::Except(parse_ids(exclude, excluded, &sources.group)?));
    }
    let list = parse_ids(include, included, &sources.group)?;
    if list.len() > MAX_GROUPS {
        return Err(invalid_value(include, included, format!("{} groups; at most {MAX_GROUPS}", list.len())));
    }
    Ok(OwnerGroups::Only(list))
}

fn loopback_net(sources: &SettingSources) -> Result<LoopbackNet, InvalidValue> {
    match sources.loopback.as_deref() {
        None | Some("") => Ok(LoopbackNet::default()),
        Some(text) => {
            text.parse().map_err(|error: InvalidSelection| invalid_value(LOOPBACK, text, error.to_string()))
        }
    }
}

/// Returns the DNS capture. Without a server there is nothing to capture, and no rule (as in Istio since 1.25).
fn dns_capture(
    values: &FlagValues,
    sources: &SettingSources,
    warnings: &mut Vec<String>,
) -> Result<DnsCapture, InvalidValue> {
    if !parse_boolean(values, &options::REDIRECT_DNS)? {
        return Ok(DnsCapture::Off);
    }
    if parse_boolean(values, &options::CAPTURE_ALL_DNS)? {
        return Ok(DnsCapture::All);
    }
    let Some(resolv_conf) = &sources.resolv_conf else {
        let why = "cannot read /etc/resolv.conf, whose servers are to be captured";
        return Err(invalid_value(options::REDIRECT_DNS.long, "true", why));
    };
    let servers = host::name_servers(resolv_conf);
    if servers.is_empty() {
        let what = "--redirect-dns has no effect: /etc/resolv.conf names no server; --capture-all-dns captures DNS to any";
        warnings.push(what.to_owned());
        return Ok(DnsCapture::Off);
    }
    Ok(DnsCapture::Servers(servers))
}
