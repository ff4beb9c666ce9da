//! Results of the previous plugins, parsed to types and printed in any version.

mod convert;

use std::net::IpAddr;

use model::IpNet;
use serde_json::value::RawValue;

use crate::document::Json;
use crate::json::{InvalidMember, ObjectFields};
use crate::names::excerpt;
use crate::{CniError, CniIfName, CniVersion, ErrorCode};

/// Parsed result of any version, as far as needed, with the field names of 1.1.0 (CNI spec 1.1.0, section 5, "ADD Success"). Other
/// members of the specification are validated and discarded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CniResult {
    /// `name` of each of the `interfaces`; may be empty in the output of sloppy plugins. None before 0.3.0.
    pub interfaces: Vec<String>,
    /// `ips`; before 0.3.0 at most one of each family.
    pub ips: Vec<IpConfig>,
    /// `dst` of each of the `routes`.
    pub routes: Vec<IpNet>,
}

/// An address assigned to an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpConfig {
    /// `address` (before 0.3.0 `ip`).
    pub address: IpNet,
    /// `interface`: index into `interfaces`, unchecked: it may be out of range.
    pub interface: Option<i64>,
}

impl CniResult {
    /// Returns the pod's own addresses, in their order: an entry is included if it refers to no interface, to one that is not in
    /// the list, or to the one called `ifname` (as in Istio's ambient enrolment). IPv4-mapped addresses are converted to IPv4.
    pub fn pod_ips(&self, ifname: &CniIfName) -> Vec<IpAddr> {
        let mut ips = Vec::new();
        for ip in &self.ips {
            let at = ip.interface.and_then(|index| usize::try_from(index).ok());
            let interface = at.and_then(|index| self.interfaces.get(index));
            let addr = ip.address.addr().to_canonical();
            if interface.is_none_or(|name| name == ifname.as_str()) && !ips.contains(&addr) {
                ips.push(addr);
            }
        }
        ips
    }
}

/// A `prevResult`: its original bytes, and its parsed content.
#[derive(Debug)]
pub struct PrevResult<'a> {
    raw: &'a RawValue,
    version: CniVersion,
    /// Whether the result itself states its version.
    stated: bool,
    /// Parsed content of the result.
    pub result: CniResult,
}

impl<'a> PrevResult<'a> {
    /// Parses a result. A result without a version has that of the configuration, in which the runtime is required to pass it (CNI
    /// spec 1.1.0, section 4).
    ///
    /// # Errors
    /// Code 6, with the member's path, if it is no result of its version; code 1 for an unsupported version.
    pub fn parse(raw: &'a RawValue, config: CniVersion) -> Result<Self, CniError> {
        let fields = ObjectFields::parse("prevResult", raw.get())?;
        let text = fields.text_member("cniVersion")?;
        let version = match &text {
            None => config,
            Some(text) => text.parse().map_err(|error| {
                CniError::new(ErrorCode::IncompatibleVersion, format!("prevResult.cniVersion: {error}"))
            })?,
        };
        let result = parse_result(&fields, version)?;
        Ok(PrevResult { raw, version, stated: text.is_some(), result })
    }

    /// Returns the output for a configuration of that version: the original bytes if they are of that version (including unknown
    /// members, order and numbers), else converted. A conversion keeps everything that the requested version supports: unknown
    /// members are kept; a result of 0.1.0 or 0.2.0 has one address per family, and no interfaces.
    ///
    /// # Errors
    /// Code 6: an unknown member of a result to be converted is nested too deep.
    pub fn output_for(&self, requested: CniVersion) -> Result<String, CniError> {
        if self.stated && self.version == requested {
            return Ok(self.raw.get().to_owned());
        }
        let document = Json::parse(self.raw.get().as_bytes()).map_err(|error| {
            CniError::new(ErrorCode::Decode, format!("cannot decode prevResult: {error}"))
        })?;
        let members = document.as_object().cloned().unwrap_or_default();
        Ok(convert::convert_result(members, &self.result, self.version, requested))
    }
}

fn parse_result(fields: &ObjectFields<'_>, version: CniVersion) -> Result<CniResult, InvalidMember> {
    if let Some(dns) = fields.object_member("dns")? {
        check_dns(&dns)?;
    }
    let mut result = CniResult::default();
    if version < CniVersion::V0_3_0 {
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

fn parse_interface(fields: &ObjectFields<'_>) -> Result<String, InvalidMember> {
    let name = fields.text_member("name")?.unwrap_or_default();
    fields.text_member("mac")?;
    fields.decode_member::<u32>("mtu")?;
    for key in ["sandbox", "socketPath", "pciID"] {
        fields.text_member(key)?;
    }
    Ok(name)
}

fn ip_config(fields: &ObjectFields<'_>, address: &str) -> Result<IpConfig, InvalidMember> {
    let address = parse_prefix(fields, address)?;
    check_gateway(fields, "gateway")?;
    Ok(IpConfig { address, interface: fields.decode_member("interface")? })
}

fn parse_route(fields: &ObjectFields<'_>) -> Result<IpNet, InvalidMember> {
    let dst = parse_prefix(fields, "dst")?;
    check_gateway(fields, "gw")?;
    Ok(dst)
}

fn check_dns(fields: &ObjectFields<'_>) -> Result<(), InvalidMember> {
    fields.text_list("nameservers")?;
    fields.text_member("domain")?;
    fields.text_list("search")?;
    fields.text_list("options").map(drop)
}

fn parse_prefix(fields: &ObjectFields<'_>, key: &str) -> Result<IpNet, InvalidMember> {
    let text = fields.text_member(key)?.ok_or_else(|| fields.member_error(key, "is missing"))?;
    let wrong =
        || fields.member_error(key, format!("{:?} is not an address with a prefix length", excerpt(&text)));
    text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from)).map_err(|_| wrong())
}

fn check_gateway(fields: &ObjectFields<'_>, key: &str) -> Result<(), InvalidMember> {
    match fields.text_member(key)? {
        Some(text) if text.parse::<IpAddr>().is_err() => {
            Err(fields.member_error(key, format!("{text:?} is not an IP address")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
