//! Results: what the plugins before us did, as types, and printed again in any version.

mod convert;

use std::net::IpAddr;

use model::IpNet;
use serde_json::value::RawValue;

use crate::json::{InvalidMember, ObjectFields};
use crate::version::ResultShape;
use crate::{CniError, CniIfName, CniVersion, ErrorCode};

/// A result of any version, in the words of 1.1.0 (CNI spec 1.1.0, section 5, "ADD Success").
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CniResult {
    /// `interfaces`; none before 0.3.0.
    pub interfaces: Vec<Interface>,
    /// `ips`; before 0.3.0 at most one of each family.
    pub ips: Vec<IpConfig>,
    /// `routes`.
    pub routes: Vec<CniRoute>,
    /// `dns`.
    pub dns: CniDns,
}

/// An interface that was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// `name`; may be empty, plugins are sloppy.
    pub name: String,
    /// `mac`, as given.
    pub mac: Option<String>,
    /// `mtu` in bytes (1.1.0).
    pub mtu: Option<u32>,
    /// `sandbox`: the netns path of the container; none for an interface of the host.
    pub sandbox: Option<String>,
    /// `socketPath` (1.1.0).
    pub socket_path: Option<String>,
    /// `pciID` (1.1.0).
    pub pci_id: Option<String>,
}

/// An address that was given to an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpConfig {
    /// `address` (before 0.3.0 `ip`).
    pub address: IpNet,
    /// `gateway`.
    pub gateway: Option<IpAddr>,
    /// `interface`: index into `interfaces`, as given: it may be out of range.
    pub interface: Option<i64>,
}

/// A route that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CniRoute {
    /// `dst`.
    pub dst: IpNet,
    /// `gw`.
    pub gw: Option<IpAddr>,
}

/// Name service settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CniDns {
    /// `nameservers`, as given.
    pub nameservers: Vec<String>,
    /// `domain`.
    pub domain: Option<String>,
    /// `search`.
    pub search: Vec<String>,
    /// `options`.
    pub options: Vec<String>,
}

impl CniResult {
    /// The pod's own addresses, in their order: an entry counts if it names no interface, or one that is not in the
    /// list, or the one called `ifname` (as Istio's ambient enrolment counts them). IPv4-mapped addresses are given as IPv4.
    #[must_use]
    pub fn pod_ips(&self, ifname: &CniIfName) -> Vec<IpAddr> {
        let mut ips = Vec::new();
        for ip in &self.ips {
            let at = ip.interface.and_then(|index| usize::try_from(index).ok());
            let interface = at.and_then(|index| self.interfaces.get(index));
            let addr = ip.address.addr().to_canonical();
            if interface.is_none_or(|interface| interface.name == ifname.as_str()) && !ips.contains(&addr) {
                ips.push(addr);
            }
        }
        ips
    }
}

/// A `prevResult`: the bytes as they came, and what they say.
#[derive(Debug)]
pub struct PrevResult<'a> {
    raw: &'a RawValue,
    fields: ObjectFields<'a>,
    version: CniVersion,
    /// Whether the result itself says its version.
    stated: bool,
    result: CniResult,
}

impl<'a> PrevResult<'a> {
    /// Parses a result. A result that does not say its version has that of the configuration, in which the runtime is
    /// bound to hand it over (CNI spec 1.1.0, section 4).
    ///
    /// # Errors
    /// Code 6, with the member's path, when it is no result of its version; code 1 for a version that we do not speak.
    pub fn parse(raw: &'a RawValue, config: CniVersion) -> Result<Self, CniError> {
        let fields = ObjectFields::parse("prevResult", raw.get())?;
        let text = fields.text_member("cniVersion")?;
        let version = match &text {
            None => config,
            Some(text) => text.parse().map_err(|error| {
                CniError::new(ErrorCode::IncompatibleVersion, format!("prevResult.cniVersion: {error}"))
            })?,
        };
        let result = parse_result(&fields, version.result_shape())?;
        Ok(PrevResult { raw, fields, version, stated: text.is_some(), result })
    }

    /// Returns the parsed content of the result.
    #[must_use]
    pub fn parsed_result(&self) -> &CniResult {
        &self.result
    }

