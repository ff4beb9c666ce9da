//! Configuration of a sidecar pod's rule set.

use std::{
    net::{IpAddr, Ipv4Addr},
    str::FromStr,
};

use model::{IfName, IpNet, Ipv4Net, Mark, Port, TableId};

use super::selection::{InvalidSelection, NetworkSelection, PortSelection};

/// Redirection of inbound connections to the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InboundMode {
    /// NAT: the application sees the proxy's address.
    Redirect,
    /// TPROXY: the source address is kept.
    Tproxy {
        /// Packet mark of connections that belong to the proxy.
        mark: Mark,
        /// Routing table that delivers marked packets locally.
        table: TableId,
    },
}

/// Groups of local processes whose traffic is captured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnerGroups {
    /// All but these.
    Except(Vec<u32>),
    /// Only these, at most 64.
    Only(Vec<u32>),
}

/// DNS capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DnsCapture {
    /// DNS is not redirected.
    Off,
    /// All traffic to port 53 is redirected to the proxy.
    All,
    /// Only traffic to these servers.
    Servers(Vec<IpAddr>),
}

/// The IPv4 network that counts as the pod's own loopback: traffic to it is not captured, and the proxy's traffic to it
/// is not treated as inbound. A part of `127.0.0.0/8`; Istio's `ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopbackNet(Ipv4Net);

impl LoopbackNet {
    /// Returns the network with its host bits cleared, as the kernel shows it.
    pub fn net(self) -> IpNet {
        IpNet::V4(self.0.trunc())
    }
}

impl Default for LoopbackNet {
    /// `127.0.0.1/32`.
    fn default() -> LoopbackNet {
        LoopbackNet(Ipv4Net::from(Ipv4Addr::LOCALHOST))
    }
}

impl FromStr for LoopbackNet {
    type Err = InvalidSelection;

    fn from_str(text: &str) -> Result<LoopbackNet, InvalidSelection> {
        let net = text.parse().ok().filter(|net: &Ipv4Net| net.addr().is_loopback() && net.prefix_len() >= 8);
        net.map(LoopbackNet).ok_or(InvalidSelection("a part of 127.0.0.0/8, as 127.0.0.1/32"))
    }
}

/// Selection of the traffic to redirect. [`SidecarConfig::default`] has Istio's ports, IDs and marks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidecarConfig {
    /// The proxy's outbound listener.
    pub outbound_port: Port,
    /// The proxy's inbound listener.
    pub inbound_port: Port,
    /// The HBONE port, never redirected.
    pub tunnel_port: Port,
    /// Users whose traffic is the proxy's own.
    pub proxy_uids: Vec<u32>,
    /// Groups whose traffic is the proxy's own.
    pub proxy_gids: Vec<u32>,
    /// REDIRECT or TPROXY.
    pub inbound_mode: InboundMode,
    /// Inbound ports to capture.
    pub include_inbound: PortSelection,
    /// Inbound ports to exclude; only relevant if all are captured.
    pub exclude_inbound: PortSelection,
    /// Outbound networks to capture.
    pub include_networks: NetworkSelection,
    /// Outbound networks to exclude.
    pub exclude_networks: Vec<IpNet>,
    /// Outbound ports to capture in any network.
    pub include_outbound: PortSelection,
    /// Outbound ports to exclude.
    pub exclude_outbound: PortSelection,
    /// Groups whose outbound traffic is captured.
    pub owner_groups: OwnerGroups,
    /// Interfaces whose traffic is not redirected.
    pub exclude_interfaces: Vec<IfName>,
    /// Interfaces of virtual machines, whose traffic is treated as outbound.
    pub kubevirt_interfaces: Vec<IfName>,
    /// Network that counts as the pod's own loopback in IPv4. In IPv6 it is `::1`.
    pub loopback: LoopbackNet,
    /// DNS capture.
    pub dns: DnsCapture,
    /// Whether to drop packets that belong to no connection.
    pub drop_invalid: bool,
    /// Whether to add NFLOG rules before the deciding ones.
    pub trace: bool,
}

impl Default for SidecarConfig {
    fn default() -> SidecarConfig {
        SidecarConfig {
            outbound_port: Port(15001),
            inbound_port: Port(15006),
            tunnel_port: Port(15008),
            proxy_uids: vec![1337],
            proxy_gids: vec![1337],
            inbound_mode: InboundMode::Redirect,
            include_inbound: PortSelection::NONE,
            exclude_inbound: PortSelection::NONE,
            include_networks: NetworkSelection::List(Vec::new()),
            exclude_networks: Vec::new(),
            include_outbound: PortSelection::NONE,
            exclude_outbound: PortSelection::NONE,
            owner_groups: OwnerGroups::Except(Vec::new()),
            exclude_interfaces: Vec::new(),
            kubevirt_interfaces: Vec::new(),
            loopback: LoopbackNet::default(),
            dns: DnsCapture::Off,
            drop_invalid: false,
            trace: false,
        }
    }
}
