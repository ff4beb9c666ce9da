//! Kernel settings (sysctls) of the node and of a ztunnel's namespace.

use std::collections::BTreeMap;

use super::links::{Direction, link_pairs};
use crate::state::{ZtunnelInstance, ZtunnelSlot};

/// Returns settings of the node that a slot needs. Strict source validation, which applies if either the link or all
/// links have it, would drop everything that ztunnel sends with a pod's address; 2 is loose validation, and overrides
/// both. On our own links no other component needs another value. Accepting local addresses is for connections of this
/// host.
///
/// With `src_valid_mark`, as `wg-quick` sets it, the kernel looks up the source of a captured packet with its mark, in a
/// table that leads to ztunnel: strict validation, which any pod's link may have, would drop the packet
/// (`__fib_validate_source` in `net/ipv4/fib_frontend.c`).
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
    if value(&key("all", "src_valid_mark")) != 0 {
        desired.insert(key("all", "rp_filter"), "2".to_owned());
    }
    desired
}

/// Returns settings in a ztunnel's namespace. Packets that arrive on our links have sources that are routed by the
/// uplink. And ztunnel sends with the addresses of pods to their destinations: with a port that the pod itself may use
/// for the same destination, the node would confuse both connections. So ztunnels use ports below the range of pods,
/// and the two slots use different halves. With `src_valid_mark`, which a new namespace has from the node, the kernel
/// would drop what TPROXY or the return path marks: its source would be an address of this host.
pub(crate) fn inside_sysctls(slot: ZtunnelSlot) -> BTreeMap<String, String> {
    let names =
        Direction::BOTH.map(|direction| format!("net/ipv4/conf/p{}/rp_filter", direction.link_prefix()));
    let ports = match slot {
        ZtunnelSlot::Zero => "16384\t24575",
        ZtunnelSlot::One => "24576\t32767",
    };
    let checks = names.into_iter().map(|name| (name, "2".to_owned()));
    let others = [(PORTS, ports), ("net/ipv4/conf/all/src_valid_mark", "0")];
    checks.chain(others.map(|(name, value)| (name.to_owned(), value.to_owned()))).collect()
}

/// Range of ephemeral ports of a namespace, for both families.
const PORTS: &str = "net/ipv4/ip_local_port_range";

/// Returns the names of the node's kernel settings that are relevant for a slot and its ztunnel's veth link.
pub fn watched_sysctls(slot: ZtunnelSlot, veth: &str) -> Vec<String> {
    let of_veth = [(veth.to_owned(), "rp_filter"), (veth.to_owned(), "accept_local")];
    let of_all = ["rp_filter", "src_valid_mark"].map(|name| ("all".to_owned(), name));
    let of_ours = link_pairs(slot).map(|pair| (pair.node, "rp_filter"));
    let every = of_veth.into_iter().chain(of_all).chain(of_ours);
    every.map(|(link, name)| format!("net/ipv4/conf/{link}/{name}")).collect()
}

/// Returns the names of the kernel settings that are relevant in a ztunnel's namespace.
pub fn watched_inside_sysctls() -> Vec<String> {
    inside_sysctls(ZtunnelSlot::Zero).into_keys().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_checked_loosely_where_the_check_uses_marks() {
        let ztunnel = ZtunnelInstance {
            uid: "z".into(),
            veth: "veth".to_owned(),
            uplink: "eth0".to_owned(),
            ips: Vec::new(),
            dns: false,
        };
        let all = |name: &str| format!("net/ipv4/conf/all/{name}");
        for (by_mark, expected) in [("0", None), ("1", Some("2"))] {
            let observed = BTreeMap::from([(all("src_valid_mark"), by_mark.to_owned())]);
            let desired = node_sysctls(ZtunnelSlot::Zero, &ztunnel, &observed);
            assert_eq!(desired.get(&all("rp_filter")).map(String::as_str), expected, "{by_mark}");
        }
        assert!(watched_sysctls(ZtunnelSlot::Zero, "veth").contains(&all("src_valid_mark")));
    }
}
