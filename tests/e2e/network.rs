//! The node's own network before the agent is installed.

use std::path::PathBuf;

use kit::{Auth, kubeconfig};
use serde_json::{Value, json};

use crate::control::url;

/// Addresses of the first node's pods.
const PODS: &str = "10.244.1.0/24";
/// Address of the external server on pods' second interface.
pub(crate) const OUTSIDE_OF_SECOND: &str = "10.98.0.254";
/// File of the conflist in the runtime's directory.
pub(crate) const LIST: &str = "10-e2e.conflist";

/// Plugins that set up pods' network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Network {
    /// `ptp` and `portmap`.
    Ptp,
    /// `bridge`, with all plugins that distributions chain to it.
    Bridge,
    /// As `Bridge`, on a node whose iptables tools use legacy tables.
    BridgeLegacy,
    /// As `Bridge`, without `bandwidth`: for a pod without a limit, CHECK of its version 1.8.0 crashes, and CRI-O calls it.
    BridgeUnlimited,
    /// As `Ptp`, beside a network that sorts first, which CRI-O does not use by its setting.
    PtpByName,
    /// `macvlan` on the node's only link. The node has such an interface, too, because it could not reach its pods otherwise.
    Macvlan,
    /// Multus as on OpenShift: it reads further networks and their plugins from directories of its own.
    MultusApart,
    /// Multus beside the network to which it delegates, in the runtime's directory.
    MultusBeside,
}

impl Network {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ptp => "ptp, portmap",
            Self::Bridge => "bridge, firewall, bandwidth, portmap, tuning",
            Self::BridgeLegacy => "bridge, firewall, bandwidth, portmap, tuning in legacy tables",
            Self::BridgeUnlimited => "bridge, firewall, portmap, tuning",
            Self::PtpByName => "ptp, portmap by the runtime's choice",
            Self::Macvlan => "macvlan",
            Self::MultusApart => "Multus with directories of its own",
            Self::MultusBeside => "Multus beside its delegate",
        }
    }

    pub(crate) fn is_multus(self) -> bool {
        matches!(self, Self::MultusApart | Self::MultusBeside)
    }

    /// Whether the node's iptables tools use legacy tables.
    pub(crate) fn has_legacy_tables(self) -> bool {
        self == Self::BridgeLegacy
    }

    /// Whether it is `bridge` with other plugins.
    pub(crate) fn is_bridge(self) -> bool {
        matches!(self, Self::Bridge | Self::BridgeLegacy | Self::BridgeUnlimited)
    }

    /// Whether pods can have limits of bandwidth.
    pub(crate) fn limits_bandwidth(self) -> bool {
        self.is_bridge() && self != Self::BridgeUnlimited
    }

    /// Name of the network that CRI-O is set to use; empty: none.
    pub(crate) fn default_network(self) -> &'static str {
        if self == Self::PtpByName { "e2e" } else { "" }
    }

    /// Whether a port of the node can be mapped to a pod. `portmap` rewrites the destination on the node, which replies of a pod
    /// behind `macvlan` bypass.
    pub(crate) fn maps_ports(self) -> bool {
        self != Self::Macvlan
    }

    /// Names of the network's plugins on the node.
    pub(crate) fn plugins(self) -> &'static [&'static str] {
        match self {
            Self::Ptp | Self::PtpByName => &["loopback", "host-local", "ptp", "portmap"],
            Self::Bridge | Self::BridgeLegacy | Self::BridgeUnlimited => {
                &["loopback", "host-local", "bridge", "firewall", "bandwidth", "portmap", "tuning"]
            }
            Self::Macvlan => &["loopback", "host-local", "macvlan"],
            Self::MultusApart | Self::MultusBeside => {
                &["loopback", "host-local", "ptp", "portmap", "macvlan", "sbr", "multus"]
            }
        }
    }

    /// Directory of a plugin that is not beside the others.
    pub(crate) fn directory(self, plugin: &str) -> Option<PathBuf> {
        let multus = || std::env::var_os("MILLRACE_MULTUS").expect("hack/e2e sets MILLRACE_MULTUS").into();
        (plugin == "multus").then(multus)
    }

    /// Files below `/etc` of the node with this number, with their content.
    pub(crate) fn files(self, number: u8, version: &str) -> Vec<(&'static str, String)> {
        let list = |version: &str, plugins| {
            json!({"cniVersion": version, "name": "e2e", "plugins": plugins}).to_string()
        };
        match self {
            Self::Ptp => vec![("cni/net.d/10-e2e.conflist", list(version, ptp(number)))],
            Self::Bridge | Self::BridgeLegacy | Self::BridgeUnlimited => {
                vec![("cni/net.d/10-e2e.conflist", list(version, bridge(self.limits_bandwidth())))]
            }
            Self::PtpByName => {
                let other = json!({"cniVersion": version, "name": "other", "plugins": ptp(9)});
                vec![
                    ("cni/net.d/00-other.conflist", other.to_string()),
                    ("cni/net.d/10-e2e.conflist", list(version, ptp(number))),
                ]
            }
            Self::Macvlan => vec![("cni/net.d/10-e2e.conflist", list(version, macvlan()))],
            Self::MultusApart => vec![
                ("cni/multus/primary/10-e2e.conflist", list(version, ptp(number))),
                (
                    "cni/net.d/00-multus.conf",
                    multus("0.3.1", "/etc/cni/multus/primary", "/etc/cni/multus/net.d"),
                ),
                ("cni/net.d/multus.d/multus.kubeconfig", multus_kubeconfig()),
            ],
            // With 1.1, containerd would call STATUS, on which Multus 4.2.2 crashes if it knows its delegate by name.
            Self::MultusBeside => vec![
                ("cni/net.d/10-e2e.conflist", list("1.0.0", ptp(number))),
                ("cni/net.d/00-multus.conf", multus("1.0.0", "e2e", "/etc/cni/net.d")),
                ("cni/net.d/multus.d/multus.kubeconfig", multus_kubeconfig()),
            ],
        }
    }

    /// Arguments of `ip` for the outer end of a node's link.
    pub(crate) fn outside(self, number: u8) -> Vec<String> {
        let second = format!("address add {OUTSIDE_OF_SECOND}/24 dev node-1");
        let route = format!("route add {} via 10.99.{}.1", pods_of(number), number - 1);
        match self {
            Self::Macvlan => vec!["address add 10.244.1.254/24 dev node-1".into()],
            Self::MultusApart | Self::MultusBeside => vec![route, second],
            Self::Ptp | Self::PtpByName | Self::Bridge | Self::BridgeLegacy | Self::BridgeUnlimited => {
                vec![route]
            }
        }
    }

    /// Arguments of `ip` for the end of that link on the node.
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

