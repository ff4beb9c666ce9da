//! Kernel settings (sysctls) of the node and of a ztunnel's namespace.

use std::collections::BTreeMap;

use super::links::{Direction, link_pairs};
use crate::state::{ZtunnelInstance, ZtunnelSlot};

/// Settings of the node that a slot needs. With the strict check of source addresses, which counts if either the link
/// or all links ask for it, nothing that ztunnel sends with a pod's address would get through; 2 is the loose check,
/// and counts more than both. On our own links nobody else could want another one. Accepting local addresses is for
/// connections of this host.
pub(crate) fn node_sysctls(
    slot: ZtunnelSlot,
    ztunnel: &ZtunnelInstance,
    observed: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let key = |link: &str, name: &str| format!("net/ipv4/conf/{link}/{name}");
    let value = |name: &str| observed.get(name).and_then(|text| text.parse::<u32>().ok()).unwrap_or(0);
    let mut desired = BTreeMap::from([(key(&ztunnel.veth, "accept_local"), "1".to_owned())]);
    let check = key(&ztunnel.veth, "rp_filter");
    if value(&check).max(value(&key("all", "rp_filter"))) == 1 {
        desired.insert(check, "2".to_owned());
    }
    desired.extend(link_pairs(slot).map(|pair| (key(&pair.node, "rp_filter"), "2".to_owned())));
    desired
}

/// Settings inside. What arrives on our links has sources that are reached by the uplink. And ztunnel sends with the
/// addresses of pods, to where they send: with a port that the pod itself may have chosen for the same destination, the
/// node would take both connections for one. So ztunnels choose theirs from below the range that pods have, and the two
/// slots from different halves.
pub(crate) fn inside_sysctls(slot: ZtunnelSlot) -> BTreeMap<String, String> {
    let names =
        Direction::BOTH.map(|direction| format!("net/ipv4/conf/p{}/rp_filter", direction.link_prefix()));
    let ports = match slot {
        ZtunnelSlot::Zero => "16384\t24575",
        ZtunnelSlot::One => "24576\t32767",
    };
    let checks = names.into_iter().map(|name| (name, "2".to_owned()));
    checks.chain([(PORTS.to_owned(), ports.to_owned())]).collect()
}

/// The ports that a namespace chooses from, of both families.
const PORTS: &str = "net/ipv4/ip_local_port_range";

/// Names of the node's kernel settings that matter to a slot and its ztunnel's veth link.
pub fn watched_sysctls(slot: ZtunnelSlot, veth: &str) -> Vec<String> {
    let of_veth = [(veth.to_owned(), "rp_filter"), (veth.to_owned(), "accept_local")];
    let of_all = [("all".to_owned(), "rp_filter")];
    let of_ours = link_pairs(slot).map(|pair| (pair.node, "rp_filter"));
    let every = of_veth.into_iter().chain(of_all).chain(of_ours);
    every.map(|(link, name)| format!("net/ipv4/conf/{link}/{name}")).collect()
}

/// Returns the names of the kernel settings that matter inside a ztunnel's namespace.
pub fn watched_inside_sysctls() -> Vec<String> {
    inside_sysctls(ZtunnelSlot::Zero).into_keys().collect()
}
