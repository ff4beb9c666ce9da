//! The node's own network, as it is before the agent comes.

use serde_json::{Value, json};

/// Addresses of the node's pods.
pub(crate) const PODS: &str = "10.244.1.0/24";

/// What gives pods their network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Network {
    /// `ptp` and `portmap`.
    Ptp,
    /// `bridge`, with all that distributions chain to it.
    Bridge,
    /// `macvlan` on the node's only link. The node has such an interface, too, because it could not reach its pods without one.
    Macvlan,
}

impl Network {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ptp => "ptp, portmap",
            Self::Bridge => "bridge, firewall, bandwidth, portmap, tuning",
            Self::Macvlan => "macvlan",
        }
    }

    /// Whether a port of the node can lead to a pod. `portmap` rewrites the destination on the node, which answers of a pod behind
    /// `macvlan` do not pass.
    pub(crate) fn maps_ports(self) -> bool {
        self != Self::Macvlan
    }

    /// Plugins of the network, as the node has them.
    pub(crate) fn plugins(self) -> &'static [&'static str] {
        match self {
            Self::Ptp => &["loopback", "host-local", "ptp", "portmap"],
            Self::Bridge => {
                &["loopback", "host-local", "bridge", "firewall", "bandwidth", "portmap", "tuning"]
            }
            Self::Macvlan => &["loopback", "host-local", "macvlan"],
        }
    }

    /// Files below `/etc`, with their content.
    pub(crate) fn files(self, version: &str) -> Vec<(&'static str, String)> {
        let list = |version: &str, plugins| {
            json!({"cniVersion": version, "name": "e2e", "plugins": plugins}).to_string()
        };
        match self {
            Self::Ptp => vec![("cni/net.d/10-e2e.conflist", list(version, ptp()))],
            Self::Bridge => vec![("cni/net.d/10-e2e.conflist", list(version, bridge()))],
            Self::Macvlan => vec![("cni/net.d/10-e2e.conflist", list(version, macvlan()))],
        }
    }

    /// Arguments of `ip` for the other end of the node's link, beyond the node.
    pub(crate) fn outside(self) -> Vec<String> {
        let route = format!("route add {PODS} via 10.99.0.1");
        match self {
            Self::Macvlan => vec!["address add 10.244.1.254/24 dev node-1".into()],
            Self::Ptp | Self::Bridge => vec![route],
        }
    }

    /// The same for the node.
    pub(crate) fn inside(self) -> Vec<String> {
        if self != Self::Macvlan {
            return Vec::new();
        }
        vec![
            "link set eth0 up".into(),
            "link add pods link eth0 type macvlan mode bridge".into(),
            "address add 10.244.1.1/32 dev pods".into(),
            "link set pods up".into(),
            format!("route add {PODS} dev pods"),
        ]
    }
}

fn ptp() -> Value {
    json!([
        {"type": "ptp", "ipMasq": false, "ipam": addresses(&json!({"subnet": PODS}))},
        {"type": "portmap", "capabilities": {"portMappings": true}},
    ])
}

fn bridge() -> Value {
    json!([
        {"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true, "ipam": addresses(&json!({"subnet": PODS}))},
        {"type": "firewall", "backend": "iptables"},
        {"type": "bandwidth", "capabilities": {"bandwidth": true}},
        {"type": "portmap", "capabilities": {"portMappings": true}},
        {"type": "tuning", "sysctl": {"net.core.somaxconn": "512"}},
    ])
}

fn macvlan() -> Value {
    let range = json!({"subnet": PODS, "rangeStart": "10.244.1.10", "rangeEnd": "10.244.1.200", "gateway": "10.244.1.254"});
    json!([{"type": "macvlan", "master": "eth0", "mode": "bridge", "ipam": addresses(&range)}])
}

fn addresses(range: &Value) -> Value {
    json!({"type": "host-local", "ranges": [[range]], "routes": [{"dst": "0.0.0.0/0"}]})
}