/// CIDR of a node's pods. A second node is possible with `ptp` only.
fn pods_of(number: u8) -> String {
    format!("10.244.{number}.0/24")
}

fn ptp(number: u8) -> Value {
    json!([
        {"type": "ptp", "ipMasq": false, "ipam": addresses(&json!({"subnet": pods_of(number)}))},
        {"type": "portmap", "capabilities": {"portMappings": true}},
    ])
}

fn bridge(has_bandwidth: bool) -> Value {
    let bandwidth = json!({"type": "bandwidth", "capabilities": {"bandwidth": true}});
    let plugins = [
        json!({"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true, "ipam": addresses(&json!({"subnet": PODS}))}),
        json!({"type": "firewall", "backend": "iptables"}),
        json!({"type": "portmap", "capabilities": {"portMappings": true}}),
        json!({"type": "tuning", "sysctl": {"net.core.somaxconn": "512"}}),
    ];
    let (first, last) = plugins.split_at(2);
    [first, if has_bandwidth { std::slice::from_ref(&bandwidth) } else { &[] }, last].concat().into()
}

fn macvlan() -> Value {
    let range = json!({"subnet": PODS, "rangeStart": "10.244.1.10", "rangeEnd": "10.244.1.200", "gateway": "10.244.1.254"});
    json!([{"type": "macvlan", "master": "eth0", "mode": "bridge", "ipam": addresses(&range)}])
}

fn addresses(range: &Value) -> Value {
    json!({"type": "host-local", "ranges": [[range]], "routes": [{"dst": "0.0.0.0/0"}]})
}

/// Multus' own configuration: `primary` is the network to which it delegates, `directory` that of the others.
fn multus(version: &str, primary: &str, directory: &str) -> String {
    json!({
        "cniVersion": version, "name": "multus-cni-network", "type": "multus",
        "capabilities": {"portMappings": true, "bandwidth": true},
        "kubeconfig": "/etc/cni/net.d/multus.d/multus.kubeconfig",
        "clusterNetwork": primary, "confDir": directory, "binDir": "/var/lib/cni/bin",
        "namespaceIsolation": true, "globalNamespaces": "default", "logLevel": "error",
    })
    .to_string()
}

fn multus_kubeconfig() -> String {
    kubeconfig(&url(), &Auth::ClientCert { user: "multus".into(), group: "system:masters".into() })
}

/// The CRD by which pods name further networks.
pub(crate) fn attachment_resource() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "network-attachment-definitions.k8s.cni.cncf.io"},
        "spec": {
            "group": "k8s.cni.cncf.io", "scope": "Namespaced",
            "names": {
                "kind": "NetworkAttachmentDefinition", "plural": "network-attachment-definitions",
                "singular": "network-attachment-definition",
            },
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "properties": {"config": {"type": "string"}}},
                }}},
            }],
        },
    })
}

/// Second networks of a namespace, on the node's link: `second` of `macvlan`, and `routed` of `macvlan` and `sbr`.
pub(crate) fn attachments(namespace: &str) -> [Value; 2] {
    let plugin = |first: &str, last: &str| {
        let range = json!({"subnet": "10.98.0.0/24", "rangeStart": first, "rangeEnd": last});
        json!({"type": "macvlan", "master": "eth0", "mode": "bridge", "ipam": {"type": "host-local", "ranges": [[range]]}})
    };
    let networks = [
        ("second", json!([plugin("10.98.0.10", "10.98.0.200")])),
        ("routed", json!([plugin("10.98.0.201", "10.98.0.250"), {"type": "sbr"}])),
    ];
    networks.map(|(name, plugins)| {
        let config = json!({"cniVersion": "1.0.0", "name": name, "plugins": plugins});
        json!({
            "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": {"namespace": namespace, "name": name}, "spec": {"config": config.to_string()},
        })
    })
}
