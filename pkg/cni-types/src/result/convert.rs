//! Conversion of results between versions, by moving members.
//!
//! Differences (CNI spec, section "Result" at each tag): 0.1.0 and 0.2.0 have `ip4` and `ip6`, each with its own list of routes;
//! 0.3.0 to 0.4.0 have lists, and ips with a `version`; 1.0.0 has no such `version`; 1.1.0 has more members of interfaces and
//! routes.

use model::IpNet;

use crate::document::{Json, JsonMembers, matching_fields};
use crate::{CniResult, CniVersion};

/// Members of interfaces added in 1.1.0.
const INTERFACE_1_1: [&str; 3] = ["mtu", "socketPath", "pciID"];
/// Members of routes added in 1.1.0.
const ROUTE_1_1: [&str; 5] = ["mtu", "advmss", "priority", "table", "scope"];

/// Converts the result to another version. `members`: those from which `result` was parsed.
pub(super) fn convert_result(
    mut members: JsonMembers,
    result: &CniResult,
    from: CniVersion,
    to: CniVersion,
) -> String {
    let keys = ["cniVersion", "interfaces", "ips", "routes", "ip4", "ip6"];
    let [_, interfaces, ips, routes, ip4, ip6] = keys.map(|key| take_member(&mut members, key));
    let (mut interfaces, mut ips, mut routes) = match from < CniVersion::V0_3_0 {
        true => {
            let mut ips: Vec<JsonMembers> = [ip4, ip6].into_iter().flatten().map(into_members).collect();
            let routes: Vec<_> = ips.iter_mut().flat_map(|ip| into_list(take_member(ip, "routes"))).collect();
            (None, ips, routes)
        }
        false => (interfaces.map(|list| into_list(Some(list))), into_list(ips), into_list(routes)),
    };
    for (ip, typed) in ips.iter_mut().zip(&result.ips) {
        convert_ip(ip, &typed.address, from, to);
    }
    if from >= CniVersion::V1_1_0 && to < CniVersion::V1_1_0 {
        for interface in interfaces.iter_mut().flatten() {
            INTERFACE_1_1.iter().for_each(|key| drop(take_member(interface, key)));
        }
        for route in &mut routes {
            ROUTE_1_1.iter().for_each(|key| drop(take_member(route, key)));
        }
    }
    let version = Json::String(to.to_string());
    let converted = if to < CniVersion::V0_3_0 {
        [("ip4", true), ("ip6", false)].map(|(key, v4)| (key, family_object(&ips, &routes, result, v4)))
    } else {
        let filled = |list: Vec<JsonMembers>| (!list.is_empty()).then(|| object_list(list));
        members.extend(interfaces.map(|list| ("interfaces".to_owned(), object_list(list))));
        [("ips", filled(ips)), ("routes", filled(routes))]
    };
    let converted = [("cniVersion", Some(version))].into_iter().chain(converted);
    members.extend(converted.filter_map(|(key, value)| Some((key.to_owned(), value?))));
    Json::Object(members).to_go_text()
}

/// Gives an address the members that the version has.
fn convert_ip(ip: &mut JsonMembers, typed: &IpNet, from: CniVersion, to: CniVersion) {
    let address_key = |version: CniVersion| if version < CniVersion::V0_3_0 { "ip" } else { "address" };
    let address = take_member(ip, address_key(from));
    ip.extend(address.map(|address| (address_key(to).to_owned(), address)));
    drop(take_member(ip, "version"));
    if to < CniVersion::V0_3_0 {
        drop(take_member(ip, "interface"));
    } else if to < CniVersion::V1_0_0 {
        let version = if is_v4(typed) { "4" } else { "6" };
        ip.insert("version".to_owned(), Json::String(version.to_owned()));
    }
}

/// Returns the first address of a family, with the routes of the family.
fn family_object(
    ips: &[JsonMembers],
    routes: &[JsonMembers],
    result: &CniResult,
    is_for_v4: bool,
) -> Option<Json> {
    let mut ips = ips.iter().zip(&result.ips);
    let mut ip = ips.find(|(_, typed)| is_v4(&typed.address) == is_for_v4)?.0.clone();
    let routes = routes.iter().zip(&result.routes).filter(|(_, dst)| is_v4(dst) == is_for_v4);
    let routes: Vec<JsonMembers> = routes.map(|(route, _)| route.clone()).collect();
    if !routes.is_empty() {
        ip.insert("routes".to_owned(), object_list(routes));
    }
    Some(Json::Object(ip))
}

fn is_v4(net: &IpNet) -> bool {
    net.addr().to_canonical().is_ipv4()
}

/// Removes a member, under any spelling of its key, and returns its value; `None`: it is missing or `null`.
fn take_member(members: &mut JsonMembers, key: &str) -> Option<Json> {
    let value = matching_fields(members, key).next().cloned();
    members.retain(|name, _| !name.eq_ignore_ascii_case(key));
    value.filter(|value| *value != Json::Null)
}

// A part that is no list or object cannot occur below: the typed parser has rejected it.

fn into_list(list: Option<Json>) -> Vec<JsonMembers> {
    match list {
        Some(Json::List(list)) => list.into_iter().map(into_members).collect(),
        _ => Vec::new(),
    }
}

fn into_members(object: Json) -> JsonMembers {
    if let Json::Object(members) = object { members } else { JsonMembers::new() }
}

fn object_list(list: Vec<JsonMembers>) -> Json {
    Json::List(list.into_iter().map(Json::Object).collect())
}