    /// The text to print for a configuration of that version: the bytes as they came if they are of that version (unknown
    /// members, order and numbers included), else converted. A conversion keeps what the requested version can hold:
    /// unknown members stay; a result of 0.1.0 or 0.2.0 holds one address per family, and no interfaces.
    #[must_use]
    pub fn output_for(&self, requested: CniVersion) -> String {
        if self.stated && self.version == requested {
            return self.raw.get().to_owned();
        }
        convert::convert_result(&self.fields, &self.result, self.version.result_shape(), requested)
    }
}

/// A result that says only its version: what a plugin prints that has no `prevResult` and makes nothing.
#[must_use]
pub fn empty_result(version: CniVersion) -> String {
    format!("{{\"cniVersion\":\"{version}\"}}")
}

fn parse_result(fields: &ObjectFields<'_>, shape: ResultShape) -> Result<CniResult, InvalidMember> {
    let dns = match fields.object_member("dns")? {
        Some(fields) => parse_dns(&fields)?,
        None => CniDns::default(),
    };
    let mut result = CniResult { dns, ..CniResult::default() };
    if shape == ResultShape::Ip4Ip6 {
        for key in ["ip4", "ip6"] {
            if let Some(ip) = fields.object_member(key)? {
                result.ips.push(ip_config(&ip, "ip")?);
                result.routes.extend(parse_list(&ip, "routes", parse_route)?);
            }
        }
        return Ok(result);
    }
    result.interfaces = parse_list(fields, "interfaces", parse_interface)?;
    result.ips = parse_list(fields, "ips", |ip| ip_config(ip, "address"))?;
    result.routes = parse_list(fields, "routes", parse_route)?;
    Ok(result)
}

fn parse_list<T>(
    fields: &ObjectFields<'_>,
    key: &str,
    item: impl Fn(&ObjectFields<'_>) -> Result<T, InvalidMember>,
) -> Result<Vec<T>, InvalidMember> {
    fields.object_list(key)?.iter().map(item).collect()
}

fn parse_interface(fields: &ObjectFields<'_>) -> Result<Interface, InvalidMember> {
    Ok(Interface {
        name: fields.text_member("name")?.unwrap_or_default(),
        mac: fields.text_member("mac")?,
        mtu: fields.decode_member("mtu")?,
        sandbox: fields.text_member("sandbox")?,
        socket_path: fields.text_member("socketPath")?,
        pci_id: fields.text_member("pciID")?,
    })
}

fn ip_config(fields: &ObjectFields<'_>, address: &str) -> Result<IpConfig, InvalidMember> {
    Ok(IpConfig {
        address: parse_prefix(fields, address)?,
        gateway: parse_gateway(fields, "gateway")?,
        interface: fields.decode_member("interface")?,
    })
}

fn parse_route(fields: &ObjectFields<'_>) -> Result<CniRoute, InvalidMember> {
    Ok(CniRoute { dst: parse_prefix(fields, "dst")?, gw: parse_gateway(fields, "gw")? })
}

fn parse_dns(fields: &ObjectFields<'_>) -> Result<CniDns, InvalidMember> {
    Ok(CniDns {
        nameservers: fields.text_list("nameservers")?,
        domain: fields.text_member("domain")?,
        search: fields.text_list("search")?,
        options: fields.text_list("options")?,
    })
}

fn parse_prefix(fields: &ObjectFields<'_>, key: &str) -> Result<IpNet, InvalidMember> {
    let text = fields.text_member(key)?.ok_or_else(|| fields.member_error(key, "is missing"))?;
    let wrong = || {
        fields.member_error(key, format!("{:?} is not an address with a prefix length", shorten_text(&text)))
    };
    text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from)).map_err(|_| wrong())
}

fn shorten_text(text: &str) -> String {
    text.chars().take(80).collect()
}

fn parse_gateway(fields: &ObjectFields<'_>, key: &str) -> Result<Option<IpAddr>, InvalidMember> {
    let parse = |text: String| {
        text.parse().map_err(|_| fields.member_error(key, format!("{text:?} is no IP address")))
    };
    fields.text_member(key)?.map(parse).transpose()
}

#[cfg(test)]
mod tests;
