//! Conversion of results between versions, by moving raw parts.
//!
//! Differences (CNI spec, section "Result" at each tag): 0.1.0 and 0.2.0 have `ip4` and `ip6`, each with its own list of routes;
//! 0.3.0 to 0.4.0 have lists, and ips with a `version`; 1.0.0 has no such `version`; 1.1.0 has more members of interfaces and
//! routes.

use crate::json::{JsonNode, ObjectFields, to_pretty_json};
use crate::version::ResultShape;
use crate::{CniResult, CniVersion};

/// Members of interfaces added in 1.1.0.
const INTERFACE_1_1: [&str; 3] = ["mtu", "socketPath", "pciID"];
/// Members of routes added in 1.1.0.
const ROUTE_1_1: [&str; 5] = ["mtu", "advmss", "priority", "table", "scope"];

type ResultMembers<'a> = Vec<(String, JsonNode<'a>)>;

/// Converts the result to the requested version. `fields`: the members from which `result` was parsed.
pub(super) fn convert_result(
    fields: &ObjectFields<'_>,
    result: &CniResult,
    from: ResultShape,
    requested: CniVersion,
) -> String {
    let to = requested.result_shape();
    let mut lists = ResultLists::from_fields(fields, from);
    lists.drop_newer_members(from, to);
    let mut members = vec![member("cniVersion", JsonNode::Text(requested.as_str()))];
    if to == ResultShape::Ip4Ip6 {
        members.extend(lists.into_ip4_ip6(result));
    } else {
        members.extend(lists.into_lists(result, to));
    }
    members.extend(remaining_fields(fields, &["cniVersion", "interfaces", "ips", "routes", "ip4", "ip6"]));
    to_pretty_json(&JsonNode::Object(members))
}

/// Three lists of a result, whatever its shape; each element with its address (`address`), if any, under the name of the newer
/// versions, and without `version`.
struct ResultLists<'a> {
    interfaces: Option<Vec<ResultMembers<'a>>>,
    ips: Vec<ResultMembers<'a>>,
    routes: Vec<ResultMembers<'a>>,
}

impl<'a> ResultLists<'a> {
    // A part that is no list or object cannot occur here: the typed parser has rejected it.
    fn from_fields(fields: &ObjectFields<'a>, from: ResultShape) -> Self {
        if from == ResultShape::Ip4Ip6 {
            let pair =
                || ["ip4", "ip6"].into_iter().filter_map(|key| fields.object_member(key).ok().flatten());
            return ResultLists {
                interfaces: None,
                ips: pair().map(|ip| object_members(&ip, &["ip", "routes"], Some("ip"))).collect(),
                routes: pair()
                    .flat_map(|ip| ip.object_list("routes").unwrap_or_default())
                    .map(|route| object_members(&route, &[], None))
                    .collect(),
            };
        }
        let list = |key: &str, skip: &[&str], address: Option<&str>| {
            let elements = fields.object_list(key).unwrap_or_default();
            elements.iter().map(|element| object_members(element, skip, address)).collect()
        };
        ResultLists {
            interfaces: fields.get("interfaces").map(|_| list("interfaces", &[], None)),
            ips: list("ips", &["address", "version"], Some("address")),
            routes: list("routes", &[], None),
        }
    }

    /// Removes members that only 1.1.0 has.
    fn drop_newer_members(&mut self, from: ResultShape, to: ResultShape) {
        if from < ResultShape::IpsMore || to == ResultShape::IpsMore {
            return;
        }
        for interface in self.interfaces.iter_mut().flatten() {
            interface.retain(|(name, _)| !matches_any(name, &INTERFACE_1_1));
        }
        for route in &mut self.routes {
            route.retain(|(name, _)| !matches_any(name, &ROUTE_1_1));
        }
    }

    fn into_lists(self, result: &CniResult, to: ResultShape) -> ResultMembers<'a> {
        let mut members = Vec::new();
        if let Some(interfaces) = self.interfaces {
            members.push(member("interfaces", object_list(interfaces)));
        }
        let mut ips = self.ips;
        if to == ResultShape::VersionedIps {
            for (ip, typed) in ips.iter_mut().zip(&result.ips) {
                let family = if typed.address.addr().to_canonical().is_ipv4() { "4" } else { "6" };
                ip.insert(0, member("version", JsonNode::Text(family)));
            }
        }
        if !ips.is_empty() {
            members.push(member("ips", object_list(ips)));
        }
        if !self.routes.is_empty() {
            members.push(member("routes", object_list(self.routes)));
        }
        members
    }

    /// Returns the first address of each family, with the routes of the family.
    fn into_ip4_ip6(self, result: &CniResult) -> ResultMembers<'a> {
        let (mut ip4, mut ip6) = (None, None);
        for (mut ip, typed) in self.ips.into_iter().zip(&result.ips) {
            ip.retain(|(name, _)| !name.eq_ignore_ascii_case("interface"));
            if let Some((name, _)) = ip.iter_mut().find(|(name, _)| *name == "address") {
                "ip".clone_into(name);
            }
            let slot = if typed.address.addr().to_canonical().is_ipv4() { &mut ip4 } else { &mut ip6 };
            slot.get_or_insert(ip);
        }
        let (mut routes4, mut routes6) = (Vec::new(), Vec::new());
        for (route, typed) in self.routes.into_iter().zip(&result.routes) {
            if typed.addr().to_canonical().is_ipv4() { routes4.push(route) } else { routes6.push(route) }
        }
        let mut members = Vec::new();
        for (key, ip, routes) in [("ip4", ip4, routes4), ("ip6", ip6, routes6)] {
            let Some(mut ip) = ip else { continue };
            if !routes.is_empty() {
                ip.push(member("routes", object_list(routes)));
            }
            members.push(member(key, JsonNode::Object(ip)));
        }
        members
    }
}

/// Returns the members of one object: the address first, under the name of the newer versions, then all that are not skipped.
fn object_members<'a>(fields: &ObjectFields<'a>, skip: &[&str], address: Option<&str>) -> ResultMembers<'a> {
    let address = address.and_then(|key| fields.get(key)).map(|raw| member("address", JsonNode::Raw(raw)));
    address.into_iter().chain(remaining_fields(fields, skip)).collect()
}

fn remaining_fields<'a>(fields: &ObjectFields<'a>, skip: &[&str]) -> ResultMembers<'a> {
    fields.members_except(skip).map(|(name, raw)| member(name, JsonNode::Raw(raw))).collect()
}

fn member<'a>(name: &str, value: JsonNode<'a>) -> (String, JsonNode<'a>) {
    (name.to_owned(), value)
}

fn object_list(list: Vec<ResultMembers<'_>>) -> JsonNode<'_> {
    JsonNode::List(list.into_iter().map(JsonNode::Object).collect())
}

fn matches_any(name: &str, names: &[&str]) -> bool {
    names.iter().any(|one| one.eq_ignore_ascii_case(name))
}
